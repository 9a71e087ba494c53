#!/usr/bin/env python3
"""What a call costs the host, from the inside outwards: python benchmarks/host_path.py --out FILE

dispatcher       what Inductor calls: compare addresses, take outputs, launch, wrap them
entry point      the same straight from Dynamo's bytecode, past the wrappers
before wrappers  launched by the entry point, claimed by a function that stands for the wrappers
half             of that, until the function is called: what the GPU waits for
compiled         torch.compile with the graph: the guards, then the launch; until the call returns
guess            the same, with the launch before the guards, always
where it pays    past the guards, where all that they look at can be compared
lookup           compiled, and a lookup of 512 indices; "lookup guess" has to look at them first
drawing          compiled, and 16 random numbers; "drawing guess" has to look at the generator twice
... idle         of any of these, and a wait: what a caller waits for
                 (in the record, launched_before_guards and past_guards: of these calls, 0 to 1)
captured         the callable by pygraph.capture, which compares what it reads
frozen           the compiled callable by pygraph.freeze: no Dynamo, its guards' objects compared
past guards      the compiled callable itself, whose calls go the same way
state            of that, to compare them and the arguments
bypassed         no graph, and none to come: what the dispatcher adds to the callable
new size         no graph, and a size that was not seen before

The graph adds 1 to N tensors, so it has N arguments and N results and few nodes. Another one takes
numbers on the host, each call others: "brought" as they are, "computed" of each by three
operations, or "constant" where all calls have the same and nothing is brought. Of a model of N
layers that is captured, all that it reads is compared in each call; "module" is the model as it is,
"compiled" and "frozen" are of the model by torch.compile.
A compiled model of N layers is broken down by layers of its call (harness/call_layers.py), in
inference, and one of 8 with its backward: PyGraph's, torch's own modes, and Dynamo with a compiler
that does nothing.
On the CPU twin (--device twin) the kernels run within the call: what they take is in every figure.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for benchmarks/, from anywhere

import pygraph
from benchmarks.harness import call_layers, record
from benchmarks.harness.environment import environment
from benchmarks.harness.measure import percentile
from pygraph import _engine
from pygraph.frontends.compile import speculation
from pygraph.reporting import WARMING
from pygraph.runtime import devices
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.runtime.crossing import Crossing

WARM = 50
MOST_UNTIL_DECIDED = 4000
BETWEEN_WAITS = 16
"""Calls in a row: the GPU's queue must not fill."""


LAYERS = 1, 16, 32, 64
"""About 15 places each, two of them tensors."""
DEPTHS = (1, False), (8, False), (32, False), (8, True)
"""Layers of a compiled model, and whether it trains."""


class Clock:
    """Microseconds of calls, and of what they were up to a mark."""

    def __init__(self, wait: Any) -> None:
        self._wait = wait
        self.marked = 0.0

    def until_idle(self, results: Any) -> Any:
        self._wait()
        return results

    def mark(self) -> None:
        self.marked = time.perf_counter()

    def spend(self, call: Any, count: int, to_mark: bool = False) -> list[float]:
        """Of each call, in order."""
        spent = []
        for number in range(count):
            if number % BETWEEN_WAITS == 0:
                self._wait()
            started = time.perf_counter()
            results = call()
            ended = self.marked if to_mark else time.perf_counter()
            spent.append(1e6 * (ended - started))
            del results
        return spent

    def run(self, call: Any, count: int, to_mark: bool = False) -> dict[str, float]:
        spent = sorted(self.spend(call, WARM + count, to_mark)[WARM:])
        return {
            "median_us": statistics.median(spent),
            "p10_us": spent[len(spent) // 10],
            "p99_us": percentile(spent, 99),
            "worst_us": spent[-1],
        }


def device_of(kind: str) -> Any:
    target = devices.PLATFORMS[kind]
    problem = target.problem()
    if problem is not None:
        raise typer.BadParameter(problem)
    return target.device(0)


def measure(size: int, count: int, kind: str) -> dict[str, Any]:
    device = device_of(kind)
    where = torch.device("cpu" if kind == "twin" else "cuda")
    wait = device.synchronize

    def function(given: list[Any]) -> list[Any]:
        return list(torch._foreach_add(given, 1.0))

    graph = CompiledGraph(function, name="host path", device=device)
    arguments = [torch.randn(16, device=where) for _ in range(size)]
    for _ in range(4):
        found = graph.dispatcher(list(arguments))
    assert all(map(torch.equal, found, function(list(arguments)))), "not what the callable computes"
    assert graph.refresh_report().graphed, graph.report.blame
    del found
    clock = Clock(wait)

    def wrappers(*given: Any) -> Any:
        clock.mark()
        return graph.dispatcher(list(given))

    entry: Any = _engine.make_entry_point(wrappers)
    order = list(range(size))

    def connected(results: list[int] | None) -> Any:
        _engine.connect_entry_point(entry, graph.dispatcher, size, order, results)
        return lambda: entry(*arguments)

    before = graph.refresh_report().replays
    rows = {
        "callable": clock.run(lambda: function(list(arguments)), count),
        "dispatcher": clock.run(lambda: graph.dispatcher(list(arguments)), count),
        "entry point": clock.run(connected([]), count),
        "before wrappers": clock.run(connected(None), count),
        "half": clock.run(connected(None), count, to_mark=True),
    }
    assert graph.refresh_report().replays == before + 4 * (WARM + count), "not all were replays"
    nodes = graph.report.nodes
    captured = captured_call(lambda *given: function(list(given)), arguments, kind)
    rows["captured"] = clock.run(captured, count)
    rows |= compiled_rows(clock, kind, arguments, count)
    graph.release()
    rows["bypassed"] = clock.run(lambda: graph.dispatcher(list(arguments)), count)
    sizes = itertools.count()
    sized = CompiledGraph(lambda given: function(given[1:]), name="sizes", device=device)
    rows["new size"] = clock.run(lambda: sized.dispatcher([next(sizes), *arguments]), count)
    pygraph.reset()
    return {"arguments": size, "nodes": nodes, "rows": rows}


def until_decided(call: Any, clock: Clock) -> None:
    """Warms it up, until PyGraph has found out how its calls are served."""
    for number in range(MOST_UNTIL_DECIDED):
        if number % BETWEEN_WAITS == BETWEEN_WAITS - 1:
            clock.until_idle(None)
            graphs = pygraph.report().graphs
            if not any(each.undecided or each.state == WARMING for each in graphs):
                return
        call()


def captured_call(function: Any, arguments: list[Any], kind: str) -> Any:
    """A call of it that is replayed."""
    captured = pygraph.capture(function, device=kind)
    for _ in range(5):
        captured(*arguments)
    report = pygraph.report().graphs[-1]
    assert report.replays and report.graphed, report.blame
    return lambda: captured(*arguments)


def measure_layers(layers: int, count: int, kind: str) -> dict[str, Any]:
    """A model of so many layers, captured: what it takes to compare all that it reads."""
    clock = Clock(device_of(kind).synchronize)
    where = torch.device("cpu" if kind == "twin" else "cuda")
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers))).to(where)
    arguments = [torch.randn(1, 16, device=where)]
    captured = captured_call(model, arguments, kind)
    assert torch.equal(captured(), model(*arguments)), "not what the model computes"
    before = pygraph.report().replays
    rows = {
        "module": clock.run(lambda: model(*arguments), count),
        "captured": clock.run(captured, count),
        "captured, idle": clock.run(lambda: clock.until_idle(captured()), count),
    }
    assert pygraph.report().replays == before + 2 * (WARM + count), "not all were replays"
    rows |= frozen_rows(clock, kind, model, arguments, count)
    pygraph.reset()
    return {"layers": layers, "rows": rows}


def measure_call(layers: int, training: bool, count: int, kind: str) -> dict[str, Any]:
    """A compiled model of so many layers, in each mode: what each layer of its call takes."""
    wait = device_of(kind).synchronize
    clock = Clock(wait)
    found = {}
    with torch.set_grad_enabled(training):
        for mode, options in call_layers.modes(kind, training).items():
            torch._dynamo.reset()
            call = call_layers.LayeredCall(layers, training, kind, options)
            until_decided(call, clock)
            found[mode] = {
                "call": clock.run(call, count),
                "layers_us": call_layers.layers_us(call, count, wait),
            }
            assert mode != "pygraph" or pygraph.report().replays > 2 * count
            pygraph.reset()
    return {"layers": layers, "training": training, "modes": found}


def shown(each: dict[str, Any]) -> str:
    """A line for each mode: the call's time, and each layer with its share of their sum."""
    kind = "training" if each["training"] else "inference"
    lines = [f"a call of {each['layers']} layers, {kind}, us:"]
    for mode, found in each["modes"].items():
        whole = sum(found["layers_us"].values())
        parts = ", ".join(
            f"{name} {us:.1f} ({us / whole:.0%})" for name, us in found["layers_us"].items()
        )
        lines.append(f"  {mode} {found['call']['median_us']:.1f}: {parts}")
    return "\n".join(lines)


def frozen_rows(
    clock: Clock, kind: str, model: Any, arguments: list[Any], count: int
) -> dict[str, Any]:
    """A model that is compiled; frozen; and compiled, with calls that go past the guards."""
    torch._dynamo.reset()
    options = {"device": kind, "compiler": "aot", "launch": "after_guards"}
    compiled = torch.compile(model, backend="pygraph", options=options)
    fast = pygraph.freeze(compiled, *arguments)
    assert torch.equal(fast(*arguments), compiled(*arguments)), "not what the model computes"
    rows = {
        "compiled": clock.run(lambda: compiled(*arguments), count),
        "frozen": clock.run(lambda: fast(*arguments), count),
        "frozen, idle": clock.run(lambda: clock.until_idle(fast(*arguments)), count),
        "state": clock.run(lambda: fast.compared(*arguments), count),
    }
    assert not fast.misses, fast.reason
    torch._dynamo.reset()
    options |= {"launch": "before_guards", "select": "always"}
    led = torch.compile(model, backend="pygraph", options=options)
    for _ in range(8):
        led(*arguments)
    assert pygraph.report().graphs[-1].past_guards, "guards remain"
    assert torch.equal(led(*arguments), compiled(*arguments)), "not what the model computes"
    rows["past guards"] = clock.run(lambda: led(*arguments), count)
    rows["past guards, idle"] = clock.run(lambda: clock.until_idle(led(*arguments)), count)
    return rows


def measure_numbers(numbers: int, count: int, kind: str) -> dict[str, Any]:
    """The dispatcher with one tensor, and as many numbers."""
    device = device_of(kind)
    clock = Clock(device.synchronize)
    x = torch.randn(16, device="cpu" if kind == "twin" else "cuda")
    values = [torch.tensor(n / 100, dtype=torch.float64) for n in range(numbers + BETWEEN_WAITS)]
    places = range(1, numbers + 1)
    crossings = {
        "constant": Crossing(),
        "brought": Crossing(frozenset(places)),
        "computed": Crossing(
            frozenset(places), computed={index: [root_of_rest(index)] for index in places}
        ),
    }
    rows = {}
    for name, crossing in crossings.items():
        graph = CompiledGraph(
            lambda given: [sum(given[1:], given[0])],
            name=name,
            device=device,
            constants=() if crossing else places,
            crossing=crossing,
        )
        start = itertools.cycle(range(BETWEEN_WAITS))

        def call(graph: Any = graph, start: Any = start, moves: bool = bool(crossing)) -> Any:
            first = next(start) * moves  # as much to do for all three
            return graph.dispatcher([x, *values[first : first + numbers]])

        for _ in range(4):
            call()
        assert graph.refresh_report().graphed, graph.report.blame
        before = graph.report.replays
        rows[name] = clock.run(call, count)
        assert graph.refresh_report().replays == before + WARM + count, "not all were replays"
    pygraph.reset()
    return {"numbers": numbers, "rows": rows}


def root_of_rest(index: int) -> _engine.Formula:
    """(1 - s * s) ** 0.5"""
    step, does = _engine.Formula.Step, _engine.Formula.Operation
    s = step(does.ARGUMENT, argument=index)
    square = [s, s, step(does.MULTIPLY)]
    rest = [step(does.CONSTANT, constant=1.0), *square, step(does.SUBTRACT)]
    return _engine.Formula([*rest, step(does.CONSTANT, constant=0.5), step(does.POWER)])


def compiled_rows(clock: Clock, kind: str, arguments: list[Any], count: int) -> dict[str, Any]:
    def add(*given: Any) -> list[Any]:
        return list(torch._foreach_add(given, 1.0))

    def lookup(table: Any, ids: Any, *given: Any) -> list[Any]:
        return [torch.nn.functional.embedding(ids, table), *add(*given)]

    def drawing(*given: Any) -> list[Any]:
        return [torch.rand_like(given[0]), *add(*given)]

    where = arguments[0].device
    table, ids = torch.randn(1000, 16, device=where), torch.randint(1000, (512,), device=where)
    rows = {}
    for name, called, given, launch in (
        ("compiled", add, arguments, "after_guards"),
        ("guess", add, arguments, "always"),
        ("where it pays", add, arguments, "before_guards"),
        ("lookup", lookup, [table, ids, *arguments], "after_guards"),
        ("lookup guess", lookup, [table, ids, *arguments], "always"),
        ("lookup where it pays", lookup, [table, ids, *arguments], "before_guards"),
        ("drawing", drawing, arguments, "after_guards"),
        ("drawing guess", drawing, arguments, "always"),
    ):
        options = {"device": kind, "compiler": "aot", "launch": launch}
        torch._dynamo.reset()
        function = torch.compile(called, backend="pygraph", options=options)

        def call(function: Any = function, given: list[Any] = given) -> Any:
            return function(*given)

        until_decided(call, clock)
        report = pygraph.report().graphs[-1]
        assert report.replays and (report.before_guards or launch != "always"), report.blame
        for row, timed in (
            (name, call),
            (f"{name}, idle", lambda call=call: clock.until_idle(call())),
        ):
            before, *_ = speculation.counts(function)
            rows[row] = clock.run(timed, count)
            launched = speculation.counts(function)[0] - before
            rows[row]["launched_before_guards"] = launched / (WARM + count)
            rows[row]["past_guards"] = float(report.past_guards)
    return rows


def main(
    out: Annotated[Path, typer.Option(help="The record.")],
    calls: Annotated[int, typer.Option(min=10, help="Of each kind.")] = 2000,
    device: Annotated[str, typer.Option(help="cuda, or twin.")] = "cuda",
    arguments: Annotated[str, typer.Option(help="How many, with commas.")] = "2,32,256",
) -> None:
    """Measure."""
    with torch.no_grad():
        sizes = [measure(int(size), calls, device) for size in arguments.split(",")]
        numbers = [measure_numbers(each, calls, device) for each in (1, 8)]
        layers = [measure_layers(each, calls, device) for each in LAYERS]
    compiled = [measure_call(each, training, calls, device) for each, training in DEPTHS]
    command = f"benchmarks/host_path.py --calls {calls} --device {device} --arguments {arguments}"
    measured = {"sizes": sizes, "numbers": numbers, "layers": layers, "calls": compiled}
    record.write(out, {"env": environment(), "command": command, **measured})
    for each in (*sizes, *numbers, *layers):
        figures = ", ".join(f"{name} {row['median_us']:.1f}" for name, row in each["rows"].items())
        what = ", ".join(f"{count} {name}" for name, count in each.items() if name != "rows")
        print(f"{what}, us: {figures}")
    print(*map(shown, compiled), sep="\n")


if __name__ == "__main__":
    typer.run(main)
