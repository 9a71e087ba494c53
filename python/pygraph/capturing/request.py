"""What is to be linked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pygraph._engine import Formula
from pygraph.capturing.attempts import Attempt, Policy
from pygraph.capturing.consent import ALONE, Consent
from pygraph.capturing.device import Device, Function
from pygraph.capturing.holdings import Holdings
from pygraph.capturing.host_numbers import HostNumbers
from pygraph.capturing.lanes import NO_LANES, LaneOptions
from pygraph.capturing.reference import Reference


@dataclasses.dataclass(frozen=True)
class Request:
    """A callable, and one call of it that has been made for real."""

    function: Function  #: what is captured; the reference's checks its arguments' alignment first
    holdings: Holdings
    reference: Reference
    arguments: Sequence[Any]  #: the reference's, those that are staged on the device
    #: arguments that a call may have on the host, in place of the device
    elsewhere: frozenset[int] = frozenset()
    staged: frozenset[int] = frozenset()  #: arguments that calls have on the host
    #: of some of these, what calls bring in place of them
    computed: Mapping[int, Sequence[Formula]] = dataclasses.field(default_factory=dict)
    fetched: frozenset[int] = frozenset()  #: results that callers get on the host
    gradients: frozenset[int] = frozenset()  #: results that die at about the same time
    given: frozenset[int] = frozenset()  #: arguments that the caller does not need any more
    held: frozenset[int] = frozenset()  #: those of them whose memory stays all the same
    cut: bool = False  #: the graph may be launched in parts, for the sake of its peak memory
    #: bytes that other calls' arguments are known to be aligned to, by index, where it may be less
    alignments: Mapping[int, int] = dataclasses.field(default_factory=dict)
    numbers: HostNumbers = dataclasses.field(default_factory=HostNumbers)
    consent: Consent = ALONE  #: of the ranks that its collectives are with
    collectives: bool = False  #: some are known to be in it
    lanes: LaneOptions = NO_LANES  #: that what does not depend on each other may be spread over

    def spreads(self, attempt: Attempt) -> bool:
        """Whether that is tried: where all memory can be laid out anew."""
        return bool(self.lanes.numbers) and attempt.policy == Policy()

    @property
    def device(self) -> Device:
        return self.reference.device

    @property
    def changing(self) -> Sequence[int]:
        """The arguments that differ from call to call."""
        return self.reference.changing

    @property
    def mutated(self) -> frozenset[int]:
        """The arguments that the callable writes."""
        return self.reference.mutated
