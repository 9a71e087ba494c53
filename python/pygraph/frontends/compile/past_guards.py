"""Calls that go past Dynamo's guards, without anybody asking for it.

Dynamo's way from a call to its graph takes longer than all of PyGraph's: what torch.compile has
returned, the guards, the code that Dynamo has made. So what torch.compile has returned is led
through the engine, once a graph serves its calls: two calls are watched on their way, what such
calls are like is learned from them (example.py), and from then on a call that is like them goes
straight to the graph. Any other one, and each while it is being found out whether the graph pays,
goes the way that it went before. Nothing is assumed that a guard does not look at; where something
cannot be compared, all calls stay on that way, and may launch their graph before the guards.

What was learned holds as long as the code that Dynamo has made: where Dynamo drops that, as
torch.compiler.reset() has it do, it is forgotten.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from types import FrameType, FunctionType
from typing import Any

import torch

from pygraph import _engine
from pygraph.frontends.compile.example import Example, Lesson, Likeness, NotFrozen, name_of
from pygraph.torch_private import dynamo, modules
from pygraph.torch_private.autograd import count_up_versions

log = logging.getLogger(__name__)

#: Calls that go the long way until it counts whether more go the short one.
_FIRST_CALLS = 64

#: Graphs of one callable, at most: a call that is of none of them is compared with all. As many as
#: Dynamo compiles code for one function, unless it is told otherwise.
_MOST_EXAMPLES = 8

#: Told the frames of a call that is on its way, where none like it can go past the guards.
Refused = Callable[[Sequence[FrameType]], None]


class _Pending:
    """A graph of whose calls there is more to be seen."""

    def __init__(self, example: Example, refused: Refused) -> None:
        self.example = example
        self.refused = refused
        self.first: Likeness | None = None


class PastGuards(_engine.EngineCalled):
    """What the calls of one callable that torch.compile has returned are led through."""

    def __init__(self, led: FunctionType | torch.nn.Module) -> None:
        """`led`: what torch.compile has returned for a function, or for a module."""
        self._calls = _engine.CapturedFunction(self._miss, count_up_versions, dynamo.set_asked)
        super().__init__(self._calls)
        self._led = weakref.ref(led)
        self._wrapper = dynamo.copied(led) if isinstance(led, FunctionType) else None
        self._pending: list[_Pending] = []
        self.examples: dict[Example, weakref.ref[Any]] = {}  #: and Dynamo's code
        self._misses = 0
        self.leads = True  #: until calls go where they went before

    @property
    def full(self) -> bool:
        return len(self.examples) + len(self._pending) >= _MOST_EXAMPLES

    def divert(self) -> bool:
        """Has the calls come. False: this torch's are made otherwise."""
        led = self._led()
        if isinstance(led, FunctionType):
            return dynamo.divert(led, self)
        return dynamo.divert_module(led, self)

    def _through_dynamo(self, *positional: Any, **named: Any) -> Any:
        """A call as it was before."""
        if self._wrapper is not None:
            return self._wrapper(*positional, **named)
        call = dynamo.call_of_modules()
        assert call is not None, "a module's calls are led"
        return call(self._led(), *positional, **named)

    def add(self, example: Example, refused: Refused) -> None:
        """Calls that are served by the example's graph are to be led there."""
        self._pending.append(_Pending(example, refused))
        self._misses = 0

    def _miss(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._pending and not self._pending[-1].example.graph.held:
            return self._learn(self._pending.pop(), positional, named)
        graphs = [each.graph.dispatcher for each in tuple(self.examples)]
        # Another thread's call may be under way, for which such a one does not wait.
        if graphs and not any(each.undecided or each.busy for each in graphs):
            self._misses += 1
            if self._misses > max(_FIRST_CALLS, self._calls.served):
                self._end("most calls are of other kinds")
        return self._through_dynamo(*positional, **named)

    def _learn(self, pending: _Pending, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        call = functools.partial(self._through_dynamo, *positional, **named)
        try:
            seen = pending.example.watch(call)
        except BaseException:
            self._pending.append(pending)
            raise
        if seen.count == 0:  # it went elsewhere
            self._misses += 1
            if self._misses > _FIRST_CALLS:
                self._end("its graph is not called any more")
            else:
                self._pending.append(pending)
            return seen.value
        led = self._led()
        if led is None:  # it has gone while it ran
            return seen.value
        try:
            lesson = pending.example.learn(led, seen, positional, named)
            if pending.first is None:
                pending.first = lesson.likeness
                self._pending.append(pending)
            else:
                self._serve(pending.example, pending.first, lesson)
        except NotFrozen as reason:
            self._refuse(pending, seen.frames, reason)
        except Exception as error:  # what a program has may be of any kind
            log.debug("%s: what its calls are like", pending.example.name, exc_info=True)
            self._refuse(pending, seen.frames, error)
        seen.forget()
        return seen.value

    def _serve(self, example: Example, first: Likeness, second: Lesson) -> None:
        example.install(self._calls, first, second, once_decided=True)
        calls, mine = self._calls, weakref.ref(self)

        def forget(_: object) -> None:
            calls.remove(example)
            if (this := mine()) is not None:
                this.examples.pop(example, None)

        self.examples[example] = weakref.ref(second.likeness.code, forget)
        example.graph.report.past_guards = True
        log.debug("%s: its calls go past the guards", example.name)

    def forget(self, example: Example) -> None:
        """Its calls go to Dynamo again, as others do that it has not seen."""
        self._calls.remove(example)
        self.examples.pop(example, None)
        example.graph.report.past_guards = False
        if not self.examples and not self._pending:
            self._end("it does not pay")

    def _refuse(self, pending: _Pending, frames: Sequence[FrameType], reason: Exception) -> None:
        log.debug("%s: its calls stay with Dynamo: %s", pending.example.name, reason)
        pending.refused(frames)
        if not self.examples and not self._pending:
            self._end(str(reason))

    def _end(self, reason: str) -> None:
        """Calls go where they went before."""
        self.leads = False
        led = self._led()
        if led is not None:
            log.debug("%s goes back to Dynamo: %s", name_of(led), reason)
        if isinstance(led, FunctionType) and self._wrapper is not None:
            dynamo.lead_back(led, self._wrapper)
        elif led is not None:
            dynamo.lead_module_back(led)
        for example in self.examples:
            self._calls.remove(example)
            example.graph.report.past_guards = False
        self.examples.clear()


#: By dynamo.which_runs().
_led: weakref.WeakValueDictionary[tuple[int, int], PastGuards] = weakref.WeakValueDictionary()


def lead(frames: Sequence[FrameType], example: Example, refused: Refused) -> PastGuards | None:
    """Has calls of the callable that `frames` run led past the guards to the example's graph, as
    soon as two more have been seen. None: it cannot be."""
    which = dynamo.which_runs(frames)
    if which is None:
        return None
    through = _led.get(which)
    if through is None or not through.leads:
        wrapper = dynamo.wrapper_running(frames)
        if wrapper is None:
            return None
        module = dynamo.module_calling(wrapper, frames)
        whole = module is not None and not any(modules.hooks_on(module).values())
        through = PastGuards(module if whole else wrapper)
        if not through.divert():
            return None
        _led[which] = through
    if through.full:
        return None
    through.add(example, refused)
    return through


def leads(compiled: Any) -> PastGuards | None:
    """What leads the calls of something that torch.compile has returned; None: nothing does. For
    tests and benchmarks."""
    found = dynamo.diverted_to(compiled) or dynamo.diverted_to(dynamo.wrapper_of(compiled))
    return found if isinstance(found, PastGuards) else None
