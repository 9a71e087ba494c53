"""Signatures that rest: calls that the compiled callable serves without anybody hearing of them.

Most calls of a stream of many sizes, and all of a graph that was given up, are served uncaptured
and will be for a while. The dispatcher is told so, and does it in C++ (src/torch/uncaptured.h).
"""

from __future__ import annotations

from typing import Any

from pygraph import _engine
from pygraph.adapter.signatures import Signature, Signatures
from pygraph.adapter.uncaptured import Uncaptured
from pygraph.capture import tensors


class Resting:
    """Those of one compiled graph."""

    def __init__(
        self, dispatcher: _engine.Dispatcher, uncaptured: Uncaptured, signatures: Signatures
    ) -> None:
        self._dispatcher = dispatcher
        self._uncaptured = uncaptured
        self._signatures = signatures
        self._told = False  #: the dispatcher knows the callable

    def for_good(self, arguments: list[Any]) -> None:
        """Calls like this one get no graph any more."""
        self._rest(arguments)

    def while_nothing_happens(self, signature: Signature, arguments: list[Any]) -> None:
        """The calls of a signature that only warm up, or wait for a place."""
        calls = signature.uneventful
        if calls and self._rest(arguments, calls=calls):
            signature.calls += calls

    def must_wait(self, signature: Signature, arguments: list[Any]) -> bool:
        """Whether now is not the time to link it; it rests then."""
        seconds = self._signatures.seconds_to_wait()
        if seconds:
            self._rest(arguments, seconds=seconds)
            return True
        now, oldest = self._dispatcher.calls, self._dispatcher.oldest_used
        if not self._signatures.full or signature.deserves_place(now, oldest):
            return False
        self.while_nothing_happens(signature, arguments)
        return True

    def _rest(
        self, arguments: list[Any], calls: int | None = None, seconds: float | None = None
    ) -> bool:
        """False, and nothing is done, where signatures differ in more than integers, or arguments
        must come to the host first."""
        integers = self._signatures.integers
        if integers is None or self._uncaptured.on_host:
            return False
        if not self._told:
            self._told = True
            looked_at = self._uncaptured.looked_at(len(arguments))
            function = self._uncaptured.function
            alignment = tensors.KERNEL_ALIGNMENT
            self._dispatcher.set_uncaptured(function, integers, looked_at, alignment)
        self._dispatcher.rest(arguments, calls, seconds)
        return True
