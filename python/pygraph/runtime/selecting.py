"""Carries out what decide/selection.py decides, for the programs of one compiled graph."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from pygraph import _engine
from pygraph.capturing.device import Device
from pygraph.decide import cost_model, selection
from pygraph.decide.selection import Clocked, Decision, Select
from pygraph.reporting import FALLBACK, GRAPHED, PARTLY, GraphReport, Selected

log = logging.getLogger(__name__)

#: So many programs of one graph that do not pay, and none that does: it gets no further ones.
_ENOUGH_THAT_REST = 3
_seeds = itertools.count(1)


class Selecting:
    """Whether programs serve, or the callable does."""

    def __init__(
        self, select: Select, device: Device, dispatcher: _engine.Dispatcher, report: GraphReport
    ) -> None:
        self.select: Select = select
        self._device = device
        self._dispatcher = dispatcher
        self._report = report
        self._state = GRAPHED  #: of the report while programs serve

    @property
    def hopeless(self) -> bool:
        """Whether further programs are not worth linking, as those that there are do not pay."""
        found = self._report.selection
        return len(found) >= _ENOUGH_THAT_REST and not any(each.graph for each in found)

    def add(
        self,
        program: Any,
        sizes: Sequence[int],
        contents: cost_model.Contents,
        *,
        callable_s: float,
        graph_s: float,
    ) -> None:
        """`program` has been proven: both ways took so long until the device was idle."""
        self._state = self._report.state
        of = "x".join(map(str, sizes))
        if self.select == "model":
            with_us = cost_model.with_graph(contents)
            without_us = cost_model.without_graph(contents)
            pays = with_us <= without_us
            self._note(Selected(of, pays, "model", 0, {"host": with_us}, {"host": without_us}))
            if not pays:
                self._dispatcher.rest(program)
        elif self.select == "measure":
            if selection.won_when_proven(callable_s, graph_s):
                times = {"device": 1e6 * graph_s}, {"device": 1e6 * callable_s}
                self._note(Selected(of, True, "proof", 1, *times))
                return
            judge = functools.partial(self._judge, of)
            clocks = not self._device.twin
            self._dispatcher.select(program, judge, device_clock=clocks, seed=next(_seeds))

    def _judge(self, of: str, pairs: list[Any], over: bool) -> tuple[bool, bool | None] | None:
        clocked = [(Clocked(*graph), Clocked(*other)) for graph, other in pairs]
        decision = selection.judge(clocked, over)
        if decision is None:
            return None
        self._note(_selected(of, decision))
        return decision.graph, decision.idle

    def _note(self, found: Selected) -> None:
        report = self._report
        report.selection = [each for each in report.selection if each.sizes != found.sizes]
        report.selection.append(found)
        log.info("%s: %s", report.name, found)
        if any(each.graph for each in report.selection):
            if report.state == FALLBACK:
                report.state, report.reason = self._state, None
        elif report.state in (GRAPHED, PARTLY):
            report.state, report.reason = FALLBACK, f"a graph does not pay: {found}"


def _selected(of: str, decision: Decision) -> Selected:
    by = decision.clock or "nothing"
    return Selected(of, decision.graph, by, decision.pairs, decision.with_us, decision.without_us)
