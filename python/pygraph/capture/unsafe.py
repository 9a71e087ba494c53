"""Operators that must not even be tried in a capture.

A capture that fails is rolled back, but what a library does to its own state is beyond reach. Seen
on an H200 with CUDA 13.0: cusolverDnXsyevd fails in a capture and from then on outside of one too,
in every later call of the process. So the first call of a callable, which runs for real, is watched
for such operators.
"""

from __future__ import annotations

from typing import Any

from pygraph.capture.device import Device
from pygraph.torch_private.dispatch import TorchDispatchMode

#: Eigenvalue and singular value decompositions: cuSOLVER waits for the device inside of them.
_BREAK_THEIR_LIBRARY = frozenset(
    (
        "aten::_linalg_eigh",
        "aten::_linalg_eigvals",
        "aten::linalg_eig",
        "aten::linalg_eigvals",
        "aten::_linalg_svd",
        "aten::linalg_lstsq",
    )
)


class Watch(TorchDispatchMode):
    """While on, notes the first such operator that works on the device."""

    supports_higher_order_operators = True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.found: str | None = None
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if (
            self.found is None
            and name in _BREAK_THEIR_LIBRARY
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
