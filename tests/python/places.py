"""The device that a test runs on: the CPU twin everywhere, and the GPU too where there is one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import pygraph
from pygraph.reporting import GraphReport
from pygraph.runtime import devices
from pygraph.runtime.compiled_graph import CompiledGraph

PLACES = [
    pytest.param("twin"),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where tensors are made and programs are compiled for."""

    name: str

    @property
    def torch(self) -> torch.device:
        return torch.device("cpu" if self.name == "twin" else "cuda")

    def compile(self, function: Any, **options: Any) -> Any:
        """Graphs are launched before the guards also where that does not pay, as on the twin, whose
        kernels have run before a launch returns."""
        dynamic = options.pop("dynamic", None)
        options = {"device": self.name, "compiler": "aot", "launch": "always", **options}
        return torch.compile(function, backend="pygraph", options=options, dynamic=dynamic)

    def graphed(self, function: Any, **kwargs: Any) -> CompiledGraph:
        """A callable of a list of arguments, without torch.compile around it."""
        platform = devices.PLATFORMS[self.name]
        assert platform.problem() is None
        return CompiledGraph(function, name="graph 0 (test)", device=platform.device(0), **kwargs)

    def randn(self, *shape: int, **kwargs: Any) -> torch.Tensor:
        return torch.randn(*shape, device=self.torch, **kwargs)


def only_graph() -> GraphReport:
    """The report of the one compiled graph of the test."""
    graphs = pygraph.report().graphs
    assert len(graphs) == 1, [graph.name for graph in graphs]
    return graphs[0]


def assert_bits(found: Any, expected: Any) -> None:
    """The same tensors, bit for bit, and the same other values."""
    from pygraph.capturing.tensors import same_bits

    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert same_bits(left, right), (left, right)
        if isinstance(right, torch.Tensor):
            assert left.stride() == right.stride()
