"""A twin beside a host, for tests of numbers on the host.

To the twin every CPU tensor is its own. Here it is made to leave those without dimensions, of some
dtypes, to the host: operators on nothing else really run while it captures, as they do on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from pygraph.capturing.device import Recording
from pygraph.capturing.twin import Twin
from pygraph.runtime import devices
from pygraph.runtime.compiled_graph import CompiledGraph

HALF = torch.tensor(0.5, dtype=torch.float64)


class Apart(Twin):
    """The twin beside a host that numbers of some dtypes belong to."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.dtypes = dtypes or (torch.float64,)

    def owns(self, value: Any) -> bool:
        return super().owns(value) and not (value.dim() == 0 and value.dtype in self.dtypes)

    def record(self, function: Any, inputs: list[Any], **options: Any) -> Recording:
        def on_both(arguments: list[Any]) -> Any:
            with _Host(self):
                return function(arguments)

        return super().record(on_both, inputs, **options)


class _Host(TorchDispatchMode):
    """Runs operators on the host's numbers alone, and those that make one of nothing."""

    def __init__(self, device: Apart) -> None:
        super().__init__()
        self._owns = device.owns

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(map(self._owns, given)):
            with _disable_current_modes():
                result = func(*args, **kwargs)
            if given or not self._owns(result):
                return result
        return func(*args, **kwargs)


@contextlib.contextmanager
def host_apart() -> Iterator[Apart]:
    assert devices.PLATFORMS["twin"].problem() is None  # looks for torch's functions once
    device = Apart()
    try:
        yield device
    finally:
        device.release()


Function = Callable[[list[Any]], list[Any]]


def scaled(arguments: list[Any]) -> list[Any]:
    x, number = arguments
    return [torch.relu(x) / number]


def compiled(device: Apart, function: Function = scaled, **options: Any) -> CompiledGraph:
    return CompiledGraph(function, name="graph 0 (test)", device=device, **options)


def replays(graph: CompiledGraph) -> int:
    return graph.refresh_report().replays


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)
