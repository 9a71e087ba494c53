"""What a GPU's graphs do with random generators, piece by piece and without a GPU: the states in
memory (src/torch/random_state.h), and how a capture gets them (capturing/random.py)."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pygraph import _engine
from pygraph.capturing import random
from pygraph.capturing.cuda import Cuda
from pygraph.capturing.device import DEFAULT, CaptureFailed

OWN = _engine.DEFAULT_GENERATOR


class Philox(torch.Generator):
    """A generator with a seed and an offset, as a GPU's has; two may have them in common."""

    place: Any = torch.device("cpu")

    def __init__(self, seed: int, offset: int = 0, state: dict[str, int] | None = None) -> None:
        self.state = {"seed": seed, "offset": offset} if state is None else state
        self.moves = 0

    def __new__(cls, *_: Any) -> Philox:
        return super().__new__(cls)

    @property
    def device(self) -> Any:
        return self.place

    def initial_seed(self) -> int:
        return self.state["seed"]

    def get_offset(self) -> int:
        return self.state["offset"]

    def set_offset(self, offset: int) -> Philox:
        assert offset % 4 == 0
        self.state["offset"] = offset
        self.moves += 1
        return self


pytestmark = pytest.mark.usefixtures("calibrated")


def capture(space: Any, placement: Any, count: int) -> tuple[Any, list[int]]:
    """Copies all states to an output; regions: seed and offset of each, then the output."""
    space.begin(placement)
    places = [space.allocate(8) for _ in range(2 * count)]
    out = space.allocate(16 * count)
    stream = _engine.Stream(twin=True)
    _engine.begin_capture(stream.handle, twin=True)
    for number, place in enumerate(places):
        _engine.twin_copy(stream.handle, out + 8 * number, place, 8)
    return _engine.end_capture(stream.handle, twin=True), [*places, out]


def spec(kind: Any, value: int = 0) -> Any:
    return _engine.ArgumentSpec(kind=kind, value=value)


def passed(*same_as: int) -> list[Any]:
    return [spec(_engine.ArgumentKind.GENERATOR, value) for value in same_as]


def states(
    sources: Sequence[int], arguments: Sequence[Any], default: Any, increments: Sequence[int] = ()
) -> Any:
    """A call that returns the states that its kernels find, as (seed, offset) in int64."""
    count = len(sources)
    space = _engine.PhantomSpace(0, reserve_bytes=1 << 28, block_bytes=1 << 21, twin=True)
    a, in_a = capture(space, _engine.Placement.A, count)
    b, in_b = capture(space, _engine.Placement.B, count)
    sizes = [8] * (2 * count) + [16 * count]
    regions = [
        _engine.Region(in_a=left, in_b=right, bytes=size)
        for left, right, size in zip(in_a, in_b, sizes, strict=True)
    ]
    linked = _engine.link(
        a.handle, b.handle, regions, space.base, space.base + space.reserved_bytes, twin=True
    )
    assert not linked.problems
    result = _engine.ResultSpec(
        kind=_engine.ResultKind.WHOLE,
        sizes=[count, 2],
        strides=[2, 1],
        dtype_of=torch.empty(0, dtype=torch.int64),
    )
    increments = increments or [4 * (1 + i) for i in range(count)]
    draws = [
        _engine.Draw(
            seed_region=2 * i, offset_region=2 * i + 1, increment=increment, argument=source
        )
        for i, (source, increment) in enumerate(zip(sources, increments, strict=True))
    ]
    return _engine.TensorProgram.make(
        linked,
        twin=True,
        device_index=0,
        arguments=arguments,
        blocks=[_engine.OutputBlock(bytes=16 * count, regions=[2 * count])],
        results=[result],
        draws=draws,
        generator=default,
    )


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def check(call: Any, given: list[Any], drawn: Sequence[Philox]) -> None:
    """One run finds the states that the generators have, and moves each on by its share."""
    before = [(one.initial_seed(), one.get_offset()) for one in drawn]
    (found,) = call.run(given)
    assert found.tolist() == [[signed(seed), signed(offset)] for seed, offset in before]
    assert [one.get_offset() for one in drawn] == [
        offset + 4 * (1 + i) for i, (_, offset) in enumerate(before)
    ]
    assert [one.initial_seed() for one in drawn] == [seed for seed, _ in before]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 20])
def test_kernels_find_the_states_of_the_generators_of_the_call(count: int) -> None:
    """Few are filled by word, many are copied; seeds and offsets have 64 bits."""
    default = Philox(11, 1 << 34)
    sources = [OWN, *range(count - 1)] if count > 1 else [0]
    call = states(sources, passed(*range(count)), default)
    first = [Philox((1 << 63) + seed, 4 * seed) for seed in range(count)]
    other = [Philox(100 + seed, (1 << 40) + 8) for seed in range(count)]
    zero = [Philox(0) for _ in range(count)]
    for given in (first, first, other, zero, first, first, [*other[:-1], first[-1]], first):
        drawn = [default, *given[: count - 1]] if count > 1 else given
        check(call, given, drawn)
    first[0].state["seed"] += 5
    check(call, first, [default, *first[: count - 1]] if count > 1 else first)


def test_what_is_not_drawn_from_is_not_asked() -> None:
    class Mute(Philox):
        def initial_seed(self) -> int:
            raise AssertionError("asked")

    default = Philox(1)
    call = states([1], passed(0, 1), default)
    check(call, [mute := Mute(2), own := Philox(3)], [own])
    assert mute.moves == default.moves == 0


@pytest.mark.parametrize("which", [(0, 1), (OWN, 1)])
def test_generators_that_share_a_state_are_refused(which: tuple[int, int]) -> None:
    """Their numbers would depend on which draws first; nothing has happened to them then. Two that
    are only equal are served."""
    first = Philox(5, 8)
    shared = Philox(0, 0, first.state)
    default = first if which[0] == OWN else Philox(9)
    call = states(which, passed(0, 1), default)
    given = [Philox(77) if which[0] == OWN else first, shared]
    missed: list[Any] = []
    dispatcher = _engine.Dispatcher(lambda arguments: missed.append(list(arguments)), print)
    dispatcher.add(call)
    dispatcher(list(given))
    assert missed == [given]
    assert first.state == {"seed": 5, "offset": 8}
    equal = Philox(5, 8)
    check(call, [given[0], equal], [first, equal])


def test_which_objects_a_call_accepts() -> None:
    default = Philox(1)
    a, b = Philox(2), Philox(3)
    call = states([0, 2], passed(0, 0, 2, -1), default)
    assert call.accepts([a, a, b, default])
    for refused in (
        [a, b, b, default],
        [a, b, a, default],
        [a, a, a, default],
        [default, default, b, default],
        [a, a, default, default],
        [a, a, b, Philox(1)],
        [a, a, b, None],
        [a, a, 3, default],
        [a, a, torch.zeros(()), default],
        [a, a, b],
    ):
        assert not call.accepts(refused), refused
    elsewhere = Philox(4)
    elsewhere.place = torch.device("cuda", 1)
    assert not call.accepts([elsewhere, elsewhere, b, default])
    lost = Philox(4)
    lost.place = Unequal()
    assert not call.accepts([lost, lost, b, default])


def test_a_generator_without_a_number_is_any_devices() -> None:
    default, own = Philox(1), Philox(4)
    default.place = torch.device("cuda", 0)
    call = states([0], passed(0), default)
    for place, accepted in (("cuda:0", True), ("cuda", True), ("cuda:1", False), ("cpu", False)):
        own.place = torch.device(place)
        assert call.accepts([own]) is accepted, place
    default.place = 3
    with pytest.raises(ValueError, match=r"no torch\.Generator"):
        states([0], passed(0), default)


class Unequal:
    """Compares with nothing."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("incomparable")


def test_impossible_draws_are_rejected() -> None:
    default = Philox(1)
    with pytest.raises(ValueError, match="no random generator"):
        states([1], passed(0), default)
    with pytest.raises(ValueError, match="no random generator"):
        states([0], [spec(_engine.ArgumentKind.IGNORED)], default)
    with pytest.raises(ValueError, match="later argument"):
        states([0], passed(1, 1), default)
    with pytest.raises(ValueError, match=r"no torch\.Generator"):
        states([OWN], [], object())


def test_a_generator_that_refuses_fails_the_call() -> None:
    class Refusing(Philox):
        def get_offset(self) -> int:
            raise RuntimeError("not now")

    call = states([0], passed(0), Philox(1))
    with pytest.raises(RuntimeError, match="get_offset"):
        call.run([Refusing(2)])
    check(call, [own := Philox(3)], [own])


def test_no_object_is_found_by_an_address_outside_of_calls() -> None:
    own = torch.Generator()
    for address in (0, id(own), (1 << 64) - 1):
        with pytest.raises(ValueError, match="no generator"):
            _engine.twin_generator(address)


# ------------------------------------------------------------------------------- captures on a GPU


class Phantom:
    """Gives out places one after the other."""

    allocated = 0

    def make(self, count: int) -> None:
        self.allocated += count

    def allocations_from(self, first: int) -> list[tuple[int, int]]:
        return [(4096 * number, 512) for number in range(first, self.allocated)]


class Default:
    """A default generator, which has a state by name."""

    def __init__(self) -> None:
        self.state = "the program's"

    def graphsafe_get_state(self) -> str:
        return self.state

    def graphsafe_set_state(self, state: str) -> None:
        self.state = state

    def clone_state(self) -> str:
        return "a copy"


class Graph:
    """An empty torch.cuda.CUDAGraph; `places`: that it gives a state."""

    def __init__(self, phantom: Phantom, log: list[Any], default: Default, places: int) -> None:
        self.phantom, self.log, self.default, self.places = phantom, log, default, places

    def register_generator_state(self, generator: Any) -> None:
        self.log.append(generator)
        self.phantom.make(self.places)

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.log.append(("begin", self.default.state))
        self.phantom.make(2)

    def capture_end(self) -> None:
        self.log.append("end")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    phantom, log, default = Phantom(), [], Default()
    found = types.SimpleNamespace(phantom=phantom, log=log, default=default, places=2)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setattr(torch.cuda, "default_generators", [default])
    monkeypatch.setattr(
        torch.cuda, "CUDAGraph", lambda keep_graph: Graph(phantom, log, default, found.places)
    )
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(random.space, "stream_of", lambda *_: None)
    return found


@pytest.mark.parametrize("with_default", [True, False])
def test_a_capture_knows_whose_places_are_whose(gpu: Any, with_default: bool) -> None:
    """Those of generators that are passed are registered first; the default one's comes with the
    capture, and is left out if nothing is drawn from it."""
    gpu.phantom.make(3)  # somebody else's
    draws = {7: "g", 2: "h", **({DEFAULT: gpu.default} if with_default else {})}
    draws = dict(reversed(draws.items()))
    with random.generators_in_capture(0, gpu.phantom, draws) as places:
        assert gpu.default.state == "a copy"
        assert gpu.log == ["h", "g", ("begin", "a copy")]
    expected = {
        source: [(4096 * (first + i), 8) for i in range(2)]
        for source, first in [(2, 3), (7, 5), *([(DEFAULT, 7)] if with_default else [])]
    }
    assert places == expected
    assert gpu.log[-1] == "end"
    assert gpu.default.state == "the program's"


def test_a_failed_capture_ends_and_gives_the_state_back(gpu: Any) -> None:
    def fail() -> None:
        with random.generators_in_capture(0, gpu.phantom, {1: "g"}):
            gpu.default.graphsafe_set_state("lent")  # an operator that failed in between
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gpu.log[-1] == "end"
    assert gpu.default.state == "the program's"


@pytest.mark.parametrize("draws", [{1: "g"}, {DEFAULT: None}])
def test_an_unknown_way_to_keep_states_is_refused(gpu: Any, draws: dict[int, Any]) -> None:
    gpu.places = 1
    gpu.phantom.make = lambda count: setattr(gpu.phantom, "allocated", gpu.phantom.allocated + 1)
    with (
        pytest.raises(CaptureFailed, match="1 places"),
        random.generators_in_capture(0, gpu.phantom, draws),
    ):
        pass
    assert gpu.default.state == "the program's"
    assert not gpu.log or gpu.log[-1] != ("begin", "a copy")


@pytest.mark.parametrize("version", ["2.12.0+cu130", "2.15.0"])
def test_a_torch_with_states_per_capture_is_refused(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with (
        pytest.raises(CaptureFailed, match=f"torch {re.escape(version)} found, needed torch 2.11"),
        random.generators_in_capture(0, gpu.phantom, {DEFAULT: gpu.default}),
    ):
        pass
    assert not gpu.log and gpu.default.state == "the program's"


def test_how_far_a_gpus_generator_is_moved_on() -> None:
    gpu = Cuda(0)
    draw = gpu.draw(1, [5, 6], (3, 8), (3, 24))
    assert (draw.seed_region, draw.offset_region, draw.increment) == (5, 6, 16)
    with pytest.raises(CaptureFailed, match="another seed"):
        gpu.draw(1, [5, 6], (3, 8), (4, 24))
    with pytest.raises(CaptureFailed, match="set back"):
        gpu.draw(1, [5, 6], (3, 8), (3, 4))
    with pytest.raises(CaptureFailed, match="no capture"):
        gpu.draw(1, [], (3, 8), (3, 24))


def test_a_gpus_generator_is_set_back() -> None:
    class Seeded(Philox):
        def manual_seed(self, seed: int) -> Philox:
            self.state.update(seed=seed, offset=0)
            return self

    own = Seeded(5, 8)
    state = Cuda(0).generator_state(own)
    own.state.update(seed=9, offset=4)
    Cuda(0).restore_generator(own, state)
    assert own.state == {"seed": 5, "offset": 8}
