"""Consent: runs of a callable that has collectives are made by all ranks of its group, or by none.

A proof runs a graph, and perhaps its callable, more often than the program does. Where such a run
has collectives, each rank must make one for each that another rank makes, or they wait for each
other for ever. So every run is asked for before it is made, and whoever needs none any more makes
one all the same, as long as others do. Any two runs of one call match: they have the same
collectives in the same order, whether the graph makes them or the callable.

Who answers stands above (decide/agreement.py). A callable without collectives asks nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from pygraph.capturing.attempts import Attempt, Setback
from pygraph.capturing.device import CaptureFailed

#: Makes a run of the callable, from the same state, whose results nobody needs.
Favour = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Objection:
    """Why a rank has no program by an attempt."""

    reason: str
    setback: Setback | None = None  #: None: no other attempt is made
    memory_short: bool = False
    operator: str | None = None


class Dissent(CaptureFailed):
    """The group has no program by this attempt, for an objection of one of its ranks."""

    def __init__(self, objection: Objection) -> None:
        super().__init__(objection.reason, objection.operator)
        self.objection = objection


class Consent(Protocol):
    """What the ranks of a group decide together about one graph. Each method waits until all ranks
    have called one, and raises Dissent where one of them objects."""

    def begin(self, attempt: Attempt) -> None:
        """Waits for nobody: says what the next calls are about."""

    def before_run(self) -> None:
        """A run is about to be made."""

    def settle(self, favour: Favour) -> None:
        """No further run is needed; makes those that others need by `favour`."""

    def make_up(self, favour: Favour) -> None:
        """Waits for nobody: makes a run that was announced by `favour`, where it did not begin."""

    def object(self, objection: Objection) -> Objection:
        """There is no program here. Which objection counts, for all ranks alike."""


class _Alone:
    """The consent of nobody else."""

    def begin(self, attempt: Attempt) -> None: ...

    def before_run(self) -> None: ...

    def settle(self, favour: Favour) -> None: ...

    def make_up(self, favour: Favour) -> None: ...

    def object(self, objection: Objection) -> Objection:
        return objection


ALONE: Consent = _Alone()
