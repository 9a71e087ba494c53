"""Random generators among the arguments of a callable: a graph draws from those of each call, as
the callable would, and leaves them as it would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from torch._prims.rng_prims import graphsafe_run_with_rng_state as run_with
from torch.utils.checkpoint import checkpoint
from training_support import Compile, agree, fresh, generator_state, gradients, serves

from pygraph import _engine
from pygraph.capturing import generators, reference
from pygraph.capturing.device import DEFAULT
from pygraph.capturing.lanes import LaneOptions
from pygraph.reporting import FALLBACK, GRAPHED
from pygraph.runtime.compiled_graph import CompiledGraph

N = 12
Arguments = list[Any]
Function = Callable[[Arguments], list[Any]]

_dropout = torch.ops.aten.native_dropout.default


def lent(op: Any, *args: Any, rng_state: torch.Generator, **kwargs: Any) -> Any:
    """What torch does on a GPU, for generators that cannot lend their states."""
    default = torch.random.default_generator
    own, state = default.get_state(), rng_state.get_state()
    default.set_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        rng_state.set_state(default.get_state())
        default.set_state(own)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "twin":
        monkeypatch.setitem(run_with.py_kernels, torch._C.DispatchKey.BackendSelect, lent)
        run_with._dispatch_cache.clear()
    with fresh(request.param) as here, torch.no_grad():
        yield here
    run_with._dispatch_cache.clear()


def generator(place: Place, seed: int) -> torch.Generator:
    return torch.Generator(default_of(place).device).manual_seed(seed)


def default_of(place: Place) -> torch.Generator:
    if place.name == "twin":
        return torch.random.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[0]


def rand(x: torch.Tensor, source: torch.Generator | None = None) -> torch.Tensor:
    return torch.rand(N, generator=source, device=x.device)


def call(place: Place, graph: CompiledGraph, function: Function, arguments: Arguments) -> list[Any]:
    """Calls the graph and, from the same states, the function: both must return the same and leave
    all generators in the same states."""
    default = default_of(place)
    before = default.get_state()
    copies: dict[int, Any] = {id(default): default}
    for argument in arguments:
        if isinstance(argument, torch.Generator) and id(argument) not in copies:
            copies[id(argument)] = argument.clone_state()
    expected = function([copies.get(id(argument), argument) for argument in arguments])
    after = default.get_state()
    default.set_state(before)
    found = graph.dispatcher(list(arguments))
    assert_bits(found, expected)
    assert torch.equal(default.get_state(), after)
    for argument in arguments:
        if isinstance(argument, torch.Generator):
            assert torch.equal(argument.get_state(), copies[id(argument)].get_state())
    return found


def replays(graph: CompiledGraph) -> int:
    return graph.refresh_report().replays


def linked(
    place: Place, function: Function, arguments: Callable[[], Arguments]
) -> tuple[CompiledGraph, Callable[..., list[Any]]]:
    """A graph that serves calls with such arguments, and what calls and compares it."""
    graph = place.graphed(function)
    for _ in range(3):
        call(place, graph, function, arguments())
    report = graph.refresh_report()
    assert (report.state, report.proof, report.replays) == (GRAPHED, "bit-equal", 1), report.blame
    return graph, lambda *given: call(place, graph, function, list(given))


def passed_and_default(given: Arguments) -> list[Any]:
    x, first, second = given
    return [
        x + rand(x) + rand(x, first),
        rand(x, second) - rand(x),
        torch.empty_like(x).normal_(generator=first) + rand(x),
    ]


def recomputed(given: Arguments) -> list[Any]:
    """As torch has it in a forward whose dropout a backward repeats."""
    x, first, second = given
    y, mask = run_with(_dropout, x, 0.5, True, rng_state=first)
    return [y, mask, rand(x), *run_with(_dropout, y + 1, 0.3, True, rng_state=second)]


DRAWING: dict[str, Function] = {
    "one": lambda given: [given[0] + rand(given[0], given[1])],
    "twice": lambda given: [rand(given[0], given[1]), rand(given[0], given[1]) * given[0]],
    "two": lambda given: [rand(given[0], given[1]) - rand(given[0], given[2]), given[0] + 1],
    "second of two": lambda given: [given[0] * rand(given[0], given[2])],
    "none of two": lambda given: [given[0] + 1],
    "only the default one": lambda given: [given[0] * rand(given[0])],
    "the default one between": passed_and_default,
    "lent to the default one": recomputed,
    "in place": lambda given: [torch.empty_like(given[0]).uniform_(1, 2, generator=given[1])],
    "many kinds": lambda given: [
        torch.bernoulli(given[0].sigmoid(), generator=given[1]),
        torch.randint(9, (4,), generator=given[2], device=given[0].device),
        torch.randn(5, generator=given[1], device=given[0].device),
    ],
}


@pytest.mark.parametrize("name", DRAWING)
def test_the_same_numbers_as_without_a_graph(place: Place, name: str) -> None:
    """In eight calls, two of which run uncaptured and one of which proves the graph."""
    function = DRAWING[name]
    graph = place.graphed(function)
    own = [generator(place, 1), generator(place, 2)]
    found = [call(place, graph, function, [place.randn(N), *own]) for _ in range(8)]
    report = graph.refresh_report()
    assert (report.state, report.proof, report.replays) == (GRAPHED, "bit-equal", 6), report.blame
    assert all(not torch.equal(found[-1][0], other[0]) for other in found[:-1])


def test_a_call_draws_from_the_generators_that_it_is_given(place: Place) -> None:
    function = DRAWING["two"]
    graph = place.graphed(function)
    own = [generator(place, seed) for seed in range(4)]
    for turn in range(12):
        arguments = [place.randn(N), own[turn % 4], own[(turn + 1 + turn // 6) % 4]]
        call(place, graph, function, arguments)
        call(place, graph, function, [place.randn(N), generator(place, turn), own[0]])
    assert replays(graph) == 22


def test_what_becomes_of_a_generator_between_calls_counts(place: Place) -> None:
    graph, again = linked(place, DRAWING["one"], lambda: [place.randn(N), generator(place, 3)])
    own, x = generator(place, 7), place.randn(N)
    remembered = own.get_state()
    first = again(x, own)
    torch.rand(5, generator=own, device=place.torch)
    again(x, own)
    own.set_state(remembered)
    assert_bits(again(x, own), first)
    own.manual_seed((1 << 63) + 11)
    again(x, own)
    own.manual_seed(7)
    assert_bits(again(x, own), first)
    assert replays(graph) == 6


def test_equal_states_of_two_generators_are_not_one(place: Place) -> None:
    graph, again = linked(
        place, DRAWING["two"], lambda: [place.randn(N), generator(place, 5), generator(place, 5)]
    )
    again(place.randn(N), generator(place, 8), generator(place, 8))
    assert replays(graph) == 2


def twice(given: Arguments) -> list[Any]:
    x, first, second = given
    return [rand(x, first), rand(x, second), rand(x), rand(x, first) + x]


def which(place: Place, names: str) -> Arguments:
    """Two generators as two letters: d is the default one, equal letters are the same one."""
    known = {"d": default_of(place)}
    for seed, letter in enumerate(names):
        known.setdefault(letter, generator(place, seed))
    return [known[letter] for letter in names]


@pytest.mark.parametrize("names", ["ab", "aa", "ad", "da", "dd"])
def test_generators_are_the_same_where_they_were_when_linked(place: Place, names: str) -> None:
    """Else the callable runs, and draws what it draws."""
    graph, again = linked(place, twice, lambda: [place.randn(N), *which(place, names)])
    served = 1
    for other in ("ab", "aa", "ad", "da", "dd", names):
        again(place.randn(N), *which(place, other))
        served += other == names
        assert replays(graph) == served, other


def test_generators_that_share_a_state_run_the_callable(place: Place) -> None:
    if place.name == "twin":
        pytest.skip("a CPU generator's state is its own; see test_generator_states.py")
    function = DRAWING["two"]
    graph, _ = linked(place, function, lambda: [place.randn(N), *which(place, "ab")])
    x, own = place.randn(N), generator(place, 9)
    copy = own.clone_state()
    expected = function([x, copy, copy.graphsafe_get_state()])
    assert_bits(graph.dispatcher([x, own, own.graphsafe_get_state()]), expected)
    assert torch.equal(own.get_state(), copy.get_state())
    assert replays(graph) == 1


def test_what_is_no_generator_is_not_served(place: Place) -> None:
    graph, again = linked(
        place, DRAWING["none of two"], lambda: [place.randn(N), *which(place, "ab")]
    )
    (program,) = (signature.program for signature in graph._signatures.with_program)
    x, (a, b) = place.randn(N), which(place, "ab")
    assert program.accepts([x, a, b])
    for other in (None, 3, x, "a", torch.Generator):
        assert not program.accepts([x, a, other])
        assert not program.accepts([x, other, b])
    again(x, None, b)
    assert replays(graph) == 1


def test_no_generator_is_found_by_its_address_behind_a_call(place: Place) -> None:
    """The twin's operators draw from objects that they find in memory: only while a call runs."""
    own = generator(place, 1)
    linked(place, DRAWING["one"], lambda: [place.randn(N), own])
    with pytest.raises(ValueError, match="no generator"):
        _engine.twin_generator(id(own))


def test_a_generator_without_a_number_is_any_devices(place: Place) -> None:
    if place.name == "twin":
        pytest.skip("the CPU has no number")
    own = generator(place, 1), torch.Generator("cuda").manual_seed(2)
    _, again = linked(place, DRAWING["two"], lambda: [place.randn(N), *own])
    again(place.randn(N), *own[::-1])


def test_another_device_is_named(place: Place) -> None:
    if place.name == "twin":
        pytest.skip("no generators but the CPU's")
    function = DRAWING["none of two"]
    graph = place.graphed(function)
    for _ in range(3):
        graph.dispatcher([place.randn(N), torch.Generator(), generator(place, 1)])
    report = graph.refresh_report()
    assert report.state == FALLBACK
    assert "argument 1 is a Generator" in (report.reason or "")


def test_a_repeated_proof_leaves_no_trace(place: Place) -> None:
    graph, again = linked(place, passed_and_default, lambda: [place.randn(N), *which(place, "ab")])
    own, x = which(place, "ab"), place.randn(N)
    copies = [one.clone_state() for one in own]
    before = default_of(place).get_state()
    expected = passed_and_default([x, *copies])
    after = generator_state(place)
    default_of(place).set_state(before)
    proofs = graph.report.proofs
    assert_bits(graph.prove_again([x, *own]), expected)
    assert graph.report.proofs == proofs + 1
    assert graph.report.proof == "bit-equal"
    assert torch.equal(generator_state(place), after)
    for left, right in zip(own, copies, strict=True):
        assert torch.equal(left.get_state(), right.get_state())
    again(x, *own)
    assert replays(graph) == 2


def test_a_capture_gets_copies(place: Place) -> None:
    """One for each generator, but the default one, which is the device's to guard."""
    default, seen = default_of(place), []

    def noting(given: Arguments) -> list[Any]:
        seen.append(given[1:])
        return twice(given[:3])

    graph, own = place.graphed(noting), which(place, "ab")
    for _ in range(2):
        graph.dispatcher([place.randn(N), *own, own[0], default])
    assert graph.report.state == GRAPHED, graph.report.blame
    real, captured = seen[:2], seen[2:]
    assert len(captured) == 2
    for a, b, again, last in captured:
        assert a is again and a is not b and last is default
        assert all(copy is not one for copy in (a, b) for given in real for one in given)


def test_a_callable_that_seeds_a_generator_gets_no_graph(place: Place) -> None:
    def seeding(given: Arguments) -> list[Any]:
        x, own = given
        result = rand(x, own)
        own.manual_seed(int(own.initial_seed() + 1))
        return [result]

    graph = place.graphed(seeding)
    own = generator(place, 1)
    for _ in range(4):
        call(place, graph, seeding, [place.randn(N), own])
    report = graph.refresh_report()
    assert report.state == FALLBACK
    if place.name == "twin":  # a GPU's generator refuses to be seeded while it is captured
        assert "argument 1, a random generator" in (report.reason or "")


def test_a_reference_knows_what_was_drawn_from(place: Place) -> None:
    device = place.graphed(lambda given: []).device
    a, b, default = *which(place, "ab"), default_of(place)
    arguments = [place.randn(N), a, b, a, default]
    assert generators.sources(arguments, device) == {DEFAULT: default, 1: a, 2: b}
    before = a.get_state()
    run = reference.take(lambda given: [rand(given[0], given[3])], arguments, [0], [], device)
    after = a.get_state()
    assert run.draws == [1]
    assert run.astray() is None
    rand(arguments[0], b)  # somebody else's
    rand(arguments[0], a)
    assert run.astray() == "argument 1, a random generator"
    others = b.get_state()
    run.rewind()
    assert torch.equal(a.get_state(), before)
    run.finish()
    assert torch.equal(a.get_state(), after)
    assert torch.equal(b.get_state(), others)
    assert run.astray() is None


@pytest.mark.parametrize("lanes", [LaneOptions(), LaneOptions((4,))])
def test_a_backward_repeats_what_its_forward_drew(place: Place, lanes: LaneOptions) -> None:
    """Torch's own order of things (runtime_wrappers.py): a generator for each side, which are equal
    as long as forwards and backwards take turns; else the backward's is set to what was saved."""

    def forward(given: Arguments) -> list[Any]:
        x, own = given
        return [run_with(_dropout, torch.tanh(x), 0.5, True, rng_state=own)[0]]

    def backward(given: Arguments) -> list[Any]:
        x, gradient, own = given
        y, mask = run_with(_dropout, torch.tanh(x), 0.5, True, rng_state=own)
        return [y, gradient * mask]

    there, back = place.graphed(forward, lanes=lanes), place.graphed(backward, lanes=lanes)
    ahead, behind = generator(place, 4), generator(place, 4)
    for step in range(8):
        pending = []
        for _ in range(1 + step % 3):
            x, state = place.randn(N), ahead.get_state()
            pending.append((x, state, call(place, there, forward, [x, ahead])[0]))
        for x, state, drawn in reversed(pending):
            if len(pending) > 1:
                behind.set_state(state)
            repeated, _ = call(place, back, backward, [x, place.randn(N), behind])
            assert torch.equal(drawn, repeated)
        behind.set_state(ahead.get_state())
        rand(pending[0][0])  # the default generator is not theirs
    for graph in (there, back):
        report = graph.refresh_report()
        assert (report.state, report.replays) == (GRAPHED, 13), report.blame


def test_checkpointed_dropout_in_training(place: Place) -> None:
    """As torch compiles it: both graphs take generators."""
    if place.name == "twin":
        pytest.skip("on the CPU torch saves states instead; see test_twin_checkpoint.py")

    def program(compiled: Compile) -> list[Any]:
        module = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Dropout(0.4), torch.nn.Tanh(), torch.nn.Dropout(0.2)
        ).to(place.torch)
        fast = compiled(lambda x: checkpoint(module, x, use_reentrant=False))
        kept: list[Any] = []
        for _ in range(8):
            module.zero_grad()
            result = fast(place.randn(5, 6))
            result.square().sum().backward()
            kept += [result, *gradients(module), place.randn(3)]
        return kept

    with torch.enable_grad():
        serves(agree(place, program), "forward", "backward", replays=5)
