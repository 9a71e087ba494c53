"""Every driver call that a program's life makes fails once: nobody notices, but for the report.
There are lives of compiled functions, and of captured callables: a function, a module whose
results wait for a backward, a whole step.

A clean run counts the calls of each entry point of the driver table. Then the same life is lived
again for every (entry point, n), with the n-th call of it failing: set-up of the phantom space,
captures A and B, link, instantiation, proof, first bind, launches at moved addresses, a second size
(growth), release. Of an entry point that is called often, the first and the last calls and some
between are taken. The first call fails with either error, the others with one and the other in
turn; after each first call that failed, one more life has no fault and must end with graphs.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

import pygraph
from pygraph import _engine
from pygraph.frontends.compile.backend import backend

OUT_OF_MEMORY = 2  #: CUDA_ERROR_OUT_OF_MEMORY, which any entry point may return
CODE = 1  #: CUDA_ERROR_INVALID_VALUE

#: Giving something back: where the driver refuses, the thing stays, and nothing is lost to the
#: program. So there may be a leak (of that one thing), and there is nothing to report.
GIVING_BACK = {
    "cuGraphDestroy": "a captured graph that has been read, or a clone that is replaced",
    "cuGraphExecDestroy": "the executable graph of a program that has been dropped",
    "cuMemAddressFree": "phantom addresses, which are not memory",
    "cuMemRelease": "the phantom block; a new space makes one of its own",
    "cuMemUnmap": "phantom addresses that nobody uses any more",
    "cuStreamDestroy": "the capture stream, when the twin is dropped",
}
#: Failures that cost no graph: every graph must be proven and replay all the same.
MADE_GOOD = {
    "cuFuncGetName": "a kernel without a name is called by its number in messages",
    "cuStreamSynchronize": "a wait on the twin that was refused is repeated: launched work must "
    "not stay behind",
    "cuGraphExecMemcpyNodeSetParams": "an executable graph that takes no new address for a copy is "
    "instantiated anew",
    "cuGraphMemcpyNodeSetParams": "the kinds of memory at the ends of the copy are looked up, and "
    "it is set once more",
}
#: Entry points by which the engine asks, and where "invalid value" is an answer, as the CUDA driver
#: API has it. There is nothing to report then. A wrong answer leaves words of the graph out, which
#: the proof finds: results must be right all the same, and nothing may leak.
ANSWERS = {
    "cuFuncGetParamInfo": "there is no parameter of this number: the list ends here",
    "cuGraphKernelNodeGetAttribute": "the device does not know the attribute, so it is not set",
}
#: Calls of an entry point that fail in turn, one in a life: of a compiled function, and of a
#: captured callable, whose graphs' calls take turns.
MOST_CALLS, MOST_CALLS_OF_CAPTURED = 4, 7

Census = dict[str, int]


class Program(torch.nn.Module):
    """Scratch, a parameter, a written buffer; outputs direct, as views, twice and of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(5))
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(
            torch.randn(5, 5, generator=generator), requires_grad=False
        )

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(torch.matmul(x, self.weight))
        self.state.add_(torch.sum(y, 0))
        z = torch.cat([y, y])
        return z, z[1:], torch.sum(y), x, y.t(), self.state


class Tracer(torch.fx.Tracer):
    proxy_buffer_attributes = True


def trace(module: torch.nn.Module) -> torch.fx.GraphModule:
    return torch.fx.GraphModule(module, Tracer().trace(module))


def compiled() -> None:
    """Compiles the program for two sizes and calls it ten times at fresh addresses. Every call must
    return and leave behind what eager does."""
    model, reference = Program(), Program()
    by_size: dict[int, Any] = {}
    kept = []
    generator = torch.Generator().manual_seed(1)
    for size in (4, 4, 4, 4, 4, 6, 6, 6, 6, 4):
        x = torch.randn(size, 5, generator=generator)
        if size not in by_size:
            by_size[size] = backend(trace(model), [x], options={"device": "twin"})
        found, expected = by_size[size](x), reference(x)
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert left.dtype == right.dtype and left.stride() == right.stride()
            assert torch.equal(left, right)
        assert found[3] is x
        assert torch.equal(model.state, reference.state)
        assert torch.equal(model.weight, reference.weight)
        kept.append((found[0], expected[0]))
    for left, right in kept:
        assert torch.equal(left, right)


def captured_function() -> None:
    """The same program, captured."""
    model, reference = Program(), Program()
    captured = pygraph.capture(model, device="twin")
    generator = torch.Generator().manual_seed(1)
    for size in (4, 4, 4, 4, 4, 6, 6, 6, 6, 4):
        x = torch.randn(size, 5, generator=generator)
        for left, right in zip(captured(x), reference(x), strict=True):
            assert torch.equal(left, right)
        assert torch.equal(model.state, reference.state)


class Training:
    """A small network, and a step that trains it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1, fused=True)
        self.forward: Any = self.net

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[torch.Tensor]:
        found = [part for p in self.net.parameters() for part in (p.detach(), p.grad)]
        found += [value for each in self.optimizer.state.values() for value in each.values()]
        return [each for each in found if each is not None]


def trains(own: Training, step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """`step` trains `own` as an uncaptured step trains another one."""
    reference = Training()
    generator = torch.Generator().manual_seed(1)
    with torch.enable_grad():
        for _ in range(10):
            x = torch.randn(4, 5, generator=generator)
            assert torch.equal(step(x), reference.step(x))
            for left, right in zip(own.state(), reference.state(), strict=True):
                assert torch.equal(left, right)


def captured_step() -> None:
    own = Training()
    trains(own, pygraph.capture(own.step, device="twin"))


def compared_step() -> None:
    own = Training()
    trains(own, pygraph.capture(own.step, device="twin", debug="compare"))


def captured_module() -> None:
    own = Training()
    own.forward = pygraph.capture(own.net, device="twin")
    trains(own, own.step)


#: Lives of captured callables, and how many graphs one ends with.
CAPTURED = {
    captured_function: 2,
    captured_module: 2,
    captured_step: 1,
    compared_step: 1,
}


def graphs_of(life: Callable[[], None]) -> list[Any]:
    """Lives it. The reports of its graphs."""
    life()
    return list(pygraph.report().graphs)


def release() -> None:
    pygraph.reset()
    gc.collect()


def census() -> Census:
    """What is alive on the twin after everything has been given back."""
    _engine.twin_reset_faults()
    release()
    _engine.twin_synchronize()
    found: Census = _engine.twin_census()
    return found


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """One thread, for bit-equal sums; what lives before is not looked at by every collection."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.getLogger("pygraph").setLevel(logging.CRITICAL)
    pygraph.reset()
    gc.collect()
    gc.freeze()
    with torch.no_grad():
        yield
    gc.unfreeze()
    logging.getLogger("pygraph").setLevel(logging.NOTSET)
    _engine.twin_reset_faults()
    torch.set_num_threads(threads)


def without_faults(life: Callable[[], None], graphs: int) -> Census:
    """Calls of each entry point in a life without faults, which ends with graphs that replay."""
    census()
    _engine.twin_count_calls(True)
    found = graphs_of(life)
    release()
    calls: Census = _engine.twin_calls()
    before = census()
    assert [graph.state for graph in found] == ["graphed"] * graphs, found
    assert all(graph.replays > 1 for graph in found), found
    life()
    assert census() == before, "a life without faults leaks"
    return calls


@pytest.fixture(scope="module")
def clean(quiet: None) -> Census:
    return without_faults(compiled, 2)


def chosen(calls: int, most: int) -> list[int]:
    """Which calls of an entry point are made to fail: all of a few, else spread evenly."""
    if calls <= most:
        return list(range(1, calls + 1))
    return sorted({1 + (calls - 1) * i // (most - 1) for i in range(most)})


def names(graph: Any, symbol: str, code: int) -> bool:
    """Whether a report says what happened."""
    said = f"{graph.reason} {graph.proof}"
    error = "OUT_OF_MEMORY" if code == OUT_OF_MEMORY else "INVALID_VALUE"
    return symbol in said or error in said or "memory ran out" in said


def problems(
    symbol: str, nth: int, code: int, before: Census, life: Callable[[], None] = compiled
) -> list[str]:
    """What is wrong with a life in which one call fails."""
    where = f"{symbol}, call {nth}, error {code}"
    _engine.twin_reset_faults()
    _engine.twin_count_calls(True)
    _engine.twin_fail(symbol, code, nth)
    found: list[str] = []
    try:
        graphs = graphs_of(life)
    except AssertionError as error:
        return [f"{where}: a wrong result: {error}"]
    except Exception as error:
        return [f"{where}: raised {type(error).__name__}: {error}"]
    finally:
        release()
        fired = _engine.twin_calls().get(symbol, 0) >= nth
        after = census()
    if not fired and nth > 1:  # how often addresses are patched depends on which come back
        return problems(symbol, nth // 2, code, after, life)
    if not fired:
        found.append(f"{where}: never happened")
    given_up = [graph for graph in graphs if not graph.graphed]
    if symbol in MADE_GOOD:
        if given_up or not all(graph.replays for graph in graphs):
            found.append(f"{where}: should have been made good: {given_up}")
    elif symbol in GIVING_BACK or (symbol in ANSWERS and code == CODE):
        pass
    elif not any(names(graph, symbol, code) for graph in graphs):
        states = [(graph.state, graph.reason, graph.proof) for graph in graphs]
        found.append(f"{where}: the report does not say so: {states}")
    if after != before and symbol not in GIVING_BACK:
        leaks = {k: after[k] - before[k] for k in after if after[k] != before[k]}
        found.append(f"{where}: leaks {leaks}")
    return found


def faults(calls: Census, most: int = MOST_CALLS) -> Iterator[tuple[str, int, int]]:
    """(entry point, number of the call that fails, its error)"""
    for row, symbol in enumerate(calls):
        first, *others = chosen(calls[symbol], most)
        yield symbol, first, OUT_OF_MEMORY
        for column, nth in enumerate(others):
            yield symbol, nth, (CODE, OUT_OF_MEMORY)[(row + column) % 2]


def test_any_driver_call_may_fail(clean: Census) -> None:
    """Eager's results bit for bit, no exception, a reason, no leak."""
    wrong: list[str] = []
    before = census()
    for symbol, nth, code in faults(clean):
        wrong += problems(symbol, nth, code, before)
        before = census()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("life", CAPTURED, ids=lambda life: life.__name__)
def test_any_driver_call_of_a_captured_callable_may_fail(life: Callable[[], None]) -> None:
    wrong: list[str] = []
    calls = without_faults(life, CAPTURED[life])
    before = census()
    for symbol, nth, code in faults(calls, MOST_CALLS_OF_CAPTURED):
        wrong += problems(symbol, nth, code, before, life)
        before = census()
    assert not wrong, "\n".join(wrong)


def test_the_next_compilation_works(clean: Census) -> None:
    """The first call of each entry point fails, and a life without a fault follows, which ends with
    graphs that replay."""
    wrong: list[str] = []
    before = census()
    for symbol in clean:
        wrong += problems(symbol, 1, CODE, before)
        _engine.twin_reset_faults()
        states = [graph.state for graph in graphs_of(compiled)]
        if states != ["graphed", "graphed"]:
            wrong.append(f"after {symbol}: {states}")
        before = census()
    assert not wrong, "\n".join(wrong)


def test_every_phase_is_reached(clean: Census) -> None:
    """What the driver table must have been asked for; else faults in it were not tried."""
    phases = {
        "phantom space": {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"},
        "capture": {"cuStreamBeginCapture", "cuStreamEndCapture", "cuLaunchKernel"},
        "link": {"cuGraphGetNodes", "cuGraphGetEdges", "cuGraphKernelNodeGetParams"},
        "instantiate": {"cuGraphInstantiate", "cuGraphKernelNodeSetParams"},
        "bind": {"cuGraphExecKernelNodeSetParams"},
        "launch": {"cuGraphLaunch"},
        "release": {"cuGraphExecDestroy", "cuGraphDestroy"},
    }
    missing = {phase: sorted(names - clean.keys()) for phase, names in phases.items()}
    assert not any(missing.values()), missing
    exempt = {*GIVING_BACK, *MADE_GOOD, *ANSWERS}
    assert exempt <= clean.keys(), "an exemption that nothing needs"
