"""One call as a timeline: which call is traced, and what is in it. On the twin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pygraph
from pygraph import _engine
from pygraph.frontends.callable.captured import Captured
from pygraph.frontends.trace.timeline import DEVICE, HOST, HostSpan, TracedCall, spans_of
from pygraph.frontends.trace.watch import WARM, CallWatch, _Tracing
from pygraph.twin.operations import Operation

PROGRAM = ["bind", "allocation", "launch"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A module's code is compiled anew, not taken from the test before."""
    torch._dynamo.reset()
    pygraph.reset()
    yield
    torch._dynamo.reset()
    pygraph.reset()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def compiled(function: Any, launch: str) -> Any:
    return torch.compile(function, backend="pygraph", options={"device": "twin", "launch": launch})


def watched(build: Callable[[], Callable[[], Any]], calls: int = 12, **named: Any) -> CallWatch:
    watch = CallWatch(**named)
    with watch.watching():
        call = build()
        for _ in range(calls):
            call()
    return watch


def inference(launch: str) -> Callable[[], Callable[[], Any]]:
    def build() -> Callable[[], Any]:
        function = compiled(model(), launch)
        return torch.no_grad()(lambda: function(torch.randn(3, 4)))

    return build


def names(traced: TracedCall) -> list[str]:
    return [span.name for span in traced.spans]


def nested(traced: TracedCall) -> None:
    """Of two spans of one thread one is within the other, or behind it; and each has its end."""
    assert all(span.end < traced.spans[0].end for span in traced.spans[1:])
    for i, outer in enumerate(traced.spans):
        assert outer.start <= outer.end
        for inner in traced.spans[i + 1 :]:
            if inner.thread == outer.thread:
                assert inner.start >= outer.start
                assert inner.end <= outer.end or inner.start >= outer.end, (outer, inner)


def inside(traced: TracedCall, inner: str, outer: str) -> None:
    (one,) = (span for span in traced.spans if span.name == inner)
    (other,) = (span for span in traced.spans if span.name == outer)
    assert other.start <= one.start <= one.end <= other.end


def test_a_compiled_function_in_inference() -> None:
    traced = watched(inference("after_guards")).kept
    assert traced is not None
    assert (traced.function, traced.number) == ("Sequential", WARM)
    assert names(traced) == ["Sequential", "guards", "entry", *PROGRAM, "results"]
    nested(traced)
    inside(traced, "results", "entry")
    assert [work.name for work in traced.work] == [
        "aten.addmm.default",
        "aten.relu.default",
        "aten.addmm.default",
    ]
    starts = [work.start for work in traced.work]
    assert starts == sorted(starts)
    inside(traced, "launch", "entry")


def test_a_launch_on_a_guess_stands_in_front_of_the_guards() -> None:
    traced = watched(inference("always")).kept
    assert traced is not None
    order = ["Sequential", "guess", *PROGRAM, "guards", "entry", "results"]
    assert names(traced) == order
    nested(traced)
    inside(traced, "launch", "guess")


def test_a_forward_has_wrappers() -> None:
    def build() -> Callable[[], Any]:
        function = compiled(model(), "after_guards")
        return lambda: function(torch.randn(3, 4)).sum().backward()

    traced = watched(build).kept
    assert traced is not None
    order = ["Sequential", "guards", "entry", *PROGRAM, "wrappers", "results"]
    assert list(dict.fromkeys(names(traced))) == order  # it is launched in parts
    nested(traced)
    inside(traced, "results", "wrappers")


def test_a_captured_callable_compares_in_place_of_guards() -> None:
    def build() -> Callable[[], Any]:
        both = pygraph.capture(lambda a, b: a @ b + 1, device="twin")
        return lambda: both(torch.randn(3, 3), torch.randn(3, 3))

    traced = watched(build).kept
    assert traced is not None
    assert names(traced)[1:] == ["entry", "compare", *PROGRAM, "results"]
    nested(traced)
    assert [work.name for work in traced.work] == ["aten.mm.default", "aten.add.Tensor"]


def test_the_last_function_with_graphs_is_traced() -> None:
    def build() -> Callable[[], Any]:
        functions = [
            pygraph.capture(function, device="twin") for function in (torch.sin, torch.cos)
        ]
        numbers = iter(range(100))
        return lambda: functions[next(numbers) // 12](torch.randn(4))

    traced = watched(build, calls=24).kept
    assert traced is not None and [work.name for work in traced.work] == ["aten.cos.default"]


@pytest.mark.parametrize(("calls", "number"), [(4, 1), (9, 1), (10, 8), (30, 8)])
def test_a_call_behind_cold_caches_is_traced_where_there_is_one(calls: int, number: int) -> None:
    traced = watched(inference("after_guards"), calls).kept
    assert traced is not None and traced.number == number


def test_the_call_that_is_asked_for_is_traced() -> None:
    traced = watched(inference("after_guards"), wanted=(3,)).kept
    assert traced is not None and traced.number == 3
    torch._dynamo.reset()
    watch = watched(inference("after_guards"), wanted=(30,))
    assert watch.kept is None
    assert watch.problem() == "Sequential: 10 of 12 calls were steady"


def test_what_has_no_graph_is_named() -> None:
    def build() -> Callable[[], Any]:
        function = torch.compile(torch.sin, backend="eager")
        return lambda: function(torch.randn(4))

    watch = watched(build)
    assert watch.kept is None and watch.problem() == "sin: 0 of 12 calls were steady"
    assert "no function that PyGraph compiles" in CallWatch().problem()


def test_a_call_that_raises_is_not_traced_and_those_behind_it_are() -> None:
    def build() -> Callable[[], Any]:
        function = compiled(model(), "after_guards")
        numbers = iter(range(100))

        @torch.no_grad()
        def call() -> None:
            if next(numbers) == 2:
                with pytest.raises(Exception, match=r"shape|size"):
                    function(torch.randn(3, 5))
            function(torch.randn(3, 4))

        return call

    traced = watched(build).kept
    assert traced is not None and names(traced)[1:3] == ["guards", "entry"]


def test_nothing_stays_behind() -> None:
    before = torch.compile, Operation.run
    watched(inference("after_guards"))
    assert (torch.compile, Operation.run) == before
    assert "__call__" not in vars(Captured)


def test_the_json_has_both_tracks_from_the_beginning_of_the_call() -> None:
    traced = watched(inference("after_guards")).kept
    assert traced is not None
    found = json.loads(json.dumps(traced.to_dict()))
    events = found["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "host",
        "the CPU twin",
    }
    assert [e["name"] for e in complete if e["pid"] == HOST] == names(traced)
    assert len([e for e in complete if e["pid"] == DEVICE]) == len(traced.work) == 3
    assert complete[0]["ts"] == 0 and all(e["ts"] >= 0 <= e["dur"] for e in complete)
    assert max(e["ts"] + e["dur"] for e in complete) <= complete[0]["dur"] * 1.001
    assert found["otherData"]["function"] == "Sequential"
    assert "call 8 of Sequential" in str(traced) and "3 kernels" in str(traced)


def test_work_on_a_gpu_stands_on_the_same_clock() -> None:
    tracing = _Tracing()
    with tracing:
        pass
    tracing._events.base_ns = 1_000_000 + tracing._apart
    tracing._events += [
        {"cat": "kernel", "name": "k", "ts": 5.25, "dur": 2.0, "args": {"stream": 7}},
        {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1.0, "dur": 1.0},
    ]
    (work,) = tracing._on_gpu()
    assert (work.name, work.start, work.end, work.stream) == ("k", 1_005_250, 1_007_250, 7)


# ------------------------------------------------------------------------------------ spans


def spans(*marks: tuple[str, bool, int], guarded: bool = False) -> list[tuple[str, int, int]]:
    call = HostSpan("call", 1, 0, 100)
    found = spans_of(call, [(*mark, 1) for mark in marks], guarded)
    return [(span.name, span.start, span.end) for span in found]


def test_what_an_error_has_left_open_ends_with_what_is_around_it() -> None:
    marks = ("entry", True, 1), ("bind", True, 2), ("entry", False, 5), ("dispatcher", True, 6)
    assert spans(*marks)[1:] == [("entry", 1, 5), ("bind", 2, 5), ("dispatcher", 6, 100)]


def test_parts_of_a_graph_take_memory_and_launch_in_turn() -> None:
    marks = [("bind", True, 1)]
    for at in (2, 4):
        marks += [("allocation", True, at), ("launch", True, at + 1)]
    assert spans(*marks, ("launch", False, 9))[1:] == [
        ("bind", 1, 2),
        ("allocation", 2, 3),
        ("launch", 3, 4),
        ("allocation", 4, 5),
        ("launch", 5, 9),
    ]


def test_without_an_entry_point_wrappers_count_among_the_guards() -> None:
    marks = ("guess", True, 1), ("guess", False, 3), ("dispatcher", True, 7)
    assert spans(*marks, guarded=True)[2] == ("guards and wrappers", 3, 7)
    assert spans(*marks)[2] == ("dispatcher", 7, 100)


def test_an_end_without_a_beginning_is_nothing() -> None:
    assert spans(("results", False, 3)) == [("call", 0, 100)]


def test_a_timeline_that_is_gone_does_not_listen() -> None:
    _engine.Timeline().listen()
    timeline = _engine.Timeline()
    function = pygraph.capture(torch.sin, device="twin")
    for _ in range(5):
        function(torch.randn(4))
    assert timeline.marks == []
    timeline.listen()
    function(torch.randn(4))
    _engine.Timeline.stop()
    marks = timeline.marks
    function(torch.randn(4))
    assert len(marks) == len(timeline.marks) > 5
