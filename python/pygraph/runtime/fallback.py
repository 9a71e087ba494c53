"""The compiled callable as it is, run safely: what every fall-back ends in.

Inductor leaves the cloning of misaligned inputs to whoever runs its callable under CUDA graphs
(`align_inputs_from_check_idxs` is skipped when graphs are on), so it is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pygraph.capturing import tensors
from pygraph.capturing.device import Device
from pygraph.runtime.crossing import NOTHING, Crossing


class Fallback:
    """Calls `function`, which is compiled for `device`. With `aligned`, every CUDA tensor is at
    least 16-byte aligned: others are cloned, and written back if the function writes them. Without,
    arguments go as they are. `sure` are those that need not be looked at. What the `crossing` names
    is on the host for the caller, and on the device for the function."""

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        mutated: frozenset[int],
        aligned: bool,
        device: Device,
        sure: frozenset[int] = frozenset(),
        crossing: Crossing = NOTHING,
    ) -> None:
        self.function = function
        self.crossing = crossing
        self._device = device
        self.mutated = mutated
        self.aligned = aligned
        self._sure = sure
        self._look_at: list[int] | None = None
        #: arguments that the function reads on the host, and that a graph has on the device
        self.on_host: frozenset[int] = frozenset()

    def read_on_host(self, indices: frozenset[int]) -> None:
        """From now on the function reads these arguments on the host."""
        self.on_host = indices

    def looked_at(self, count: int) -> list[int]:
        """Which of `count` arguments may have to be cloned."""
        if self._look_at is None:
            self._look_at = [i for i in range(count) if self.aligned and i not in self._sure]
        return self._look_at

    @property
    def as_it_is(self) -> bool:
        """Whether the function may be called in place of this, but for the alignment."""
        return not self.on_host and not self.crossing

    def on_device(self, arguments: list[Any]) -> list[Any]:
        """The arguments as a captured forward saves them: those of `on_host` too."""
        if not self.on_host:
            return arguments
        here = self._device.place
        return [
            value.to(here) if index in self.on_host else value
            for index, value in enumerate(arguments)
        ]

    def __call__(self, arguments: list[Any]) -> Any:
        for index in self.on_host:
            arguments[index] = arguments[index].cpu()
        if self.crossing:
            self.crossing.bring(arguments, self._device)
            return self.crossing.fetch(self._call(arguments))
        return self._call(arguments)

    def _call(self, arguments: list[Any]) -> Any:
        if not self.aligned:
            return self.function(arguments)
        replaced: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index in self.looked_at(len(arguments)):
            argument = arguments[index]
            if (
                isinstance(argument, torch.Tensor)
                and argument.is_cuda
                and argument.layout == torch.strided  # a sparse one has no address
                and argument.data_ptr() % tensors.KERNEL_ALIGNMENT
            ):
                arguments[index] = tensors.static_copy(argument)
                if index in self.mutated:
                    replaced.append((argument, arguments[index]))
        result = self.function(arguments)
        for original, clone in replaced:
            original.copy_(clone)
        return result
