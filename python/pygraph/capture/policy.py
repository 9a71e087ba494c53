"""How much of a graph is made relocatable, and the ladder of retreats when a proof fails.

The design's rule 1: whatever is not proven falls back. Each rung gives up more: pieces of scratch
share no bytes of the arena (memory that is read through a table of addresses lives longer than the
nodes that mention it); changing inputs are copied into static buffers instead of patched; scratch
stays in a private pool instead of the arena; constants must stand where they were captured instead
of being re-bound. Below the last rung the compiled callable runs without a graph.
"""

from __future__ import annotations

import dataclasses


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


def ladder(private_scratch: bool, copied: bool = False) -> tuple[Policy, ...]:
    """The policies to try in turn on a device that has private pools, or has none. `copied`: only
    those that copy changing arguments into place, for measuring what patching them is worth."""
    rungs = (COPYING, *LADDER) if copied else LADDER
    return tuple(
        policy
        for policy in rungs
        if (private_scratch or not policy.private_scratch) and (policy.copy_inputs or not copied)
    )


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
