"""Callables whose graphs may be launched in front of guards."""

from __future__ import annotations

from typing import Any

import torch
from places import Place, assert_bits

from pygraph import _engine
from pygraph.frontends.compile import speculation
from pygraph.torch_private import dynamo

BUSY = 600  #: CUDA_ERROR_NOT_READY


def network(place: Place) -> Any:
    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)
    return torch.nn.Sequential(*layers).to(place.torch)


def inputs(place: Place, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4)), device=place.torch)


def counts_and_reads(compiled: Any) -> tuple[int, int, int]:
    assert sum(map(_engine.is_speculation_hook, dynamo.hooks_of(compiled))) <= 1
    return speculation.counts(compiled)


def counts(compiled: Any) -> tuple[int, int]:
    """Graphs launched before the guards, and those of them whose call came."""
    launched, landed, _ = counts_and_reads(compiled)
    return launched, landed


def check(compiled: Any, model: Any, *given: Any, **named: Any) -> None:
    with torch.no_grad():
        results, expected = compiled(*given, **named), model(*given, **named)
    assert_bits(list(results), list(expected))


def warm(compiled: Any, model: Any, place: Place, calls: int = 3) -> None:
    """Links its graph; the last of three calls is the one that is learned from."""
    for _ in range(calls):
        check(compiled, model, inputs(place))
