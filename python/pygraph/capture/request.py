"""What is to be linked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pygraph.capture import generators
from pygraph.capture.device import Device


@dataclasses.dataclass
class Request:
    """What is to be linked: a callable, and one call of it that has been made for real."""

    function: Callable[[list[Any]], Any]
    arguments: Sequence[Any]
    changing: Sequence[int]  #: arguments that differ from call to call
    mutated: frozenset[int]  #: arguments that the callable writes
    results: Sequence[Any]  #: what the real call returned
    device: Device
    arena_in_pieces: bool  #: none larger than the callable's largest piece of scratch
    #: states of the generators before the real call, and after, by source (generators.py)
    random_before: generators.States = dataclasses.field(default_factory=dict)
    random_after: generators.States = dataclasses.field(default_factory=dict)
    drew_on_host: bool = False  #: the real call drew random numbers on the host
    #: arguments that a call may have on the host, in place of the device
    elsewhere: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()  #: results that die at about the same time
    given: frozenset[int] = frozenset()  #: arguments that the caller does not need any more
    cut: bool = False  #: the graph may be launched in parts, for the sake of its peak memory
    #: bytes that other calls' arguments are known to be aligned to, by index, where it may be less;
    #: emptied where a proof fails with it
    alignments: dict[int, int] = dataclasses.field(default_factory=dict)
    #: link only for calls whose arguments have the storage offsets of this one
    keep_offsets: bool = False

    @property
    def draws(self) -> list[int]:
        """The generators that the callable draws from, by source."""
        return generators.drawn(self.random_before, self.random_after)
