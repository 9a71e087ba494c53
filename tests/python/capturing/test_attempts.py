"""What is tried in which order, told once more as nested retries and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pygraph.capturing.attempts import (
    COPYING,
    LADDER,
    Attempt,
    Policy,
    Setback,
    attempts,
    ladder,
    remaining,
)

FINE, SHORT, DIFFERS, DOUBTED, WRONG, FAILS = range(6)
Fate = Callable[[Attempt], int]
POLICIES = LADDER[:3]


class EndedError(Exception):
    """No further attempt."""


class AskedError(Exception):
    """A proof failed, of a callable that asked whether it is captured."""


class FailedError(Exception):
    """Told that it is not captured, the callable cannot be."""


def walked(fate: Fate, always_in_pieces: bool, least_aligned: bool, asks: bool) -> list[Attempt]:
    """The attempts that are made if they end as `fate` says."""
    made = []
    left = attempts(POLICIES, always_in_pieces=always_in_pieces, least_aligned=least_aligned)
    while left:
        attempt, later = left[0], left[1:]
        made.append(attempt)
        end = fate(attempt)
        if end == FINE:
            break
        doubtful = end == DOUBTED and not attempt.keep_offsets and not attempt.least_aligned
        otherwise = Setback.OFFSETS_DOUBTFUL if doubtful else Setback.PROOF_FAILED
        setback = {
            SHORT: Setback.MEMORY_SHORT,
            DIFFERS: Setback.CAPTURES_DIFFER,
            FAILS: Setback.NOT_CAPTURED,
        }.get(end, Setback.ASKED if asks and attempt.told else otherwise)
        if end == FAILS and attempt.told:
            break
        left = remaining(later, attempt, setback)
    return made


class Nested:
    """The same by retries within retries, each of which remembers what it has given up."""

    def __init__(self, fate: Fate, in_pieces: bool, least_aligned: bool, asks: bool) -> None:
        self.fate, self.in_pieces, self.least, self.asks = fate, in_pieces, least_aligned, asks
        self.made: list[Attempt] = []

    def run(self) -> list[Attempt]:
        try:
            for policy in POLICIES:
                if self.with_memory(policy) == FINE:
                    break
        except (EndedError, MemoryError):
            pass
        return self.made

    def with_memory(self, policy: Policy) -> int:
        try:
            return self.with_answers(policy)
        except MemoryError:
            if self.in_pieces:
                raise
            self.in_pieces = True
        return self.with_answers(policy)

    def with_answers(self, policy: Policy) -> int:
        try:
            return self.with_retreats(policy, told=True)
        except AskedError:
            keep_offsets = self.made[-1].keep_offsets
        try:
            return self.with_retreats(policy, told=False, keep_offsets=keep_offsets)
        except FailedError:
            return FAILS

    def with_retreats(self, policy: Policy, told: bool, keep_offsets: bool = False) -> int:
        end = self.at_any_offsets(policy, told, keep_offsets)
        if end != FINE and self.least:
            self.least = False
            end = self.at_any_offsets(policy, told)
        if end == DOUBTED and not self.made[-1].keep_offsets:
            end = self.once(policy, told, keep_offsets=True)
        return end

    def at_any_offsets(self, policy: Policy, told: bool, keep_offsets: bool = False) -> int:
        end = self.once(policy, told, keep_offsets)
        again = end == DIFFERS and not keep_offsets
        return self.once(policy, told, keep_offsets=True) if again else end

    def once(self, policy: Policy, told: bool, keep_offsets: bool) -> int:
        attempt = Attempt(policy, self.in_pieces, told, self.least, keep_offsets)
        self.made.append(attempt)
        end = self.fate(attempt)
        if end == SHORT:
            raise MemoryError
        if end == FAILS:
            raise EndedError if told else FailedError
        if end == DIFFERS and keep_offsets:
            raise EndedError
        if end in (DOUBTED, WRONG) and told and self.asks:
            raise AskedError
        return end


@given(
    st.lists(st.integers(FINE, FAILS), min_size=48, max_size=48),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_they_are_made_in_the_order_of_nested_retries(
    fates: list[int], always_in_pieces: bool, least_aligned: bool, asks: bool
) -> None:
    known = attempts(POLICIES, always_in_pieces=False, least_aligned=True)

    def fate(attempt: Attempt) -> int:
        return fates[known.index(attempt)]

    nested = Nested(fate, always_in_pieces, least_aligned, asks)
    assert walked(fate, always_in_pieces, least_aligned, asks) == nested.run()


def test_without_a_setback_each_rung_is_tried_once() -> None:
    tried = walked(lambda _: WRONG, always_in_pieces=False, least_aligned=False, asks=False)
    assert tried == [Attempt(policy) for policy in POLICIES]


def test_an_attempt_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Attempt(Policy()).keep_offsets = True  # type: ignore[misc]


def test_the_ladder_of_a_device() -> None:
    assert ladder(private_scratch=True) == LADDER
    assert all(not policy.private_scratch for policy in ladder(private_scratch=False))
    copying = ladder(private_scratch=True, copied=True)
    assert copying[0] == COPYING and all(policy.copy_inputs for policy in copying)
