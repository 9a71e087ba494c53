"""One program, compiled by PyGraph and by torch's aot_eager, from the same seed: every value that
it returns must have the same bits, and the generator must end in the same state."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import torch
from places import Place
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

import pygraph
from pygraph.capturing.tensors import same_bits
from pygraph.reporting import Report

#: Compiles a function or module as torch.compile does, with its keywords.
Compile = Callable[..., Any]
#: Takes a way to compile; returns the values that are compared, in order.
Program = Callable[[Compile], list[Any]]

#: Calls of a graph that run uncaptured before one is replayed.
UNGRAPHED = 2

#: A mode of torch.compile that takes PyGraph's place in `agree` (conftest.py).
instead_of_pygraph: str | None = None


@contextlib.contextmanager
def fresh(name: str) -> Iterator[Place]:
    """The place of that name, with nothing compiled before and nothing left behind."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    reset()
    yield Place(name)
    reset()
    torch.set_num_threads(threads)


def reset() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    pygraph.reset()
    torch.manual_seed(0)


def generator_state(place: Place) -> torch.Tensor:
    return torch.get_rng_state() if place.name == "twin" else torch.cuda.get_rng_state()


def agree(place: Place, program: Program, **options: Any) -> Report:
    """Runs the program both ways and compares. Returns PyGraph's report. `options` are those of
    the backend."""
    if instead_of_pygraph is not None:
        _agree_with_torch(place, program, instead_of_pygraph)
    reset()
    compiled: list[Any] = []

    def with_pygraph(function: Any, **kwargs: Any) -> Any:
        given = {"device": place.name, "compiler": "aot", **options}
        if "mode" in kwargs:  # torch.compile itself takes a mode or options, and not both
            backend = functools.partial(pygraph.backend, options=given, mode=kwargs.pop("mode"))
            compiled.append(torch.compile(function, backend=backend, **kwargs))
        else:
            compiled.append(torch.compile(function, backend="pygraph", options=given, **kwargs))
        return compiled[-1]

    found = program(with_pygraph)
    state = generator_state(place)
    report = pygraph.report()

    def with_torch(function: Any, **kwargs: Any) -> Any:
        kwargs.pop("mode", None)
        return torch.compile(function, backend="aot_eager", **kwargs)

    reset()
    expected = program(with_torch)
    assert len(found) == len(expected)
    wrong = [i for i, pair in enumerate(zip(found, expected, strict=True)) if not same_bits(*pair)]
    assert not wrong, f"values {wrong} of {len(found)} differ"
    assert torch.equal(generator_state(place), state), "the generator is elsewhere"
    return report


def _agree_with_torch(place: Place, program: Program, candidate: str) -> NoReturn:
    """Fails where `candidate` raises what torch.compile's default does not, or is wrong; else skips
    the test, for what that says of PyGraph's report is nothing to it.
    """

    def run(mode: str) -> tuple[list[Any], float]:
        def compiled(function: Any, **kwargs: Any) -> Any:
            return _AsTorchAdvises(torch.compile(function, **{"mode": mode, **kwargs}))

        reset()
        started = time.perf_counter()
        found = program(compiled)
        return found, time.perf_counter() - started

    if place.name != "cuda":
        pytest.skip(f"{candidate} needs a GPU")
    expected, seconds_of_default = run("default")
    found, seconds = run(candidate)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
        else:
            assert one == other
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    pytest.skip(
        f"{candidate} is right: {seconds:.1f} s, default {seconds_of_default:.1f} s, "
        f"{skips} graphs left out"
    )


class _AsTorchAdvises:
    """A compiled callable, used as torch's documentation of its CUDA graphs asks users to: each
    call begins a step, and results are cloned before the next one can overwrite them."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        results = self._compiled(*args, **kwargs)
        return tree_map_only(torch.Tensor, torch.Tensor.clone, results)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


def is_ours(compiled: Compile) -> bool:
    """Whether a program is being compiled by PyGraph."""
    return bool(compiled.__name__ == "with_pygraph")


def serves(report: Report, *roles: str, replays: int = 1) -> None:
    """There is a graph for each of `roles` ("forward", "backward", "inference"), in any order and
    no other one; each was proven and has replayed at least `replays` times."""
    assert sorted(map(role_of, report.graphs)) == sorted(roles), [g.name for g in report.graphs]
    for graph in report.graphs:
        assert graph.state == "graphed", (graph.name, graph.blame)
        assert graph.proof == "bit-equal"
        assert graph.replays >= replays, (graph.name, graph.replays, graph.calls)


def role_of(graph: Any) -> str:
    return str(graph.name.split("(")[1].rstrip(")"))


def raised(run: Callable[[], Any]) -> str:
    """What a call raises, as the kind of error and its message, up to the tensor that it names:
    what is saved is the partitioner's choice. "" when it raises nothing."""
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}".split(": [")[0]
    return ""


class Net(torch.nn.Module):
    """Two layers, whose backward needs parameters, inputs and intermediate values."""

    def __init__(self, wide: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, wide)
        self.second = torch.nn.Linear(wide, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def net(place: Place) -> Net:
    return Net().to(place.torch)


def gradients(module: torch.nn.Module) -> list[Any]:
    """The gradients themselves, not copies: what is done to them later shows. (Copies of those of a
    mode in PyGraph's place, as of its results.)"""
    of_each = [parameter.grad for parameter in module.parameters()]
    if instead_of_pygraph is None:
        return of_each
    return tree_map_only(torch.Tensor, torch.Tensor.clone, of_each)


def values(module: torch.nn.Module) -> list[torch.Tensor]:
    """Copies of all parameters and buffers."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return [tensor.detach().clone() for tensor in tensors]


class Attending(nn.Module):
    """One head of attention over words: what is saved depends on batch and length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.mixed = nn.Linear(8, 24)
        self.out = nn.Linear(8, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mixed(self.words(words)).chunk(3, -1)
        weights = F.softmax(q @ k.transpose(1, 2) / words.shape[1] ** 0.5, -1)
        return self.out((weights @ v).mean(1))
