"""A call as a timeline: the layers on the host, what ran on the device; as Chrome's trace events.

Times are nanoseconds of the steady clock, which is Python's time.perf_counter_ns().
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Mark = tuple[str, bool, int, int]
"""What _engine.Timeline has: layer, whether it begins or ends, time, thread."""
PROGRAM = ("bind", "allocation", "launch")
"""Layers of a program's launch: the next begins where one ends."""
ARRIVALS = ("entry", "dispatcher")
"""What a call of a compiled function comes to behind Dynamo's guards."""
HOST, DEVICE = 1, 2


@dataclass(frozen=True)
class HostSpan:
    name: str
    thread: int
    start: int
    end: int


@dataclass(frozen=True)
class DeviceWork:
    """A node of a graph, or what was launched without one."""

    name: str
    start: int
    end: int
    stream: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TracedCall:
    function: str
    number: int
    """Which of the function's steady calls."""
    device: str
    spans: Sequence[HostSpan]
    work: Sequence[DeviceWork]
    environment: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """What Perfetto and Chrome read. Microseconds since the call began."""
        first = self.spans[0].start
        threads = dict.fromkeys(span.thread for span in self.spans)
        numbers = {thread: n for n, thread in enumerate(threads, 1)}
        events = [
            _named("process_name", HOST, 0, "host"),
            _named("process_name", DEVICE, 0, self.device),
        ]
        events += [_named("thread_name", HOST, n, f"thread {n}") for n in numbers.values()]
        streams = dict.fromkeys(work.stream for work in self.work)
        events += [_named("thread_name", DEVICE, each, f"stream {each}") for each in streams]
        for span in self.spans:
            times = span.start - first, span.end - first
            events.append(_complete(span.name, HOST, numbers[span.thread], times))
        for work in self.work:
            times = work.start - first, work.end - first
            events.append(_complete(work.name, DEVICE, work.stream, times, work.details))
        return {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": {"function": self.function, "call": self.number, **self.environment},
        }

    def __str__(self) -> str:
        us: dict[str, float] = {}
        for span in self.spans[1:]:
            us[span.name] = us.get(span.name, 0.0) + (span.end - span.start) / 1e3
        layers = ", ".join(f"{name} {value:.1f}" for name, value in us.items())
        whole = (self.spans[0].end - self.spans[0].start) / 1e3
        ran = sum(work.end - work.start for work in self.work) / 1e3
        return (
            f"call {self.number} of {self.function}: {whole:.1f} us on the host\n"
            f"  us of its layers: {layers}\n"
            f"  {len(self.work)} kernels, copies and fills on {self.device}: {ran:.1f} us"
        )


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(
    name: str,
    process: int,
    thread: int,
    times: tuple[int, int],
    details: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    start, end = times
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": dict(details),
    }


def spans_of(call: HostSpan, marks: Iterable[Mark], guarded: bool) -> list[HostSpan]:
    """The call, and what it consisted of, outer ones first. `guarded`: Dynamo's guards stand in
    front of it."""
    found: list[HostSpan] = []
    open_ones: dict[int, list[tuple[str, int]]] = {}

    def close(thread: int, at: int) -> str:
        name, start = open_ones[thread].pop()
        found.append(HostSpan(name, thread, start, at))
        return name

    for layer, begins, at, thread in marks:
        stack = open_ones.setdefault(thread, [])
        if begins:
            if layer in PROGRAM and stack and stack[-1][0] in PROGRAM:
                close(thread, at)
            stack.append((layer, at))
        elif any(layer == name for name, _ in stack):
            while close(thread, at) != layer:  # an error has left inner ones open
                pass
    for thread, stack in open_ones.items():
        while stack:
            close(thread, call.end)
    if guarded:
        found += _guards(call, found)
    return [call, *sorted(found, key=lambda span: (span.start, -span.end))]


def _guards(call: HostSpan, spans: Sequence[HostSpan]) -> list[HostSpan]:
    """From the guess, or the call's beginning, to where the call arrives."""
    own = [span for span in spans if span.thread == call.thread]
    arrivals = [span for span in own if span.name in ARRIVALS]
    if not arrivals:
        return []
    arrival = min(arrivals, key=lambda span: span.start)
    start = max((span.end for span in own if span.name == "guess"), default=call.start)
    name = "guards" if arrival.name == "entry" else "guards and wrappers"
    return [HostSpan(name, call.thread, start, arrival.start)] if start <= arrival.start else []
