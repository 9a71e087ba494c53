"""Operators that must not even be tried in a capture, and those that need other ranks.

A capture that fails is rolled back, but what a library does to its own state is beyond reach, in
every later call of the process. So the first call of a callable, which runs for real, is watched
for operators that are known to leave their library unusable. A seed on the host is watched for in
the capture: uncaptured, some operators rightly have it there. Other GPUs that it works on are
noted, whose streams have to be captured, too, and who must not draw random numbers; and
collectives, with the groups that they are of: what has them is linked by all ranks or by none
(consent.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from pygraph.capturing.device import CaptureFailed, Device
from pygraph.operators import collectives, obstacles
from pygraph.torch_private.dispatch import UnseenByDynamo, tree_leaves


class Watch(UnseenByDynamo):
    """While on, notes the first such operator, all collectives, and all other GPUs."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.found: str | None = None
        #: With what each was given for its group.
        self.collectives: list[tuple[str, Any]] = []
        self.others: set[int] = set()  #: torch's indices
        self._device = device
        self._drew: str | None = None
        self._states: Mapping[int, Any] = {}

    def __enter__(self) -> Watch:
        self._states = self._device.states_elsewhere()
        return cast(Watch, super().__enter__())

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        now = self._device.states_elsewhere()
        drew = [each for each in sorted(self.others) if now.get(each) != self._states.get(each)]
        if drew:
            self._drew = f"it draws random numbers on cuda:{drew[0]}"

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.found is None:
            kind = obstacles.of_call(func, args, kwargs, on_host=self._on_host)
            self.found = str(func) if kind == "library state" else None
        if collectives.is_collective(func):
            self.collectives.append((str(func), collectives.group_of(func, args, kwargs)))
        result = func(*args, **kwargs)
        found = filter(self._device.apart, tree_leaves((args, kwargs, result)))
        self.others.update(each.device.index for each in found)
        return result

    def _on_host(self, tensor: torch.Tensor) -> bool:
        return not self._device.owns(tensor)

    @property
    def reason(self) -> str | None:
        """Why the callable must not be captured, if so."""
        if self.found is not None:
            return f"{self.found} leaves its library unusable when it is captured"
        if self._drew is not None:
            return f"{self._drew}; a graph draws those of its first GPU alone"
        return None


def require_seeds_on_device(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises CaptureFailed for one on the host: its address would be read on the device, which ends
    the process."""
    # Most take none, and a call of theirs is not looked at: of_call() reads all that it is given.
    if obstacles.seeds_of(operator) and obstacles.of_call(operator, args, kwargs) == "host seed":
        raise CaptureFailed(f"{operator} reads a random seed on the host", str(operator))
