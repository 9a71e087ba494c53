"""Carries out what decide/selection.py decides, for the programs of one compiled graph."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing.device import Device
from pygraph.capturing.lanes import LaneTimes
from pygraph.capturing.spreading import SpreadResult
from pygraph.decide import cost_model, selection
from pygraph.decide.selection import Clocked, Decision, Question, Select
from pygraph.reporting import FALLBACK, GRAPHED, PARTLY, GraphReport, Selected
from pygraph.reporting.text import as_bytes
from pygraph.runtime import machine

log = logging.getLogger(__name__)

#: So many programs of one graph that do not pay, and none that does: it gets no further ones.
_ENOUGH_THAT_REST = 3
#: Fewer nodes are patched sooner than a copy is launched, on any machine.
_FEWEST_NODES = 4
#: Decisions that a report keeps, the last ones: sizes come and go.
_MOST_NOTED = 512
_seeds = itertools.count(1)


class Selecting:
    """Whether programs serve, or the callable does, and which arguments they copy."""

    def __init__(
        self, select: Select, device: Device, dispatcher: _engine.Dispatcher, report: GraphReport
    ) -> None:
        self.select: Select = select
        self._device = device
        self._dispatcher = dispatcher
        self._report = report
        self._state = GRAPHED  #: of the report while programs serve
        #: By sizes, the questions that are open.
        self._open: dict[str, set[Question]] = {}
        self._withdraw: Callable[[], None] | None = None  #: ends launches before the guards
        self._go_back: Callable[[], None] | None = None  #: and calls that go past them
        self._program: Any = None  #: which that is about
        self._before_won = False  #: against calls that go past them

    @property
    def measures(self) -> bool:
        """Whether that is found out by the caller's calls."""
        return self.select == "measure"

    @property
    def hopeless(self) -> bool:
        """Whether further programs are not worth linking, as those that there are do not pay."""
        found = self._programs()
        return len(found) >= _ENOUGH_THAT_REST and not any(each.graph for each in found)

    @property
    def undecided(self) -> int:
        """Of how many sizes it is being found out how they are served, for the first time."""
        return sum(map(bool, self._open.values()))

    def forget(self) -> None:
        """Its programs are gone."""
        self._open.clear()

    def add(
        self,
        program: Any,
        sizes: Sequence[int],
        arguments: Sequence[Any],
        contents: cost_model.Contents,
        *,
        callable_s: float,
        graph_s: float,
        by_rule: bool = False,
    ) -> None:
        """`program` has been proven for `arguments`: both ways took so long until the device was
        idle. `by_rule`: what is not clear from that the model decides, and no clock of this process
        alone."""
        self._state = self._report.state
        of = "x".join(map(str, sizes))
        won = selection.won_when_proven(callable_s, graph_s)
        if self.select == "model" or (self.select == "measure" and by_rule and not won):
            with_us = cost_model.with_graph(contents)
            without_us = cost_model.without_graph(contents)
            pays = with_us <= without_us
            self._note(Selected(of, pays, "model", 0, {"host": with_us}, {"host": without_us}))
            if not pays:
                self._dispatcher.rest(program)
        elif self.select == "measure":
            copied = [] if by_rule else self._worth_copying(program, arguments)
            if won:
                times = {"device": 1e6 * graph_s}, {"device": 1e6 * callable_s}
                self._note(Selected(of, True, "proof", 1, *times))
            if not won or copied:
                self._open[of] = {"callable"} if not won else set()
                if copied:
                    self._open[of].add("copies")
                self._dispatcher.select(
                    program,
                    functools.partial(self._judge, of, _described(program, arguments, copied)),
                    device_clock=not self._device.twin,
                    seed=next(_seeds),
                    copied=copied,
                    only_copies=won,
                )

    def note_lanes(self, sizes: Sequence[int], spread: SpreadResult) -> None:
        """What was found of lanes when the graph of these sizes was linked."""
        tried = [(each.lanes, _medians(each)) for each in spread.clocked]
        about = [_in_words(*each) for each in tried]
        about += [spread.fault] if spread.fault else []
        if not about:
            return
        lanes = 1 if spread.found is None else spread.found.linked.lanes
        best = min(tried[1:], key=lambda each: each[1]["latency"], default=(1, {}))
        self._note(
            Selected(
                sizes="x".join(map(str, sizes)),
                graph=lanes > 1,
                by="latency",
                pairs=len(spread.clocked[0].latency) if spread.clocked else 0,
                with_us=dict(tried).get(lanes, {}) if lanes > 1 else best[1],
                without_us=dict(tried).get(1, {}),
                what="lanes",
                about="; ".join(about),
            )
        )

    def try_past(
        self, program: Any, go_back: Callable[[], None], withdraw: Callable[[], None]
    ) -> None:
        """Calls may go past the guards to `program`, until `go_back`; or it may be launched before
        them, until `withdraw`. As long as it is being found out they do neither alone."""
        if self.select == "measure":
            self._go_back = go_back
            self._ask(program, "past", withdraw)

    def try_early(self, program: Any, withdraw: Callable[[], None]) -> None:
        """`program` may be launched before the guards, until `withdraw`."""
        if self.select == "measure":
            self._ask(program, "early", withdraw)

    def _ask(self, program: Any, about: Question, withdraw: Callable[[], None]) -> None:
        self._program, self._withdraw = program, withdraw
        mine = self._open.setdefault("", set())
        mine.discard("past")
        mine.add(about)
        ask = self._dispatcher.try_past if about == "past" else self._dispatcher.try_early
        judge = functools.partial(self._judge, "", "")
        ask(program, judge, device_clock=not self._device.twin, seed=next(_seeds))

    def _answer_past(self, pays: bool) -> None:
        withdraw, go_back, program = self._withdraw, self._go_back, self._program
        if pays:
            self._end_early()
        elif go_back is not None and withdraw is not None:
            self._before_won = True
            go_back()
            self._ask(program, "early", withdraw)

    def _end_early(self) -> None:
        if self._withdraw is not None:
            self._withdraw()
            self._withdraw = None
            self._report.before_guards = False

    def _worth_copying(self, program: Any, arguments: Sequence[Any]) -> list[int]:
        """Arguments that are copied sooner than all nodes that mention them are patched."""
        nodes = program.copyable
        many = [i for i, count in enumerate(nodes) if count >= _FEWEST_NODES]
        if not many:
            return []
        costs = machine.costs(self._device)
        return [
            i
            for i in many
            if cost_model.copying(_size(arguments[i]), costs) < cost_model.patching(nodes[i], costs)
        ]

    def _judge(
        self, of: str, copies: str, pairs: list[Any], over: bool, about: Question
    ) -> tuple[bool, bool | None] | None:
        clocked = [(Clocked(*graph), Clocked(*other)) for graph, other in pairs]
        decision = selection.judge(clocked, over, about)
        if decision is None:
            return None
        if about in ("past", "early"):
            of = ""  # it is of the callable
        if about == "early":
            # What cannot be told apart is not worth the hook that each call goes through.
            decision = dataclasses.replace(
                decision,
                graph=decision.graph and (decision.clock is not None or self._before_won),
            )
        self._open.get(of, set()).discard(about)
        self._note(_selected(of, decision, about, copies if about == "copies" else ""))
        if about == "past":
            self._answer_past(decision.graph)
        elif not decision.graph and about != "copies" and len(self._programs()) <= 1:
            self._open.get("", set()).difference_update({"past", "early"})
            self._end_early()
        return decision.graph, decision.idle

    def _programs(self) -> list[Selected]:
        return [each for each in self._report.selection if each.what == "callable"]

    def _note(self, found: Selected) -> None:
        report = self._report
        about = found.sizes, found.what
        others = [each for each in report.selection if (each.sizes, each.what) != about]
        report.selection = [*others[1 - _MOST_NOTED :], found]
        log.info("%s: %s", report.name, found)
        if found.what != "callable":
            return
        if any(each.graph for each in self._programs()):
            if report.state == FALLBACK:
                report.state, report.reason = self._state, None
        elif report.state in (GRAPHED, PARTLY):
            report.state, report.reason = FALLBACK, f"a graph does not pay: {found}"


def _medians(clocked: LaneTimes) -> dict[str, float]:
    return {
        "latency": statistics.median(clocked.latency),
        "pipelined": statistics.median(clocked.pipelined),
    }


def _in_words(lanes: int, us: dict[str, float]) -> str:
    """ "4 lanes 650.2 us, 640.1 in a row"."""
    count = f"{lanes} lane{'s' if lanes > 1 else ''}"
    return f"{count} {us['latency']:,.1f} us, {us['pipelined']:,.1f} in a row"


def _size(argument: Any) -> int:
    return argument.nbytes if isinstance(argument, torch.Tensor) else 0


def _described(program: Any, arguments: Sequence[Any], copied: Sequence[int]) -> str:
    size = as_bytes(sum(_size(arguments[i]) for i in copied))
    nodes = sum(program.copyable[i] for i in copied)
    plural = "s" if len(copied) > 1 else ""
    return f"{len(copied)} argument{plural} of {size}, mentioned by {nodes} nodes"


def _selected(of: str, decision: Decision, what: Question, about: str) -> Selected:
    return Selected(
        sizes=of,
        graph=decision.graph,
        by=decision.clock or "nothing",
        pairs=decision.pairs,
        with_us=decision.with_us,
        without_us=decision.without_us,
        what=what,
        about=about,
    )
