"""Graphs that are launched before Dynamo has checked its guards."""

from __future__ import annotations

import copy
import gc
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from training_support import fresh

import pygraph
from pygraph import _engine
from pygraph.adapter import early
from pygraph.twin import faults

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here:
        yield here


def network(place: Place) -> Any:
    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)
    return torch.nn.Sequential(*layers).to(place.torch)


def inputs(place: Place, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4)), device=place.torch)


def context_of(compiled: Any) -> Any:
    if hasattr(compiled, "dynamo_ctx"):
        return compiled.dynamo_ctx
    names = compiled.__code__.co_freevars
    return compiled.__closure__[names.index("self")].cell_contents


def counts_and_reads(compiled: Any) -> tuple[int, int, int]:
    hooks = context_of(compiled).enter_exit_hooks
    found = list(filter(_engine.is_early, hooks))
    assert len(found) <= 1
    return _engine.early_counts(found[0]) if found else (0, 0, 0)


def counts(compiled: Any) -> tuple[int, int]:
    """Graphs launched early, and those of them whose call came."""
    launched, landed, _ = counts_and_reads(compiled)
    return launched, landed


def check(compiled: Any, model: Any, *given: Any, **named: Any) -> None:
    with torch.no_grad():
        results, expected = compiled(*given, **named), model(*given, **named)
    assert_bits(list(results), list(expected))


def warm(compiled: Any, model: Any, place: Place, calls: int = 3) -> None:
    """Links its graph; the last of three calls is the one that is learned from."""
    for _ in range(calls):
        check(compiled, model, inputs(place))


def test_a_graph_is_launched_early(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place)
    assert counts(compiled) == (0, 0)
    warm(compiled, model, place, 5)
    assert counts(compiled) == (5, 5)
    (graph,) = pygraph.report().graphs
    assert graph.early and graph.direct and (graph.calls, graph.replays) == (8, 6)


def test_a_forward_too(place: Place) -> None:
    model, same = network(place), network(place)
    compiled = place.compile(model)
    for _ in range(6):
        x = inputs(place)
        for each, function in ((model, compiled), (same, same)):
            each.zero_grad()
            function(x).square().sum().backward()
        ours = [p.grad for p in model.parameters()]
        assert_bits(ours, [p.grad for p in same.parameters()])
    assert counts(compiled) == (3, 3)
    assert pygraph.report().graphs[0].early and pygraph.report().graphs[0].ahead


def test_whoever_asks_for_checks_first_gets_them(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model, launch="checked")
    warm(compiled, model, place, 6)
    assert counts(compiled) == (0, 0) and not pygraph.report().graphs[0].early


class Switched(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.negated = False
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return -self.inner(x) if self.negated else self.inner(x) * 3


def test_guards_have_the_last_word(place: Place) -> None:
    """The guess is wrong where something has changed that is not seen from outside."""
    model = Switched().to(place.torch)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    launched, landed = counts(compiled)
    assert launched == landed == 2
    model.negated = True
    warm(compiled, model, place, 2)
    assert counts(compiled) == (3, 2)
    first = pygraph.report().graphs[0]
    assert (first.calls, first.replays, first.dropped) == (5, 4, 1)
    model.inner = torch.nn.Linear(4, 4).to(place.torch)
    warm(compiled, model, place, 4)
    model.negated = False
    warm(compiled, model, place, 4)


def test_parameters_that_are_others_now(place: Place) -> None:
    """The guards do not mind: Dynamo hands the new ones to the same graph."""
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    before = counts(compiled)
    kept = model[0].weight
    model[0].weight = torch.nn.Parameter(torch.randn_like(kept))
    warm(compiled, model, place, 1)
    assert counts(compiled) == (before[0] + 1, before[1])
    warm(compiled, model, place, 4)
    assert counts(compiled)[1] > before[1]
    with torch.no_grad():
        kept.mul_(0)
    warm(compiled, model, place, 1)


@pytest.mark.parametrize("what", ["moved", "written"])
def test_parameters_that_change(place: Place, what: str) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    before = counts(compiled)[1]
    with torch.no_grad():
        if what == "moved":
            model[0].weight.data = model[0].weight.data * 2
        else:
            model[0].weight.mul_(2)
    warm(compiled, model, place, 1)
    assert counts(compiled)[1] == before + (what == "written")
    warm(compiled, model, place, 3)
    assert counts(compiled)[1] > before + 1
    assert counts(compiled)[0] == counts(compiled)[1]


def test_other_shapes_are_not_guessed(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model, dynamic=False)
    warm(compiled, model, place, 5)
    before = counts(compiled)
    for shape in ((3, 4), (2, 2, 4), (1, 4)):
        check(compiled, model, inputs(place, *shape))
    check(compiled, model, inputs(place, 4, 2).t())
    assert counts(compiled)[0] == before[0]


def test_two_shapes_have_a_route_each(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model, dynamic=False)
    for _ in range(4):
        check(compiled, model, inputs(place))
        check(compiled, model, inputs(place, 7, 4))
    before = counts(compiled)
    for _ in range(3):
        check(compiled, model, inputs(place))
        check(compiled, model, inputs(place, 7, 4))
    assert counts(compiled) == (before[0] + 6, before[1] + 6)


def mixed(batch: dict[str, Any], pair: list[Any], scale: float, *, bias: Any, mode: str) -> Any:
    x = batch["x"] * scale + pair[0] @ pair[1]
    return (x + bias if mode == "add" else x - bias), x


def test_tensors_in_containers_and_values(place: Place) -> None:
    compiled = place.compile(mixed)

    def call(mode: str = "add", container: Any = list) -> None:
        batch: dict[str, Any] = {"x": inputs(place, 3, 3), "name": None}
        pair = container([inputs(place, 3, 2), inputs(place, 2, 3)])
        check(compiled, mixed, batch, pair, 2.0, bias=inputs(place, 3), mode=mode)

    for _ in range(6):
        call()
    assert counts(compiled) == (3, 3)
    call(mode="subtract")
    call(container=tuple)
    assert counts(compiled) == (3, 3)


class Tagged:
    """A class of the user's: what it means is not known."""


def test_what_cannot_be_told_again_is_not_guessed(place: Place) -> None:
    def scaled(x: Any, tag: Any) -> Any:
        return (x * 2 if isinstance(tag, Tagged) else x * 3,)

    compiled = place.compile(scaled)
    for _ in range(6):
        check(compiled, scaled, inputs(place), Tagged())
    assert pygraph.report().graphs[0].replays and counts(compiled) == (0, 0)


def test_what_nobody_can_read_is_not_read_in_every_call(place: Place) -> None:
    """More tensors than are read."""

    def function(first: Any, *_: Any) -> Any:
        return first * 2

    compiled = place.compile(function)
    given = [inputs(place) for _ in range(300)]
    for _ in range(40):
        check(compiled, function, *given)
    launched, _, read = counts_and_reads(compiled)
    assert launched == 0 and 8 <= read <= 9
    for _ in range(128):
        check(compiled, function, *given)
    assert counts_and_reads(compiled)[2] - read == 2


def test_only_what_comes_straight_from_the_callable(place: Place) -> None:
    """A graph behind a break comes when other code of the user's has run."""
    seen: list[float] = []

    def broken(x: Any) -> Any:
        y = x + 1
        torch._dynamo.graph_break()
        x.mul_(2)
        return (y * x,)

    def behind(x: Any) -> Any:
        seen.append(1.0)
        torch._dynamo.graph_break()
        return (x * 3,)

    for function in (broken, behind):
        compiled = place.compile(function)
        for _ in range(8):
            x = inputs(place)
            with torch.no_grad():
                (found,), (expected,) = compiled(x.clone()), function(x.clone())
            assert_bits([found], [expected])
        launched, landed = counts(compiled)
        assert launched == landed
        assert landed == (5 if function is broken else 0)


def test_hooks_of_a_module_come_first(place: Place) -> None:
    """They run in front of the forward that Dynamo compiles, and may write what it reads."""
    model = Switched().to(place.torch)
    compiled = place.compile(model)

    @torch._dynamo.disable
    def before(module: Any, given: Any) -> None:
        with torch.no_grad():
            module.inner.bias.add_(1)

    model.register_forward_pre_hook(before)
    for _ in range(8):
        x = inputs(place)
        with torch.no_grad():
            found = compiled(x)
            expected = model.inner(x) * 3
        assert_bits([found], [expected])
    assert counts(compiled)[1] == 0


def test_nothing_that_leaves_a_trace(place: Place) -> None:
    def random(x: Any) -> Any:
        return (torch.nn.functional.dropout(x, 0.5), x + 1)

    def writes(x: Any) -> Any:
        x.add_(1)
        return (x * 2,)

    for function in (random, writes):
        compiled = place.compile(function)
        with torch.no_grad():
            for _ in range(6):
                compiled(inputs(place))
        assert pygraph.report().graphs[-1].replays and counts(compiled) == (0, 0)


def test_nothing_that_indexes_by_what_it_computes(place: Place) -> None:
    table = inputs(place, 6, 4)

    def lookup(ids: Any) -> Any:
        return (torch.nn.functional.embedding(5 - ids, table),)

    compiled = place.compile(lookup)
    for _ in range(6):
        check(compiled, lookup, torch.randint(6, (3,), device=place.torch))
    (graph,) = pygraph.report().graphs
    assert graph.replays and not graph.early and counts(compiled) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("index", [6, 599, -1])
def test_indices_are_looked_at_first(place: Place, dtype: torch.dtype, index: int) -> None:
    few, many = inputs(place, 6, 4), inputs(place, 600, 4)
    tables = [few]

    def lookup(ids: Any) -> Any:
        return (torch.nn.functional.embedding(ids, tables[0]) if tables else ids * 2,)

    def ids(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=place.torch, dtype=dtype)

    compiled = place.compile(lookup, dynamic=False)
    for _ in range(5):
        check(compiled, lookup, ids(0, 5, 3))
    assert counts(compiled) == (2, 2)
    tables[:] = [many] if index >= 0 else []
    check(compiled, lookup, ids(0, index, 3))  # launched, it would end the process on a GPU
    assert counts(compiled) == (2, 2)
    tables[:] = [few]
    for _ in range(6):
        check(compiled, lookup, ids(2, 4, 1))
    launched, landed = counts(compiled)
    assert launched == landed > 2
    first, looks = pygraph.report().graphs[0], launched + 1
    assert first.early and first.bytes_looked_at == looks * 3 * ids(0).element_size()
    assert first.bytes_copied == 0


@pytest.mark.parametrize("index", [6, -1])
def test_a_table_that_is_asked_for_what_it_has_not(place: Place, index: int) -> None:
    if place.name != "twin":
        pytest.skip("ends the process")
    model = torch.nn.Embedding(6, 4)
    compiled = place.compile(model)
    for _ in range(5):
        check(compiled, model, torch.tensor([1, 5, 0]))
    before = counts(compiled)
    assert before == (2, 2)
    with pytest.raises(IndexError), torch.no_grad():
        compiled(torch.tensor([1, index, 0]))
    assert counts(compiled) == before


BUSY = 600  #: CUDA_ERROR_NOT_READY


@pytest.mark.parametrize(
    ("symbol", "code", "early_calls"),
    [
        ("cuStreamQuery", BUSY, (0, 1, 2)),  # the next guess does not wait
        ("cuStreamQuery", 1, (0, 1, 2)),
        ("cuMemAllocHost", 2, (0, 0, 1)),
        ("cuMemcpyDtoHAsync", 1, (0, 0, 1)),
        ("cuStreamSynchronize", 1, (0, 0, 1)),
        ("cuThreadExchangeStreamCaptureMode", 1, (1, 2, 3)),
    ],
)
def test_a_look_that_fails(symbol: str, code: int, early_calls: tuple[int, ...]) -> None:
    model = torch.nn.Embedding(6, 4)
    with fresh("twin") as twin:
        compiled = twin.compile(model)
        for _ in range(3):
            check(compiled, model, torch.tensor([1, 5, 0]))
        launched = []
        with faults.failing_call(symbol, code):
            for _ in early_calls:
                check(compiled, model, torch.tensor([2, 0, 4]))
                launched.append(counts(compiled)[0])
        assert tuple(launched) == early_calls
        (graph,) = pygraph.report().graphs
        assert graph.state == "graphed" and graph.replays == 4


def test_a_graph_without_indices_does_not_ask_the_stream() -> None:
    with fresh("twin") as twin:
        model = network(twin)
        compiled = twin.compile(model)
        warm(compiled, model, twin)
        with faults.failing_call("cuStreamQuery", BUSY):
            warm(compiled, model, twin, 1)
        assert counts(compiled) == (1, 1)


IDS = torch.tensor([1, 5, 0])


def launches(compiled: Any, model: Any, calls: int, given: torch.Tensor = IDS) -> list[bool]:
    """Whether each of some calls was launched early."""
    seen = []
    for _ in range(calls):
        before, _ = counts(compiled)
        check(compiled, model, given.clone())
        launched, landed = counts(compiled)
        assert launched == landed
        seen.append(launched > before)
    return seen


def linked(twin: Place, *layers: torch.nn.Module, given: torch.Tensor = IDS) -> tuple[Any, Any]:
    """Compiled, and launched early once: it is known what the host does behind the guards."""
    model = torch.nn.Sequential(*layers)
    compiled = twin.compile(model, launch="early")
    assert launches(compiled, model, 4, given) == [False, False, False, True]
    return compiled, model


def outlast_a_guess(compiled: Any, model: Any) -> None:
    """The graph is seen running for long, in one call."""
    with faults.failing_call("cuStreamQuery", BUSY, nth=2, lasting=True):
        assert launches(compiled, model, 1) == [True]


@pytest.mark.parametrize(
    ("layer", "given", "looked_at"),
    [(torch.nn.Embedding(6, 4), IDS, IDS.nbytes), (torch.nn.Linear(6, 4), torch.ones(2, 6), 0)],
)
def test_a_guess_that_is_longer_than_the_graph_does_not_pay(
    layer: torch.nn.Module, given: torch.Tensor, looked_at: int
) -> None:
    """On the twin it has run by the time that the stream is asked."""
    with fresh("twin") as twin:
        compiled, model = linked(twin, layer, given=given)
        pauses = [True, False, True, False, False, True, *[False] * 4, True, *[False] * 8, True]
        assert launches(compiled, model, len(pauses), given) == pauses
        (graph,) = pygraph.report().graphs
        assert graph.early and graph.bytes_looked_at == looked_at * (1 + sum(pauses))


def test_a_guess_that_is_shorter_than_graph_and_guards_pays() -> None:
    with fresh("twin") as twin:
        more = (torch.nn.Linear(4, 4) for _ in range(50))  # for the guards
        compiled, model = linked(twin, torch.nn.Embedding(6, 4), *more)
        outlast_a_guess(compiled, model)
        # What the host does elsewhere may make a guess long, now and then.
        assert sum(launches(compiled, model, 16)) >= 12


def test_a_guess_that_is_longer_than_the_guards_does_not_pay() -> None:
    with fresh("twin") as twin:
        compiled, model = linked(twin, torch.nn.Embedding(6, 4))
        outlast_a_guess(compiled, model)
        with faults.slow_call("cuMemcpyDtoHAsync", 300_000):
            assert launches(compiled, model, 6) == [True, False, True, False, False, True]


@pytest.mark.parametrize(("seconds", "pays"), [(0.02, False), (0.3, True)])
def test_a_graph_has_to_outlast_what_the_host_does_behind_the_guards(
    seconds: float, pays: bool
) -> None:
    """There 0.1 seconds: the forward saves 51 tensors."""

    def pack(saved: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return saved

    def call() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            compiled(torch.ones(1, 4))

    layers = [torch.nn.Linear(4, 4) for _ in range(50)]  # for the guards
    with fresh("twin") as twin:
        compiled = twin.compile(torch.nn.Sequential(*layers), launch="early")
        for _ in range(4):
            call()
        assert counts(compiled) == (1, 1)
        with (
            faults.slow_call("cuStreamQuery", int(1e6 * seconds)),
            faults.failing_call("cuStreamQuery", BUSY, nth=2),
        ):
            call()
        launched, _ = counts(compiled)
        for _ in range(4):
            call()
        more = counts(compiled)[0] - launched
        assert more >= 3 if pays else more == 1


def test_how_long_a_graph_runs_is_not_told_behind_other_work() -> None:
    with fresh("twin") as twin:
        compiled, model = linked(twin, torch.nn.Linear(6, 4), given=torch.ones(2, 6))
        with faults.failing_call("cuStreamQuery", BUSY, lasting=True):
            assert any(launches(compiled, model, 3, torch.ones(2, 6)))
        assert sum(launches(compiled, model, 8, torch.ones(2, 6))) <= 4


def test_indices_that_cannot_be_looked_at(place: Place) -> None:
    table = inputs(place, 6, 4)

    def lookup(ids: Any) -> Any:
        return (torch.nn.functional.embedding(ids, table).sum(1),)

    many = 256 * 1024 // 8 + 2
    for shape, stride, early_calls in (
        ((4, 2), (2, 1), 2),
        ((4, 2), (1, 4), 0),  # not side by side
        ((many // 2, 2), (2, 1), 0),  # too many
    ):
        pygraph.reset()
        torch._dynamo.reset()
        compiled = place.compile(lookup)
        for _ in range(5):
            given = torch.randint(6, (8 * many,), device=place.torch).as_strided(shape, stride)
            check(compiled, lookup, given)
        assert counts(compiled) == (early_calls, early_calls), shape


def looked_up(x: Any, table: Any, ids: Any) -> Any:
    return torch.nn.functional.embedding(5 - ids, table) + x


def written(x: Any, table: Any, ids: Any) -> Any:
    table.add_(1)
    return x * table.sum()


@pytest.mark.parametrize("other", [looked_up, written])
def test_each_graph_of_a_callable_for_itself(place: Place, other: Callable[..., Any]) -> None:
    def either(x: Any, table: Any, ids: Any, mode: str) -> Any:
        return (x * 2 if mode == "plain" else other(x, table, ids),)

    compiled = place.compile(either)
    table, ids = inputs(place, 6, 4), torch.randint(6, (3,), device=place.torch)
    for mode in ("plain", "other", "plain", "other"):
        before = counts(compiled)
        for _ in range(6):
            x, same = inputs(place, 3, 4), table.clone()
            with torch.no_grad():
                found, expected = compiled(x, table, ids, mode), either(x, same, ids, mode)
            assert_bits(list(found), list(expected))
            assert_bits([table], [same])
        launched, landed = counts(compiled)
        assert launched == landed
        assert (landed > before[1]) == (mode == "plain")
    assert [graph.early for graph in pygraph.report().graphs] == [True, False]


def test_after_a_reset_nothing_is_launched(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    before = counts(compiled)
    pygraph.reset()
    warm(compiled, model, place, 5)
    assert counts(compiled) == before


def test_an_exception_ends_the_call(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)

    def fail() -> Callable[[], None]:
        raise RuntimeError("another one of the list")

    hooks = context_of(compiled).enter_exit_hooks
    hooks.append(fail)
    with pytest.raises(RuntimeError, match="another one"):
        compiled(inputs(place))
    assert pygraph.report().graphs[0].dropped == 1
    hooks.remove(fail)
    before = counts(compiled)
    warm(compiled, model, place, 6)
    assert counts(compiled)[1] > before[1]


def test_a_stance_without_dynamo(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    landed = counts(compiled)[1]
    with torch.compiler.set_stance("force_eager"):
        warm(compiled, model, place, 20)
    launched, now = counts(compiled)
    assert now == landed and launched <= landed + 5  # it guesses less and less
    warm(compiled, model, place, 40)
    assert counts(compiled)[1] > landed


def test_a_copy_of_the_callable(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    same = copy.deepcopy(compiled)
    assert counts(same) == (0, 0)
    warm(same, model, place, 2)
    warm(compiled, model, place, 2)


def test_nothing_is_kept_alive(place: Place) -> None:
    model = network(place)
    compiled = place.compile(model)
    warm(compiled, model, place, 5)
    weight, x = weakref.ref(model[0].weight), inputs(place)
    given = weakref.ref(x)
    with torch.no_grad():
        compiled(x)
    del x
    assert given() is None
    del compiled, model
    torch._dynamo.reset()
    pygraph.reset()
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("launch", ["always", "early"])
def test_threads_have_calls_of_their_own(place: Place, launch: str) -> None:
    model = network(place)
    compiled = place.compile(model, launch=launch)
    warm(compiled, model, place, 5)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                x = inputs(place)
                with torch.no_grad():
                    assert_bits([compiled(x)], [model(x)])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems


def test_a_callable_within_another(place: Place) -> None:
    inner = network(place)
    compiled = place.compile(inner)

    @torch._dynamo.disable
    def through(x: Any) -> Any:
        return compiled(x)

    def outer(x: Any) -> Any:
        y = x * 2
        return (through(y) + 1,)

    both = place.compile(outer)
    for _ in range(8):
        x = inputs(place)
        with torch.no_grad():
            assert_bits(list(both(x)), [inner(x * 2) + 1])
    for each in (compiled, both):
        launched, landed = counts(each)
        assert launched == landed == 5


# ------------------------------------------------------------------------- which graphs


SOURCE = """
triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', '''
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
''')

def call(args):
    arg0_1, = args
    args.clear()
    assert_size_stride(arg0_1, (4, ), (1, ))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((4, ), (1, ), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_fused_0.run(arg0_1, buf0, 4, stream=stream0)
        extern_kernels.mm(buf0, buf0, out=buf0)
        buf1 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf0)
    return (buf0, )

def benchmark_compiled_module(times=10):
    return print_performance(times)
"""


@pytest.mark.parametrize(
    ("old", "new", "harmless"),
    [
        ("", "", True),
        ("torch.float32)", "torch.float32).as_strided((3, ), (1, ))", True),
        ("empty_strided_cuda(", "mine(1).as_strided(", False),
        ("(in_ptr0 + (x0), xmask)", "(in_ptr0 + (tmp1))\n    tl.device_assert(tmp1 < 3)", False),
        ("extern_kernels.mm(", "extern_kernels.index_select(", False),
        ("_scaled_dot_product_flash_attention", "embedding", False),
        ("args.clear()", "args.clear()  # Original ATen: [aten._unsafe_index_put]", False),
        ("triton_poi_fused_0.run(", "user_kernel_0.run(", False),
        ("torch.ops.aten.", "torch.ops.mine.", False),
        ("args.clear()", "print(args)", False),
        ("def call(args)", "def other(args)", False),
        ("return (buf0, )", "return (", False),
    ],
)
def test_generated_code(tmp_path: Any, old: str, new: str, harmless: bool) -> None:
    source = SOURCE.replace(old, new) if old else SOURCE
    assert (early._of_source(source) is not None) is harmless


def test_generated_code_without_checks_of_indices() -> None:
    from torch._inductor import config

    with config.patch(assert_indirect_indexing=False):
        assert early._of_source(SOURCE) is None


def test_a_graph_of_something_else_than_operators() -> None:
    def number(x: Any) -> Any:
        return x.size(0) + 1

    graph = torch.fx.symbolic_trace(number)
    assert early.index_bounds(graph.forward) is None
    empty = torch.fx.GraphModule({}, torch.fx.Graph())
    empty.graph.call_function(torch.ops.higher_order.cond, ())
    empty.graph.output(None)
    assert early.index_bounds(empty.forward) is None


PARTITIONED = """
import torch
empty_strided_cuda = torch.empty_strided
async_compile = type("Compile", (), {"triton": staticmethod(lambda name, text: None)})

triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', '''
@triton.jit
def triton_poi_fused_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tl.device_assert(((0 <= tmp0) & (tmp0 < 9)) | ~(xmask), "index out of bounds: 0 <= tmp0 < 9")
    tl.store(out_ptr0 + (x0), tl.load(in_ptr1 + (tmp0), xmask), xmask)
''')

def partition_0(args):
    arg1_1, arg0_1 = args
    args.clear()
    buf0 = empty_strided_cuda((4, ), (1, ), torch.float32)
    triton_poi_fused_0.run(arg0_1, arg1_1, buf0, 4, stream=stream0)
    return (buf0, )

class Runner:
    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        return self.partitions[0]([arg1_1, arg0_1])
"""


def generated(folder: Any, source: str) -> dict[str, Any]:
    """The names of a module of generated code."""
    file = folder / "generated.py"
    file.write_text(source)
    names: dict[str, Any] = {"__file__": str(file), "__name__": "generated"}
    exec(source, names)
    return names


def test_the_arguments_of_a_partition_are_numbered_as_it_has_them(tmp_path: Any) -> None:
    names = generated(tmp_path, PARTITIONED)
    partition, runner = names["partition_0"], names["Runner"]()
    assert early.index_bounds(partition) == {1: 9}
    assert early.index_bounds(lambda args: partition(args)) == {1: 9}
    assert early.index_bounds(runner.call) is None


def test_a_method_of_generated_code_is_one_piece_of_code(tmp_path: Any) -> None:
    """Its function is found behind it, and is no second one."""
    whole, _, _ = PARTITIONED.partition("class Runner")
    names = generated(tmp_path, whole.replace("partition_0(args)", "call(self, args)"))
    assert early.index_bounds(types.MethodType(names["call"], object())) == {1: 9}


def test_a_callable_of_which_nothing_is_known() -> None:
    assert early.index_bounds(lambda arguments: arguments) is None
    assert not early.install(_engine.make_entry(print), early.Permit({}))
