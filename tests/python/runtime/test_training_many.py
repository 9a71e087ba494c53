"""Many compiled graphs and ways to call them: chains, recompilation, other threads, other modes.

Every program runs compiled by PyGraph and by torch's aot_eager, and must compute the same bits.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place
from torch import nn
from training_support import (
    Compile,
    Net,
    agree,
    gradients,
    is_ours,
    net,
    role_of,
    serves,
    values,
)

import pygraph
from pygraph.runtime import registry

TRAINED = ("forward", "backward")


def learn(fast: Any, module: nn.Module, x: torch.Tensor) -> list[Any]:
    module.zero_grad()
    result = fast(x)
    result.square().sum().backward()
    return [result, *gradients(module)]


# ------------------------------------------------------------------- chains


class Broken(Net):
    """Three graphs in a row: the second takes what the first returned, which is saved there too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        hidden = hidden * torch.sigmoid(hidden)
        torch._dynamo.graph_break()
        return self.second(hidden)


class Asking(Net):
    """Goes on in one of two ways, by the value of a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        scale = hidden.detach().abs().max().item()
        if scale > 0.9:
            hidden = hidden / scale
        return self.second(hidden)


@pytest.mark.parametrize("kind", [Broken, Asking])
def test_chains_of_graphs(place: Place, kind: Callable[[], Net]) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = kind().to(place.torch)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(12):
            kept += learn(fast, module, place.randn(5, 6) * (3 if step % 2 else 0.1))
        return kept

    report = agree(place, program)
    served = [graph for graph in report.graphs if graph.replays >= 3]
    # The number is on the host, another one in each call, and the twin's host is its device.
    assert len(served) == (4 if kind is Asking and place.name != "twin" else 6), str(report)
    assert all(graph.state in ("graphed", "warming") for graph in report.graphs), str(report)


def test_graphs_whose_forwards_run_before_all_backwards(place: Place) -> None:
    """A recurrent use of one graph: each step's saved tensors live until the end."""

    def program(compiled: Compile) -> list[Any]:
        cell = nn.Linear(6, 6).to(place.torch)
        fast = compiled(lambda x, state: torch.tanh(cell(x) + state))
        kept: list[Any] = []
        for _ in range(4):
            cell.zero_grad()
            state = torch.zeros(5, 6, device=place.torch, requires_grad=True)
            first = state
            states = []
            for _ in range(4):
                state = fast(place.randn(5, 6), state)
                states.append(state)
            torch.stack(states).square().sum().backward()
            kept += [*states, first.grad, *gradients(cell)]
        return kept

    serves(agree(place, program), *TRAINED, replays=14)


def test_compiled_anew_for_another_dtype_and_back(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(lambda x: module(x.float()) + x.sum())
        kept: list[Any] = []
        for step in range(12):
            kept += learn(
                fast, module, place.randn(5, 6).to((torch.float32, torch.float64)[step % 2])
            )
        return kept

    serves(agree(place, program), *TRAINED, *TRAINED, replays=4)


def test_one_module_compiled_twice_and_another(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module, other = net(place), net(place)
        fast = [compiled(module), compiled(lambda x: module(x)), compiled(other)]
        owners = [module, module, other]
        kept: list[Any] = []
        for step in range(15):
            kept += learn(fast[step % 3], owners[step % 3], place.randn(5, 6))
        return kept

    report = agree(place, program)
    assert all(graph.state == "graphed" and graph.replays >= 3 for graph in report.graphs)
    assert len(report.graphs) >= 4


def test_compiled_within_compiled(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        inner = compiled(module)
        outer = compiled(lambda x: inner(x).sin() + inner(x * 2))
        kept: list[Any] = []
        for step in range(8):
            kept += learn(outer if step % 2 else inner, module, place.randn(5, 6))
        return kept

    serves(agree(place, program), *TRAINED, *TRAINED, replays=2)


# ------------------------------------------------------------------- torch.compile's own switches


def test_forced_eager_and_back(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(10):
            stance = "force_eager" if step in (4, 5) else "default"
            with torch.compiler.set_stance(stance):
                kept += learn(fast, module, place.randn(5, 6))
        return kept

    report = agree(place, program)
    serves(report, *TRAINED, replays=6)
    assert all(graph.calls == 8 for graph in report.graphs)


@pytest.mark.parametrize("what", [pygraph.reset, torch.compiler.reset, torch._dynamo.reset])
def test_a_reset_between_steps_and_between_forward_and_backward(place: Place, what: Any) -> None:
    """Graphs and their memory go; what was compiled goes on right, and so does a backward whose
    forward was replayed before."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(12):
            module.zero_grad()
            result = fast(place.randn(5, 6))
            if step in (5, 8):
                what()
            result.square().sum().backward()
            kept += [result.detach(), *gradients(module)]
            del result
            if step == 5 and is_ours(compiled):
                gc.collect()
                live = [g for g in registry._graphs if g._signatures.with_program]
                assert not live, [g.report.name for g in live]
        return kept

    report = agree(place, program)
    assert what is pygraph.reset or report.replays >= 2, str(report)


def test_marking_steps_is_harmless(place: Place) -> None:
    """As programs written for torch's own CUDA graphs do (pytorch#169545)."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module, fullgraph=True)
        kept: list[Any] = []
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            result = fast(place.randn(6, requires_grad=True)).clone()
            result.sum().clone().backward()
            kept.append(result)
        return kept + gradients(module)

    serves(agree(place, program), *TRAINED, replays=4)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_a_mode_given_besides(place: Place, mode: str) -> None:
    """torch.compile itself takes a mode or options, and not both; a backend may be given both."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module, mode=mode)
        return [value for _ in range(4) for value in learn(fast, module, place.randn(5, 6))]

    serves(agree(place, program), *TRAINED, replays=2)
    with pytest.raises(RuntimeError, match="Either mode or options"):
        torch.compile(net(place), backend="pygraph", mode=mode, options={"device": place.name})


# ------------------------------------------------------------------- copies


def test_copies_and_pickles_of_the_module(place: Place) -> None:
    """What is compiled holds nothing that the module's copies would take along."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept = [value for _ in range(4) for value in learn(fast, module, place.randn(5, 6))]
        file = io.BytesIO()
        torch.save(fast.state_dict(), file)
        file.seek(0)
        loaded = net(place)
        loaded.load_state_dict(
            {name.removeprefix("_orig_mod."): value for name, value in torch.load(file).items()}
        )
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
            again = compiled(other)
            for _ in range(4):
                x = place.randn(5, 6)
                kept += learn(again, other, x)
                kept += learn(fast, module, x)
                assert all(map(torch.equal, kept[-10:-5], kept[-5:]))
        return kept

    report = agree(place, program)
    assert all(graph.state == "graphed" for graph in report.graphs), str(report)


def test_hooks_of_state_dicts(place: Place) -> None:
    """They see the weights that compiled steps have trained."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        seen: list[Any] = []
        module.register_state_dict_post_hook(
            lambda m, state, prefix, _: seen.extend(v.clone() for v in state.values())
        )
        module.register_load_state_dict_pre_hook(
            lambda m, state, *_: seen.extend(v.clone() for v in state.values())
        )
        fast = compiled(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(5):
            seen += learn(fast, module, place.randn(5, 6))
            optimizer.step()
            module.load_state_dict({k: v * 1.5 for k, v in module.state_dict().items()})
        return seen + values(module)

    serves(agree(place, program), *TRAINED, replays=3)


# ------------------------------------------------------------------- how it is called


def test_grad_modes_in_turns(place: Place) -> None:
    """Each has a graph of its own; weights trained in one are seen in the others."""
    modes = [torch.enable_grad, torch.no_grad, torch.inference_mode]

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        kept: list[Any] = []
        for step in range(18):
            x = place.randn(5, 6)
            with modes[step % 3]():
                result = fast(x)
            kept += [result.detach().clone(), result.requires_grad, result.is_inference()]
            if result.requires_grad:
                result.square().sum().backward()
                kept += [gradient.clone() for gradient in gradients(module)]
                optimizer.step()
                optimizer.zero_grad()
        return kept

    report = agree(place, program)
    assert all(graph.state == "graphed" for graph in report.graphs), str(report)
    assert {role_of(graph) for graph in report.graphs} == {*TRAINED, "inference"}
    assert all(graph.replays >= 2 for graph in report.graphs), str(report)


def test_called_on_other_threads(place: Place) -> None:
    """One step after the other, each on a thread of its own; the backward sometimes on another."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []

        def elsewhere(run: Callable[[], Any]) -> Any:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(run()))
            thread.start()
            thread.join()
            return found[0]

        for step in range(8):
            module.zero_grad()
            x = place.randn(5, 6)
            result = elsewhere(lambda x=x: fast(x)) if step % 2 else fast(x)
            loss = result.square().sum()
            if step % 3:
                loss.backward()
            else:
                elsewhere(loss.backward)
            kept += [result, *gradients(module)]
        return kept

    serves(agree(place, program), *TRAINED, replays=6)


def test_threads_that_train_models_of_their_own_at_once(place: Place) -> None:
    """Compiling one after the other: while a thread traces, torch raises in threads that call what
    they have compiled (pytorch#126024; torch 2.13 does so less often)."""
    modules = [net(place) for _ in range(3)]
    fast = [place.compile(module) for module in modules]
    inputs = [[place.randn(5, 6) for _ in range(12)] for _ in modules]
    found: list[list[Any]] = [[] for _ in modules]
    errors: list[Exception] = []
    compiling, compiled = threading.Lock(), threading.Barrier(len(modules))

    def work(number: int) -> None:
        def step(x: torch.Tensor) -> None:
            found[number].append(learn(fast[number], modules[number], x))

        try:
            with compiling:
                step(inputs[number][0])
            compiled.wait(timeout=60)
            for x in inputs[number][1:]:
                step(x)
        except Exception as error:
            error.add_note(f"on thread {number}, in step {len(found[number])}")
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(modules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise ExceptionGroup("of threads that train at once", errors)
    for number, module in enumerate(modules):
        assert len(found[number]) == len(inputs[number])
        for x, values_found in zip(inputs[number], found[number], strict=True):
            expected = learn(module, module, x)
            for left, right in zip(values_found, expected, strict=True):
                torch.testing.assert_close(left, right)
    assert pygraph.report().replays >= 12, str(pygraph.report())
