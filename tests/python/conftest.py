"""--reduce-overhead: which tests of training torch's own CUDA graphs would pass. And
fixtures of many files."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import training_support
from places import PLACES, Place

from pygraph import _engine
from pygraph.frontends.compile import past_guards
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private import support


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reduce-overhead",
        action="store_true",
        help="put torch.compile(mode='reduce-overhead') in the place of PyGraph where a test of "
        "training compares a program's values: one that it gets wrong fails, others are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Where pytest was not given this folder, it has not seen the option.
    if config.getoption("--reduce-overhead", False):
        if not torch.cuda.is_available():
            raise pytest.UsageError("--reduce-overhead needs a CUDA device")
        training_support.instead_of_pygraph = "reduce-overhead"


@pytest.fixture(autouse=True, scope="module")
def little_to_collect() -> Iterator[None]:
    """What lives before a file's tests, torch most of all, is not looked at by every collection."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each of them, as training_support.fresh() leaves it."""
    with training_support.fresh(request.param) as here:
        yield here


@pytest.fixture
def behind_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call goes past Dynamo's guards: for what is launched in front of them."""
    monkeypatch.setattr(past_guards, "lead", lambda *_: None)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For small cases, beside other processes that want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """The same random numbers each time, and a twin without faults afterwards."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    _engine.twin_reset_faults()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Of each call that Python has heard of: its integers, and its numbers on the host."""
    found: list[list[Any]] = []
    original = CompiledGraph._miss

    def miss(self: CompiledGraph, arguments: list[Any]) -> Any:
        numbers = [
            each.item() if isinstance(each, torch.Tensor) else each
            for each in arguments
            if not isinstance(each, torch.Tensor) or each.dim() == 0
        ]
        found.append(numbers)
        return original(self, arguments)

    monkeypatch.setattr(CompiledGraph, "_miss", miss)
    return found


@pytest.fixture
def calibrated() -> Iterator[None]:
    """Torch's functions are found, and the twin's kernels reach the memory of CPU tensors."""
    assert support.tensor_access() == "direct"
    _engine.twin_pageable_memory_access(True)
    yield
    _engine.twin_pageable_memory_access(False)
    _engine.twin_reset_faults()
