"""What is tried in which order, as data.

The design's rule 1: whatever is not proven falls back. A *policy* says how much of a graph is made
relocatable, and the ladder is the order of policies; each rung gives up more: pieces of scratch
share no bytes of the arena (memory that is read through a table of addresses lives longer than the
nodes that mention it); changing inputs are copied into static buffers instead of patched; scratch
stays in a private pool instead of the arena; constants must stand where they were captured instead
of being re-bound. Below the last rung the compiled callable runs without a graph.

On each rung there are retreats that cost less than the next rung: an arena in pieces where memory
runs out; the alignment that the arguments have, where they were captured as less aligned and a
proof failed (other kernels may round differently); the storage offsets of the linked call kept,
where the callable may count from the start of a storage; and a callable that asks whether it is
captured told that it is not (asking.py). An *attempt* is a rung with its retreats. `attempts()`
lists all in their order, and `remaining()` says which of them a setback leaves.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Policy:
    """What is given up. All False: everything is relocated, and scratch shares memory."""

    scratch_apart: bool = False
    copy_inputs: bool = False
    private_scratch: bool = False
    fix_constants: bool = False

    @property
    def copy_free(self) -> bool:
        """Whether nothing is copied and no memory is held between calls."""
        return not (self.copy_inputs or self.private_scratch or self.fix_constants)

    def __str__(self) -> str:
        given_up = [
            text
            for flag, text in (
                (self.scratch_apart, "scratch apart"),
                (self.copy_inputs, "inputs copied"),
                (self.private_scratch, "scratch in a private pool"),
                (self.fix_constants, "constants fixed"),
            )
            if flag
        ]
        return ", ".join(given_up) or "everything relocated"


LADDER = (
    Policy(),
    Policy(scratch_apart=True),
    Policy(scratch_apart=True, copy_inputs=True),
    Policy(private_scratch=True),
    Policy(copy_inputs=True, private_scratch=True),
    Policy(copy_inputs=True, private_scratch=True, fix_constants=True),
)

COPYING = Policy(copy_inputs=True)
"""Everything relocated but changing arguments. Not on the ladder: where a proof of this rung would
pass, that of the first does too."""


def ladder(private_scratch: bool, copied: bool = False) -> tuple[Policy, ...]:
    """The policies to try in turn on a device that has private pools, or has none. `copied`: only
    those that copy changing arguments into place, for measuring what patching them is worth."""
    rungs = (COPYING, *LADDER) if copied else LADDER
    return tuple(
        policy
        for policy in rungs
        if (private_scratch or not policy.private_scratch) and (policy.copy_inputs or not copied)
    )


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One way to link."""

    policy: Policy
    arena_in_pieces: bool = False  #: none larger than the callable's largest piece of scratch
    told: bool = True  #: a callable that asks whether it is captured is told the truth
    least_aligned: bool = False  #: arguments as little aligned as those of calls that were refused
    keep_offsets: bool = False  #: only for calls with the storage offsets of this one


class Setback(enum.Enum):
    """Why an attempt gave no program, where another one may."""

    MEMORY_SHORT = "memory ran out"
    CAPTURES_DIFFER = "two captures differ when storage offsets do"
    OFFSETS_DOUBTFUL = "a proof failed, and the callable may count from the start of a storage"
    ASKED = "a proof failed, and the callable asked whether it is captured"
    NOT_CAPTURED = "told that it is not captured, the callable cannot be"
    PROOF_FAILED = "a proof failed"


def attempts(
    policies: Sequence[Policy], *, always_in_pieces: bool, least_aligned: bool
) -> tuple[Attempt, ...]:
    """All attempts, in their order. `least_aligned`: calls were refused for their alignment."""
    return tuple(
        Attempt(policy, in_pieces, told, least, keep_offsets)
        for policy in policies
        for in_pieces in ((True,) if always_in_pieces else (False, True))
        for told in (True, False)
        for least in ((True, False) if least_aligned else (False,))
        for keep_offsets in (False, True)
    )


def remaining(later: Sequence[Attempt], failed: Attempt, setback: Setback) -> tuple[Attempt, ...]:
    """Those of the `later` attempts that are left when one `failed`; the first is next. Memory that
    is short, or an alignment that is wrong, stays so whatever else is tried. Offsets are kept for
    the attempt alone, and who asks is told otherwise on one rung: a later one begins without."""
    match setback:
        case Setback.MEMORY_SHORT:
            return tuple(each for each in later if each.arena_in_pieces > failed.arena_in_pieces)
        case Setback.CAPTURES_DIFFER | Setback.OFFSETS_DOUBTFUL:
            kept = dataclasses.replace(failed, keep_offsets=True)
            return tuple(later[later.index(kept) :]) if kept in later else ()
        case Setback.ASKED:
            return tuple(later[later.index(dataclasses.replace(failed, told=False)) :])
        case Setback.PROOF_FAILED if failed.least_aligned:
            return tuple(each for each in later if not each.least_aligned)
        case _:
            return tuple(each for each in later if each.policy != failed.policy)
