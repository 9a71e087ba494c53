"""The kinds of random programs, and what a run of many needs to know of each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from .tally import Counts, Tally


@dataclasses.dataclass(frozen=True)
class Subject:
    programs: Callable[[int], Any]  #: a strategy; given is the percentage through Dynamo
    run: Callable[[Any], Any]  #: one of them; raises what is wrong
    tally: type[Counts]
    lanes: bool = False  #: nodes may run side by side


def subject(name: str) -> Subject:
    """`name` as on the command line: whole steps, or what torch.compile is given."""
    if name.endswith("-steps"):
        from .steps import check as check_steps
        from .steps import strategies as strategies_of_steps
        from .steps.tally import StepTally

        place = name.removesuffix("-steps")
        return Subject(
            lambda dynamo_share: strategies_of_steps.steps(),
            functools.partial(check_steps.run, way=check_steps.way(place)),
            StepTally,
        )
    from . import backends, branches, check, strategies

    backend = backends.backend(name)
    programs = branches.programs if backend.lanes else strategies.programs
    return Subject(
        lambda dynamo_share: programs(dynamo_share=dynamo_share),
        functools.partial(check.run, backend=backend),
        Tally,
        backend.lanes,
    )
