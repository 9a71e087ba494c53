"""The sets of sizes that one compiled graph is called with, and which of them have a program.

A signature is the tuple of integer arguments of a call (dynamic sizes); sizes, strides and dtypes
of tensors follow from it, which Dynamo's guards see to. Programs are bounded: a new one evicts the
one used longest ago. A signature that was evicted must be seen four times as often before it gets
another, so that a stream of many sizes does not spend its time on linking.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

#: Calls of one signature that run uncaptured before it is captured.
WARM_UP_CALLS = 1
#: Signatures that are remembered per program, those without a program included.
_REMEMBERED = 64
_BACK_OFF = 4
#: How often linking is tried again after memory was short, or constants have moved.
MAXIMUM_ATTEMPTS = 4


@dataclasses.dataclass
class Signature:
    """One set of sizes."""

    calls: int = 0  #: that reached the slow path
    settled: bool = False  #: linked, or given up: the slow path only runs the callable
    call: Any = None  #: the program, once there is one
    keep: Any = None  #: memory that the program needs
    attempts: int = 0
    evictions: int = 0

    def claim(self) -> bool:
        """Settles it for the caller to link; False when somebody else has."""
        first, self.settled = not self.settled, True
        return first

    def forget(self) -> None:
        """Drops the program and its memory."""
        self.call = self.keep = None

    def postpone(self) -> None:
        """Tries again after four times as many calls as the last time, a few times."""
        self.attempts += 1
        self.settled = self.attempts >= MAXIMUM_ATTEMPTS
        self.calls = WARM_UP_CALLS - _BACK_OFF**self.attempts + 1

    def evict(self) -> None:
        """Its program made room for another one's."""
        self.forget()
        self.evictions += 1
        self.settled = False
        self.calls = WARM_UP_CALLS - _BACK_OFF**self.evictions


class Signatures:
    """Those of one compiled graph; at most `programs` have a program."""

    def __init__(self, programs: int) -> None:
        self.programs = programs
        self._known: collections.OrderedDict[tuple[int, ...], Signature] = collections.OrderedDict()

    def of(self, arguments: list[Any]) -> Signature:
        """The signature of a call. Those without a program are forgotten, oldest first, when there
        are too many."""
        key = tuple(argument for argument in arguments if type(argument) is int)
        signature = self._known.get(key)
        if signature is None:
            signature = self._known[key] = Signature()
            self._shrink(key)
        self._known.move_to_end(key)
        return signature

    def _shrink(self, new: tuple[int, ...]) -> None:
        excess = len(self._known) - self.programs * _REMEMBERED
        idle = [k for k, known in self._known.items() if known.call is None and k != new]
        for key in idle[: max(0, excess)]:
            del self._known[key]

    @property
    def linked(self) -> list[Signature]:
        """Those that have a program."""
        return [known for known in self._known.values() if known.call is not None]

    def owner(self, call: Any) -> Signature | None:
        """Whose program `call` is."""
        return next((known for known in self._known.values() if known.call is call), None)
