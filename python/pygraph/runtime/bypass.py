"""The bypass: calls that the compiled callable serves without anybody hearing of them.

Most calls of a stream of many sizes, and all of a graph that was given up, are served uncaptured
and will be for a while. The dispatcher is told so, and does it in C++ (src/torch/bypass.h).
"""

from __future__ import annotations

from typing import Any

from pygraph import _engine
from pygraph.capturing import tensors
from pygraph.decide.signatures import Signature, Signatures
from pygraph.reporting import WARMING, GraphReport
from pygraph.runtime.fallback import Fallback

#: Seconds after which it is asked again whether linking has to wait: replays shorten that.
_ASKED_AGAIN = 0.05


class Bypass:
    """Those of one compiled graph."""

    def __init__(
        self,
        dispatcher: _engine.Dispatcher,
        fallback: Fallback,
        signatures: Signatures,
        report: GraphReport,
        closed: bool = False,
    ) -> None:
        """`closed`: Python is to hear of every call without a program."""
        self._closed = closed
        self._report = report
        self._dispatcher = dispatcher
        self._fallback = fallback
        self._signatures = signatures
        self._told = False  #: the dispatcher knows the callable
        self._waited = False  #: a signature had to wait for time

    def sync(self, signature: Signature, arguments: list[Any]) -> None:
        """Counts this call of a signature, and those that nobody has heard of."""
        unheard, last = self._dispatcher.bypassed(arguments) if self._told else (0, 0)
        signature.count(self._dispatcher.calls, unheard, last)

    def for_good(self, arguments: list[Any]) -> None:
        """Calls like this one get no graph any more."""
        if self._may_bypass(arguments):
            self._dispatcher.open_bypass(arguments)

    def while_nothing_happens(self, signature: Signature, arguments: list[Any]) -> None:
        """The calls of a signature that only warm up, or wait for a place."""
        if self._may_bypass(arguments):
            self._dispatcher.open_bypass(arguments, signature.uneventful)

    def has_place(self, signature: Signature) -> bool:
        """Whether there is room for a program of it, or another one's should be made."""
        if not self._signatures.full:
            return True
        return signature.deserves_place(self._dispatcher.calls, self._dispatcher.oldest_used)

    def must_wait(self, signature: Signature, arguments: list[Any]) -> bool:
        """Whether now is not the time to link it; its calls are bypassed then."""
        if not self.has_place(signature):
            self.while_nothing_happens(signature, arguments)
            return True
        self._signatures.count_savings(self._dispatcher.replays, self._signatures.device.idle())
        seconds = self._signatures.seconds_to_wait(signature.gap)
        if seconds and self._may_bypass(arguments):
            self._open_to_all(seconds)
        self._waited = self._waited or seconds > 0
        if seconds and self._report.state == WARMING:
            self._report.reason = self.waiting()
        return seconds > 0

    def waiting(self) -> str | None:
        """Why sizes have no program yet, if any had to wait."""
        sizes = max(self._dispatcher.sizes, self._signatures.known)
        return self._signatures.waiting(sizes) if self._waited else None

    def after_link(self, signature: Signature, arguments: list[Any]) -> None:
        """An attempt to link has ended: the next one may have to wait."""
        if not self._may_bypass(arguments):
            return
        if signature.program is not None:
            # To be heard of should the program not accept it.
            self._dispatcher.close_bypass(arguments)
        seconds = self._signatures.seconds_to_wait()
        # Calls that are bypassed until then need not ask any more behind it.
        self._waited = self._waited or (seconds > 0 and not self._signatures.soon)
        self._open_to_all(seconds)

    def _open_to_all(self, seconds: float) -> None:
        self._dispatcher.open_bypass_to_all(min(seconds, _ASKED_AGAIN), self._signatures.soon)

    def _may_bypass(self, arguments: list[Any]) -> bool:
        """Not where signatures differ in more than integers, or arguments must come to another
        device first."""
        integers = self._signatures.integers
        if self._closed or integers is None or not self._fallback.as_it_is:
            return False
        if not self._told:
            self._told = True
            rules = self._signatures.rules
            self._dispatcher.set_bypass(
                self._fallback.function,
                integers,
                self._fallback.looked_at(len(arguments)),
                tensors.KERNEL_ALIGNMENT,
                0 if rules.sizes else rules.capture_at - 1,
            )
        return True
