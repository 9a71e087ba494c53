"""Operators that must not even be tried in a capture.

A capture that fails is rolled back, but what a library does to its own state is beyond reach, in
every later call of the process. So the first call of a callable, which runs for real, is watched
for operators that are known to leave their library unusable.
"""

from __future__ import annotations

from typing import Any

from pygraph.capture.device import Device
from pygraph.operators.known import known
from pygraph.operators.table import Property
from pygraph.torch_private.dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """While on, notes the first such operator that works on the device."""

    supports_higher_order_operators = True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.found: str | None = None
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            self.found is None
            and known(func, Property.BREAKS_ITS_LIBRARY)
            and any(map(self._device.owns, args))
        ):
            self.found = str(func)
        return func(*args, **(kwargs or {}))

    @property
    def reason(self) -> str | None:
        """Why the callable must not be captured, if so."""
        if self.found is None:
            return None
        return f"{self.found} leaves its library unusable when it is captured"
