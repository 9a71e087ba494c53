"""Graphs that are launched in parts, so that memory changes hands in between: a backward gives up
what the forward saved for it as it goes, as it does uncaptured."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from places import Place, assert_bits

import pygraph
from pygraph import _engine
from pygraph.capturing import record, tensors
from pygraph.capturing.lanes import NO_LANES, LaneOptions
from pygraph.capturing.twin import Twin
from pygraph.reporting import GraphReport
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.runtime.training_pair import PairMember, Role
from pygraph.twin import faults

ROWS = 128
LAYERS = 8
TENSOR_BYTES = ROWS * ROWS * 4
NEVER = (1 << 64) - 1  #: a slack with which nothing is cut
PLACE = Place("twin")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    pygraph.reset()
    yield
    _engine.twin_count_calls(False)
    _engine.twin_reset_faults()
    pygraph.reset()


# ------------------------------------------------------------------------- a callable of a list


def backward(arguments: list[Any]) -> list[Any]:
    """As a compiled backward does, lets go of each saved tensor when it has made a result of it."""
    *saved, gradient = arguments
    arguments.clear()
    results = []
    while saved:
        results.append(torch.mm(saved.pop().t(), gradient))
        gradient = torch.relu(gradient) * 0.5
    return [*results, gradient]


def writing_backward(arguments: list[Any]) -> list[Any]:
    """The same, and writes to what was saved, as code does that uses memory once more."""
    *saved, gradient = arguments
    arguments.clear()
    results = []
    while saved:
        results.append(torch.mm(saved.pop().mul_(0.25).t(), gradient))
        gradient = torch.relu(gradient) * 0.5
    return [*results, gradient]


def made() -> list[torch.Tensor]:
    return [torch.randn(ROWS, ROWS) for _ in range(LAYERS + 1)]


def deployed(
    function: Callable[[list[Any]], list[Any]] = backward, lanes: LaneOptions = NO_LANES
) -> CompiledGraph:
    graph = PLACE.graphed(function, role=Role.BACKWARD, lanes=lanes)
    with torch.no_grad():
        for _ in range(4):
            given = made()
            copies = [tensors.static_copy(value) for value in given]
            assert_bits(graph.dispatcher(given), function(copies))
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 2), report.reason
    return graph


def note_ends(given: list[torch.Tensor]) -> dict[int, int]:
    """Per argument, how many graphs had been launched when it was let go, from now on."""
    ends: dict[int, int] = {}

    def note(index: int) -> None:
        ends[index] = _engine.twin_calls().get("cuGraphLaunch", 0)

    for index, value in enumerate(given):
        weakref.finalize(value, note, index)
    _engine.twin_count_calls(True)
    return ends


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_was_saved_is_let_go_of_between_the_parts(lanes: int) -> None:
    graph = deployed(lanes=LaneOptions((lanes,)))
    assert graph.report.lanes == lanes
    parts = graph.report.parts
    assert parts > LAYERS // 2
    with torch.no_grad():
        given = made()
        copies = [value.clone() for value in given]
        ends = note_ends(given)
        assert_bits(graph.dispatcher(given), backward(copies))
    assert given == []
    assert _engine.twin_calls()["cuGraphLaunch"] == parts
    assert sorted(ends) == list(range(LAYERS + 1))
    in_order_of_use = [ends[index] for index in reversed(range(LAYERS))]
    assert in_order_of_use == sorted(in_order_of_use)
    assert in_order_of_use[0] == 1
    assert len(set(in_order_of_use)) > LAYERS // 2


def peak_tensors(call: Callable[[list[Any]], list[Any]]) -> float:
    """The most memory that a call takes, with its arguments, in sizes of one of these."""
    with torch.no_grad(), torch.autograd.profiler.profile(profile_memory=True) as profile:
        given = made()
        call(given)
    steps = [
        (event.start_ns(), event.nbytes())
        for event in profile.kineto_results.events()
        if event.name() == "[memory]"
    ]
    now = peak = 0
    for _, nbytes in sorted(steps):
        now += nbytes
        peak = max(peak, now)
    return peak / TENSOR_BYTES


def test_memory_peaks_where_the_callables_does(monkeypatch: pytest.MonkeyPatch) -> None:
    uncaptured = peak_tensors(backward)
    in_parts = peak_tensors(deployed().dispatcher)
    wide = deployed(lanes=LaneOptions((2,)))
    in_lanes = peak_tensors(wide.dispatcher)
    assert wide.report.lanes == 2
    monkeypatch.setattr(Twin, "peak_slack", lambda self: NEVER)
    whole = deployed()
    assert whole.report.parts == 1
    assert peak_tensors(whole.dispatcher) >= 2 * LAYERS + 1
    assert in_parts <= uncaptured + 1.5
    assert in_lanes <= in_parts + 1
    assert in_parts < 1.6 * LAYERS


def test_what_a_capture_allocates_is_no_memory_that_a_peak_is_judged_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    capture = record.record

    def noted(*given: Any) -> Any:
        done.append("capture")
        return capture(*given)

    monkeypatch.setattr(record, "record", noted)
    monkeypatch.setattr(Twin, "peak_slack", lambda self: done.append("slack") or 1)
    assert deployed().report.parts > 1
    assert done == ["slack", "capture", "capture"]


def backward_of_a_large_result(arguments: list[Any]) -> list[Any]:
    large = arguments.pop()
    arguments.append(large.view(-1, ROWS, ROWS).sum(0))
    del large
    return backward(arguments)


def test_memory_that_somebody_holds_is_no_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that autograd keeps until the backward is done: parts behind the first one must
    not count on its memory."""
    held: list[torch.Tensor] = []

    def with_a_large_one() -> list[torch.Tensor]:
        held[:] = [torch.randn(2 * LAYERS * ROWS, ROWS)]
        return [*(torch.randn(ROWS, ROWS) for _ in range(LAYERS)), *held]

    monkeypatch.setattr(sys.modules[__name__], "made", with_a_large_one)
    uncaptured = peak_tensors(backward_of_a_large_result)
    graph = deployed(backward_of_a_large_result)
    assert graph.report.parts > LAYERS // 2
    assert peak_tensors(graph.dispatcher) <= uncaptured + 2.5


def test_who_else_holds_an_argument() -> None:
    member = PairMember(Role.BACKWARD, None, (), Twin())
    with torch.no_grad():
        views = (each.detach() for each in torch.randn(2, 3).unbind())
        given = [torch.randn(3), torch.randn(3), *views, torch.randn(3), 3]
    assert member.held(given) == frozenset()
    saved_as_well, kept = given[1].detach(), given[3]  # noqa: F841
    assert member.held(given) == {1, 3}
    other_view = given[2][1:]  # noqa: F841
    assert member.held(given) == {1, 2, 3}
    assert PairMember(Role.FORWARD, None, (), Twin()).held(given) == frozenset()


def test_who_holds_an_argument_keeps_it() -> None:
    graph = deployed()
    with torch.no_grad():
        held = made()
        copies = [value.clone() for value in held]
        assert_bits(graph.dispatcher(list(held)), backward(list(copies)))
        assert_bits(held, copies)
    assert graph.refresh_report().replays == 3


def test_arguments_that_share_memory_are_no_trouble() -> None:
    graph = deployed()
    with torch.no_grad():
        one = torch.randn(ROWS, ROWS)
        for given in ([one] * (LAYERS + 1), [one.view(ROWS, ROWS) for _ in range(LAYERS + 1)]):
            copies = [value.clone() for value in given]
            assert_bits(graph.dispatcher(given), backward(copies))


def test_an_argument_that_a_copy_is_written_back_to_stays_to_the_end() -> None:
    """A misaligned argument is replaced by a copy for the call; if the graph writes it, the copy
    goes back into it behind the last part."""
    with faults.alignment_demand(64):
        graph = deployed(writing_backward)
        parts = graph.report.parts
        assert parts > 2
        with torch.no_grad():
            memory = torch.randn(ROWS * ROWS + 1)
            given = made()
            given[-2] = memory[1:].view(ROWS, ROWS)  # the first one to be used
            copies = [value.clone() for value in given]
            ends = note_ends(given)
            assert_bits(graph.dispatcher(given), writing_backward(list(copies)))
    report = graph.refresh_report()
    assert (report.state, report.copies) == ("graphed", 1), report.reason
    assert tensors.same_bits(memory[1:].view(ROWS, ROWS), copies[-2])
    assert ends[LAYERS - 2] < parts, "the one that is used next is let go of early"
    assert ends[LAYERS - 1] == parts


@pytest.mark.parametrize("nth", [2, 3])
def test_a_part_that_fails_is_told_and_costs_the_graph(nth: int) -> None:
    """Of what was let go nothing is left to call the callable with."""
    graph = deployed()
    with torch.no_grad():
        with (
            faults.failing_call("cuGraphLaunch", 1, nth),
            pytest.raises(RuntimeError, match="let go of them"),
        ):
            graph.dispatcher(made())
        for _ in range(2):
            given = made()
            assert_bits(graph.dispatcher(list(given)), backward(list(given)))


def test_a_first_part_that_fails_is_made_good_by_the_callable() -> None:
    graph = deployed()
    with torch.no_grad(), faults.failing_call("cuGraphLaunch", 1, 1):
        given = made()
        assert_bits(graph.dispatcher(list(given)), backward(list(given)))
    assert graph.refresh_report().state == "fallback"


#: Memory runs out behind the first part: when the first argument is let go of, the process may grow
#: by less than one result from then on. (What is freed goes back to the system at once.)
SHORT_OF_MEMORY = """
import ctypes, resource, weakref
import torch
from places import Place, assert_bits
from pygraph.runtime.training_pair import PairMember, Role

M_MMAP_THRESHOLD = -3
assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1
SIDE = 1024  # 4 MiB
torch.set_num_threads(1)

def backward(arguments):
    *saved, gradient = arguments
    arguments.clear()
    results = []
    while saved:
        results.append(torch.mm(saved.pop().t(), gradient))
        gradient = torch.relu(gradient) * 0.5
    return [*results, gradient]

def made():
    return [torch.randn(16, SIDE) for _ in range(4)]

def limit_growth():
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 20), LARGE))
    limited.append(True)

_, LARGE = resource.getrlimit(resource.RLIMIT_AS)
limited = []
with torch.no_grad():
    graph = Place("twin").graphed(backward, role=Role.BACKWARD)
    for _ in range(4):
        given = made()
        assert_bits(graph.dispatcher(list(given)), backward(list(given)))
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 2), report.reason
    assert report.parts > 1
    given = made()
    weakref.finalize(given[-2], limit_growth)
    try:
        graph.dispatcher(given)
        said = None
    except torch.OutOfMemoryError as error:
        said = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (LARGE, LARGE))
    assert limited, "the limit was never set"
    assert said is not None and "no memory" in said, said
    for _ in range(2):
        given = made()
        assert_bits(graph.dispatcher(list(given)), backward(list(given)))
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 5), (report.state, report.replays)
print("told")
"""


def test_memory_that_runs_out_between_two_parts_is_told_as_torch_does() -> None:
    child = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "told"


# ------------------------------------------------------------------------- torch.compile


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


def batch() -> torch.Tensor:
    return torch.randn(ROWS, 64, requires_grad=True)


def gradients(net: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    found = [x.grad, *(parameter.grad for parameter in net.parameters())]
    for tensor in (x, *net.parameters()):
        tensor.grad = None
    assert all(isinstance(each, torch.Tensor) for each in found)
    return [each for each in found if each is not None]


class Trained:
    """A network on the twin, forward and backward graphed, and the same one by aot_eager."""

    def __init__(self) -> None:
        self.net, self.other = network(), network()
        self.mine = torch.compile(self.net, backend="pygraph", options={"device": "twin"})
        self.theirs = torch.compile(self.other, backend="aot_eager")
        for _ in range(4):
            self.compare(lambda run, x: run(x).square().sum().backward())
        assert self.backward.state == "graphed", self.backward.reason
        assert self.backward.replays == 2

    @property
    def backward(self) -> GraphReport:
        (report,) = (g for g in pygraph.report().graphs if "backward" in g.name)
        return report

    def compare(self, step: Callable[[Any, torch.Tensor], None]) -> None:
        x = batch()
        y = x.detach().clone().requires_grad_()
        step(self.mine, x)
        step(self.theirs, y)
        assert_bits(gradients(self.net, x), gradients(self.other, y))


def test_a_backward_is_cut_and_says_so() -> None:
    trained = Trained()
    assert trained.backward.parts > 1
    assert f"{trained.backward.parts} parts" in str(pygraph.report())


def test_a_graph_that_is_retained_is_gone_through_twice() -> None:
    # With donated buffers torch itself refuses to retain a compiled function's graph.
    with torch._functorch.config.patch(donated_buffer=False):
        trained = Trained()
        replays = trained.backward.replays
        assert trained.backward.parts > 1

        def step(run: Any, x: torch.Tensor) -> None:
            loss = run(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward(torch.tensor(2.0))

        trained.compare(step)
        assert trained.backward.replays == replays + 2
        trained.compare(lambda run, x: run(x).square().sum().backward())


def test_saved_tensors_that_somebody_holds_stay_what_they_are() -> None:
    trained = Trained()
    replays = trained.backward.replays
    held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held.append((tensor, tensor.detach().clone()))
        return tensor

    def step(run: Any, x: torch.Tensor) -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = run(x).square().sum()
        loss.backward()

    trained.compare(step)
    assert trained.backward.replays == replays + 1
    assert len(held) > 8
    for tensor, copy in held:
        assert tensors.same_bits(tensor.detach(), copy)
