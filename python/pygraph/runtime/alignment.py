"""Arguments that come less aligned than those that a program was captured with.

A kernel may have been chosen by how its arguments were aligned, so a program copies what is less
aligned (design, rule 3). Slices of a batch come with every alignment that there is, and the first
has the best: captured with it, a program would copy most of them for ever. So a program is linked
anew for a call that is less aligned, a few times at most. It keeps serving, by copies, while the
time for that is not there (signatures.py). Programs of other sizes that are linked later are
captured as if their arguments were as little aligned as those: what fits such an address fits every
better one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph.capturing import tensors
from pygraph.decide.signatures import Signature, Signatures

#: Programs that are linked for a signature only because arguments were less aligned: from 256 bytes
#: down to 16 there are five alignments, and several arguments have rarely all of them.
RELINKS = 4
#: Less aligned calls that are served by copies until it is asked again whether the time is there.
PATIENCE = 256
_ENDLESS = -1


class Alignment:
    """Of the programs of one compiled graph."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        #: The least that arguments of refused calls were aligned, in bytes, by index.
        self.least: dict[int, int] = {}

    def relink(
        self,
        signature: Signature,
        arguments: Sequence[Any],
        possible: Callable[[Sequence[Any]], bool],
    ) -> bool:
        """Whether a call came here because it is less aligned, and the program is to be linked anew
        for its arguments, if `possible`. The signature can be claimed then."""
        program = signature.program
        refused = program is not None and program.patience == 0 and program.accepts(arguments)
        if not refused or not program.less_aligned(arguments):
            return False
        self._learn(arguments)
        if self._signatures.seconds_to_wait(gap=1) > 0 or not possible(arguments):
            program.patience = PATIENCE
            return False
        signature.relink()
        return True

    def after_link(self, signature: Signature, before: Any) -> None:
        """An attempt to link has ended; `before`: the program that there was."""
        if signature.program is None:
            return
        failed = signature.program is before
        signature.settle()
        # Else the first call that is less aligned shall be heard of.
        signature.program.patience = _ENDLESS if failed or signature.relinks >= RELINKS else 0

    def forget(self) -> None:
        """A proof failed with arguments captured so: other calls are served by copies."""
        self.least.clear()

    def _learn(self, arguments: Sequence[Any]) -> None:
        most = tensors.MAXIMUM_ALIGNMENT
        for index, argument in enumerate(arguments):
            if isinstance(argument, torch.Tensor):
                aligned = tensors.alignment_mask(argument.data_ptr()) + 1
                if tensors.KERNEL_ALIGNMENT <= aligned < self.least.get(index, most):
                    self.least[index] = aligned
