"""The host path on the CPU twin: the same C++ that runs on every call, with CPU tensors as device
memory and sample kernels that the twin really executes."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pygraph import _engine

N = 32
INVALID_VALUE = 1


pytestmark = pytest.mark.usefixtures("calibrated")


def capture(space: Any, placement: Any) -> tuple[Any, list[int]]:
    """x, w -> relu(2 x + w) through scratch; regions: x, w, scratch, out."""
    space.begin(placement)
    x, w, scratch, out = (space.allocate(4 * N) for _ in range(4))
    stream = _engine.Stream(twin=True)
    _engine.begin_capture(stream.handle, twin=True)
    _engine.twin_saxpy(stream.handle, scratch, x, w, 2.0, N)
    _engine.twin_relu(stream.handle, out, scratch, N)
    return _engine.end_capture(stream.handle, twin=True), [x, w, scratch, out]


def link() -> Any:
    space = _engine.PhantomSpace(0, reserve_bytes=1 << 28, block_bytes=1 << 21, twin=True)
    a, in_a = capture(space, _engine.Placement.A)
    b, in_b = capture(space, _engine.Placement.B)
    own, scratch = _engine.RegionRole.OWN, _engine.RegionRole.SCRATCH
    regions = [
        _engine.Region(in_a=left, in_b=right, bytes=4 * N, role=role, used=4 * N)
        for left, right, role in zip(in_a, in_b, (own, own, scratch, own), strict=True)
    ]
    linked = _engine.link(
        a.handle, b.handle, regions, space.base, space.base + space.reserved_bytes, twin=True
    )
    assert not linked.problems
    return linked


def argument(kind: Any, region: int = _engine.NO_REGION, **fields: Any) -> Any:
    return _engine.ArgumentSpec(**{"kind": kind, "region": region, "bytes": 4 * N, **fields})


def make(arguments: list[Any] | None = None, results: Sequence[Any] = ()) -> Any:
    """`results` are returned behind the graph's own."""
    patched = _engine.ArgumentKind.PATCHED
    arguments = arguments or [
        argument(patched, 0, alignment_mask=15),
        argument(patched, 1, alignment_mask=15),
    ]
    result = _engine.ResultSpec(
        kind=_engine.ResultKind.WHOLE, sizes=[4, 8], strides=[8, 1], dtype_of=torch.empty(0)
    )
    return _engine.TensorProgram.make(
        link(),
        twin=True,
        device_index=0,
        arguments=arguments,
        blocks=[_engine.OutputBlock(bytes=4 * N, regions=[3])],
        results=[result, *results],
    )


def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(2 * x + w).view(4, 8)


@pytest.mark.parametrize(
    ("taken", "numbers", "message"),
    [
        (1, 2, f"2 numbers are computed for an argument of {4 * N} bytes"),
        (2, N // 2, "a formula takes argument 2; there are 2"),
    ],
)
def test_formulas_that_do_not_fit_their_argument(taken: int, numbers: int, message: str) -> None:
    step = _engine.Formula.Step(_engine.Formula.Operation.ARGUMENT, argument=taken)
    given = {"staged": True, "computed": [_engine.Formula([step])] * numbers}
    patched = _engine.ArgumentKind.PATCHED
    with pytest.raises(ValueError, match=message):
        make([argument(patched, 0, **given), argument(patched, 1)])


def test_addresses_are_patched_and_outputs_kept() -> None:
    call = make()
    inputs = [(torch.randn(N), torch.randn(N)) for _ in range(20)]
    kept = [call.run([x, w])[0] for x, w in inputs]
    for (x, w), out in zip(inputs, kept, strict=True):
        assert torch.equal(out, expected(x, w))
    assert call.replays == 20
    assert call.bytes_copied == 0


def test_an_unmoved_call_updates_nothing_but_what_is_fresh() -> None:
    call = make()
    x, w = torch.randn(N), torch.randn(N)
    call.run([x, w])
    first = call.updates
    call.run([x, w])
    assert call.updates - first <= 2  # scratch and output may move; both nodes at most


def views(**fields: Any) -> list[Any]:
    """Rows 1 and 2 of the argument x and of the graph's result, and a result that is not there."""
    kinds = (_engine.ResultKind.ALIAS, 0, 16), (_engine.ResultKind.DERIVED, 0, 8)
    return [
        _engine.ResultSpec(
            kind=kind,
            index=index,
            object=lambda base, first=first: base.view(-1)[first : first + 8],
            sizes=[2, 4],
            strides=[1, 2],
            value=first,
            **fields,
        )
        for kind, index, first in kinds
    ]


def test_views_that_are_saved_are_as_if_detached() -> None:
    """They count writes together with what they view, and autograd does not know them."""
    call = make(results=views(strided=True))
    x = torch.nn.Parameter(torch.randn(2 * N)[N:])  # from the middle of its storage
    _, *made = call.run([x, torch.randn(N)])
    assert all(each._is_view() and each.shape == (8,) for each in made)

    call.note_saved([1, 2])
    result, *made = call.run([x, torch.randn(N)])
    for viewed, each, first in ((x, made[0], 16), (result, made[1], 8)):
        assert not each._is_view() and not each.requires_grad
        assert type(each) is torch.Tensor
        same = viewed.detach().as_strided((2, 4), (1, 2), viewed.storage_offset() + first)
        assert torch.equal(each, same)
        assert each.untyped_storage().data_ptr() == viewed.untyped_storage().data_ptr()
        before = each._version
        with torch.no_grad():
            viewed.add_(1)
        assert each._version == viewed._version == before + 1


def test_views_that_only_python_can_make_stay_its_own() -> None:
    call = make(results=views(strided=False))
    call.note_saved([0, 1, 2])
    _, *made = call.run([torch.randn(N), torch.randn(N)])
    assert all(each._is_view() for each in made)


def test_a_saved_result_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="result 1 is saved; there are 1"):
        make().note_saved([1])


def test_a_misaligned_argument_is_copied() -> None:
    call = make()
    x, w = torch.randn(N + 1)[1:], torch.randn(N)
    assert torch.equal(call.run([x, w])[0], expected(x, w))
    assert (call.copies, call.bytes_copied) == (1, 4 * N)
    x = torch.randn(N)
    assert torch.equal(call.run([x, w])[0], expected(x, w))
    assert call.copies == 1


def test_poison_does_not_show_in_the_result() -> None:
    call = make()
    x, w = torch.randn(N), torch.randn(N)
    for poison in (0xFF, 0x3C):
        assert torch.equal(call.run([x, w], poison)[0], expected(x, w))


def test_integers_must_be_those_of_the_capture() -> None:
    patched = _engine.ArgumentKind.PATCHED
    call = make(
        [
            argument(patched, 0),
            argument(_engine.ArgumentKind.INTEGER, value=7),
            argument(patched, 1),
        ]
    )
    x, w = torch.randn(N), torch.randn(N)
    assert call.accepts([x, 7, w])
    assert not call.accepts([x, 8, w])
    assert not call.accepts([x, 7])
    assert not call.accepts([7, 7, w])
    with pytest.raises(ValueError, match="captured with"):
        call.run([x, 8, w])


def number_argument(value: torch.Tensor, **fields: Any) -> Any:
    bits = int.from_bytes(value.reshape(1).view(torch.uint8).numpy().tobytes(), "little")
    fields = {"value": bits, "bytes": value.element_size(), "dtype_of": value, **fields}
    return argument(_engine.ArgumentKind.NUMBER, **fields)


def test_numbers_on_the_host_must_have_the_bits_of_the_capture() -> None:
    patched = _engine.ArgumentKind.PATCHED
    captured = torch.tensor(0.5)
    call = make([argument(patched, 0), number_argument(captured), argument(patched, 1)])
    x, w = torch.randn(N), torch.randn(N)
    assert call.accepts([x, torch.tensor(0.5), w])
    assert call.accepts([x, torch.tensor([1.0, 0.5])[1], w])
    assert torch.equal(call.run([x, torch.tensor(0.5), w])[0], expected(x, w))
    for other in (
        torch.tensor(-0.5),
        torch.tensor([0.5]),
        captured.view(torch.int32),
        torch.tensor(0.5, dtype=torch.float64),
        torch.empty((), device="meta"),
        torch._efficientzerotensor(()),
        0.5,
        None,
    ):
        assert not call.accepts([x, other, w]), other


def test_a_number_on_the_host_is_eight_bytes_at_most() -> None:
    wide = number_argument(torch.tensor(0.5), bytes=16)
    with pytest.raises(ValueError, match="at most 8"):
        make([argument(_engine.ArgumentKind.PATCHED, 0), wide])


def test_a_number_on_the_host_is_made_anew() -> None:
    number, int16 = _engine.ResultKind.NUMBER, torch.empty(0, dtype=torch.int16)
    call = make(results=[_engine.ResultSpec(kind=number, value=7, bytes=2, dtype_of=int16)])
    x, w = torch.randn(N), torch.randn(N)
    (_, first), (_, second) = call.run([x, w]), call.run([x, w])
    assert (first.dtype, first.shape, first.device.type) == (torch.int16, (), "cpu")
    first.fill_(1)
    assert second.item() == 7
    with pytest.raises(ValueError, match="at most 8"):
        make(results=[_engine.ResultSpec(kind=number, value=7, bytes=16, dtype_of=int16)])


def test_a_fixed_argument_must_not_move() -> None:
    w = torch.randn(N)
    call = make(
        [
            argument(_engine.ArgumentKind.PATCHED, 0),
            argument(_engine.ArgumentKind.FIXED, address=w.data_ptr()),
        ]
    )
    assert call.accepts([torch.randn(N), w])
    assert not call.accepts([torch.randn(N), w.clone()])


class Slow:
    """The Python side of a dispatcher."""

    def __init__(self) -> None:
        self.missed: list[Any] = []
        self.failures: list[str] = []
        self.dispatcher = _engine.Dispatcher(self.miss, self.fail)

    def miss(self, arguments: list[Any]) -> Any:
        self.missed.append(list(arguments))
        return ("missed",)

    def fail(self, arguments: list[Any], message: str) -> Any:
        self.failures.append(message)
        return ("failed", *arguments)


def test_the_dispatcher_serves_hits_and_passes_misses_on() -> None:
    slow = Slow()
    x, w = torch.randn(N), torch.randn(N)
    assert slow.dispatcher([x, w]) == ("missed",)
    slow.dispatcher.add(make())
    arguments = [x, w]
    (out,) = slow.dispatcher(arguments)
    assert torch.equal(out, expected(x, w))
    assert arguments == []  # torch's boxed calling convention
    assert slow.dispatcher([x]) == ("missed",)
    assert slow.dispatcher.calls == 3
    with pytest.raises(TypeError, match="list"):
        slow.dispatcher((x, w))


def test_a_held_dispatcher_serves_nothing() -> None:
    slow = Slow()
    slow.dispatcher.add(make())
    x, w = torch.randn(N), torch.randn(N)
    slow.dispatcher.hold(True)
    assert slow.dispatcher([x, w]) == ("missed",)
    assert not slow.dispatcher.busy
    slow.dispatcher.hold(False)
    assert torch.equal(slow.dispatcher([x, w])[0], expected(x, w))


@pytest.mark.parametrize(
    "symbol", ["cuGraphLaunch", "cuGraphInstantiate", "cuGraphExecKernelNodeSetParams"]
)
def test_a_failing_driver_call_ends_in_the_callable(symbol: str) -> None:
    slow = Slow()
    slow.dispatcher.add(make())
    x, w = torch.randn(N), torch.randn(N)
    if symbol != "cuGraphInstantiate":
        slow.dispatcher([x, w])
    _engine.twin_fail(symbol, INVALID_VALUE)
    x = torch.randn(N)
    result = slow.dispatcher([x, w])
    assert result[0] == "failed"
    assert result[1] is x
    assert "CUDA_ERROR_INVALID_VALUE" in slow.failures[0]
    assert slow.dispatcher([x, w]) == ("missed",)  # the graph was dropped


def test_cycles_through_the_dispatcher_are_collected() -> None:
    slow = Slow()
    slow.dispatcher.add(make())
    gone = weakref.ref(slow)
    del slow
    gc.collect()
    assert gone() is None


def test_ten_thousand_calls_leave_no_references() -> None:
    call = make()
    x, w = torch.randn(N), torch.randn(N)
    for _ in range(100):
        call.run([x, w])
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(10_000):
        call.run([x, w])
    gc.collect()
    assert len(gc.get_objects()) <= before + 10


def test_a_linked_graph_becomes_a_program_only_once() -> None:
    linked = link()
    linked.program()
    with pytest.raises(RuntimeError, match="already"):
        linked.program()


def connected(order: list[int], results: list[int], count: int = 2) -> tuple[Slow, Any]:
    slow = Slow()
    slow.dispatcher.add(make())
    entry = _engine.make_entry_point(lambda *arguments, **names: ("slow", arguments, names))
    _engine.connect_entry_point(entry, slow.dispatcher, count, order, results)
    return slow, entry


def test_an_entry_reorders_arguments_and_results() -> None:
    slow, entry = connected([2, 0], [0, 0], count=3)
    w, unused, x = torch.randn(N), torch.randn(N), torch.randn(N)
    first, second = entry(w, unused, x)
    assert first is second
    assert torch.equal(first, expected(x, w))
    assert slow.dispatcher.calls == 1
    assert not slow.missed


def test_an_entry_leaves_everything_else_to_the_slow_way() -> None:
    slow, entry = connected([0, 1], [])
    x, w = torch.randn(N), torch.randn(N)
    assert torch.equal(entry(x, w)[0], expected(x, w))
    assert entry(x) == ("slow", (x,), {})
    assert entry(x, w=w)[2] == {"w": w}
    assert entry(x, 3)[0] == "slow"  # no graph accepts an integer there
    slow.dispatcher.clear()
    assert entry(x, w)[0] == "slow"
    assert not slow.missed
    _engine.set_slow(entry, lambda *arguments: "other")
    assert entry(x, w) == "other"


def test_a_failing_replay_behind_an_entry_ends_in_the_callable() -> None:
    slow, entry = connected([0, 1], [])
    x, w = torch.randn(N), torch.randn(N)
    entry(x, w)
    _engine.twin_fail("cuGraphLaunch", INVALID_VALUE)
    assert entry(x, w)[0] == "failed"
    assert "CUDA_ERROR_INVALID_VALUE" in slow.failures[0]
    assert entry(x, w)[0] == "slow"


def test_an_entry_checks_what_it_is_connected_to() -> None:
    slow = Slow()
    entry = _engine.make_entry_point(print)
    with pytest.raises(IndexError, match="does not exist"):
        _engine.connect_entry_point(entry, slow.dispatcher, 2, [0, 2], [])
    with pytest.raises(TypeError, match="entry point"):
        _engine.connect_entry_point(print, slow.dispatcher, 2, [0, 1], [])


class Wrapping:
    """An argument that is made of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.inner = tensor


def test_an_entry_takes_arguments_apart_and_counts_versions() -> None:
    slow = Slow()
    slow.dispatcher.add(make())
    counted: list[tuple[Any, ...]] = []
    entry = _engine.make_entry_point(lambda *arguments: ("slow", arguments))
    _engine.connect_entry_point(
        entry,
        slow.dispatcher,
        2,
        [2, 1],
        [],
        parts=[(0, "inner")],
        counted=[1],
        count_up=counted.append,
    )
    x, w = torch.randn(N), torch.randn(N)
    wrapping = Wrapping(x)
    holders = sys.getrefcount(x)
    assert torch.equal(entry(wrapping, w)[0], expected(x, w))
    assert len(counted) == 1 and counted[0][0] is w
    assert entry(x, w)[0] == "slow"  # it has no such attribute
    assert entry(Wrapping(3), w)[0] == "slow"  # type: ignore[arg-type]
    assert len(counted) == 1 and sys.getrefcount(x) == holders


def test_an_entry_raises_what_counting_raises() -> None:
    slow = Slow()
    slow.dispatcher.add(make())

    def refuse(_: Any) -> None:
        raise ValueError("not these")

    entry = _engine.make_entry_point(print)
    _engine.connect_entry_point(entry, slow.dispatcher, 2, [0, 1], [], counted=[0], count_up=refuse)
    with pytest.raises(ValueError, match="not these"):
        entry(torch.randn(N), torch.randn(N))


def test_an_entry_checks_the_parts_that_it_is_given() -> None:
    slow, entry = Slow(), _engine.make_entry_point(print)
    connect = functools.partial(_engine.connect_entry_point, entry, slow.dispatcher, 2)
    with pytest.raises(IndexError, match="a part is of an argument that does not exist"):
        connect([0, 1], [], parts=[(2, "inner")])
    with pytest.raises(IndexError, match="an argument that does not exist"):
        connect([0, 3], [], parts=[(0, "inner")])
    with pytest.raises(IndexError, match="an argument that does not exist"):
        connect([0, 1], [], counted=[2])
    with pytest.raises(ValueError, match="wrappers that run"):
        connect([0, 1], None, counted=[1])
    with pytest.raises(TypeError):
        connect([0, 1], [], parts=[("inner", 0)])


def test_cycles_through_an_entry_are_collected() -> None:
    slow, entry = connected([0, 1], [])
    slow.entry = entry
    gone = weakref.ref(slow), weakref.ref(entry)
    del slow, entry
    gc.collect()
    assert gone[0]() is None and gone[1]() is None
