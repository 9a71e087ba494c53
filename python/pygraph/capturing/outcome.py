"""What comes of linking: a proven program, or why there is none.

Each attempt leaves a record, and what is to be known of all of them is told from the list of these.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pygraph import _engine
from pygraph.capturing.attempts import Attempt, Setback
from pygraph.capturing.proof import Verdict
from pygraph.capturing.spreading import SpreadResult


@dataclasses.dataclass(frozen=True)
class LinkedProgram:
    """A program and what its proof found, with the figures for the report."""

    program: _engine.TensorProgram
    attempt: Attempt
    figures: Mapping[str, int]
    keep: Sequence[Any]  #: memory that the graph addresses where it was captured
    #: "link": all but the proof, of that "capture": both captures, "compare": reading to layout;
    #: "proof", and of that "proof_runs": the program's; "lanes": trying and proving them
    timings_ms: Mapping[str, float]
    #: Words that look like phantom addresses are left; the callable may count from the start of a
    #: storage, and then a proof fails unless the offsets are kept.
    doubtful: bool
    asked: bool  #: the callable, whether it is captured
    verdict: Verdict  #: it serves calls only if that is passed
    spread: SpreadResult


@dataclasses.dataclass(frozen=True)
class Failure:
    """What ended the attempts, if it was no failed proof."""

    reason: str
    memory_short: bool = False
    operator: str | None = None  #: the guilty one, where it is known
    source: str | None = None
    unexpected: Exception | None = None  #: a fault of ours


@dataclasses.dataclass(frozen=True)
class Tried:
    """What came of one attempt."""

    attempt: Attempt
    timings_ms: Mapping[str, float]
    linked: LinkedProgram | None = None  #: if it was proven; the memory of others is free by now
    verdict: Verdict | None = None  #: None: it came to no proof
    failure: Failure | None = None  #: what ended it before that
    places: int = 0  #: how many differ, of captures that do (CapturesDiffer)
    because: str = ""  #: why only programs that keep offsets are tried next
    setback: Setback | None = None  #: None: nothing else is tried
    dissent: bool = False  #: ended by what another rank objects


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the attempts came to."""

    tried: Sequence[Tried]  #: in their order, one at least

    @property
    def linked(self) -> LinkedProgram | None:
        """The proven program."""
        return self.tried[-1].linked

    @property
    def verdict(self) -> Verdict | None:
        """Of the last proof; None: there was none."""
        proofs = self._proofs
        return proofs[-1].verdict if proofs else None

    @property
    def faults(self) -> tuple[str, ...]:
        """Why rungs of the ladder were left."""
        last = {each.attempt.policy: each.verdict for each in self._proofs}
        return tuple(
            f"{policy}: {verdict}"
            for policy, verdict in last.items()
            if verdict is not None and not verdict.passed
        )

    @property
    def failure(self) -> Failure | None:
        """What ended the attempts, if it was no failed proof. Captures that differ are told by
        those of the attempt before that had some, too, where less differs in them. What another
        answer led to explains more than what came of the rungs behind it."""
        last = self.tried[-1]
        untold = [each for each in self.tried if each.setback is Setback.NOT_CAPTURED]
        if untold and last.linked is None:
            return untold[0].failure
        differing = [each for each in self.tried if each.setback is Setback.CAPTURES_DIFFER]
        if last.setback is Setback.CAPTURES_DIFFER and len(differing) > 1:
            before = differing[-2]
            return before.failure if 0 < before.places <= last.places else last.failure
        return last.failure

    @property
    def offsets_kept(self) -> str:
        """Why the program serves only calls with the offsets of the linked one; or ""."""
        if self.linked is None or not self.linked.attempt.keep_offsets:
            return ""
        return next((each.because for each in reversed(self.tried) if each.because), "")

    @property
    def alignment_doubted(self) -> bool:
        """Whether a proof failed with arguments captured as the least aligned."""
        return any(
            each.attempt.least_aligned and each.verdict is not None and not each.verdict.passed
            for each in self.tried
            if each.setback is not Setback.ASKED
        )

    @property
    def timings_ms(self) -> Mapping[str, float]:
        """Of all attempts together; one that ended before its verdict has "link" alone."""
        found: dict[str, float] = collections.defaultdict(float)
        for each in self.tried:
            for step, took in each.timings_ms.items():
                found[step] += took
        return found

    @property
    def reasons(self) -> str:
        """Why there is no program, or none on an earlier rung."""
        ended = [self.failure.reason] if self.failure is not None else []
        return "; ".join([*self.faults, *ended])

    @property
    def _proofs(self) -> list[Tried]:
        """The attempts whose verdicts count: not of those that keep offsets and fail where the same
        rung has failed before."""
        found: list[Tried] = []
        for each in self.tried:
            rungs = [earlier.attempt.policy for earlier in found]
            again = each.attempt.keep_offsets and each.attempt.policy in rungs
            if each.verdict is not None and (each.verdict.passed or not again):
                found.append(each)
        return found
