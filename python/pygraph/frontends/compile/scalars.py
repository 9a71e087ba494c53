"""Asks Dynamo to leave reads of numbers in its graphs, for the pass `keep` to take away.

Where a program reads a number from a tensor (`.item()`, `int(x)`, a tensor as the bound of a slice)
Dynamo ends its graph, unless `capture_scalar_outputs` is set in its config. It is set here while a
frame is traced for this backend, and only then: the user's setting is back when the frame is
compiled. A graph that still has reads behind the pass is not compiled: the frame is traced once
more, and at the lines of those reads Dynamo ends its graphs as it does of itself. So no program
gets other graphs for a read that stays one, and what breaks a graph has the largest ones on both
sides.

Dynamo fails where such a number would have to be known while tracing and no break is possible. Then
the frame is compiled anew with nothing asked.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pygraph.reporting import Applied
from pygraph.torch_private import dynamo
from pygraph.torch_private.replacing import surround
from pygraph.transform import keep

log = logging.getLogger(__name__)

_SETTING = "capture_scalar_outputs"

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

Line = tuple[str, int]


@dataclass
class _Trace:
    """A frame that Dynamo is asked to keep reads of."""

    met: bool = False
    """Whether it has kept one."""
    off: bool = False
    """Whether nothing is asked any more."""
    breaks: int = field(default_factory=lambda: len(dynamo.graph_breaks()))
    """Graph breaks so far. Those of a trace that is given up were none."""


class _Active(threading.local):
    trace: _Trace | None = None


_active = _Active()

#: Lines whose reads have remained. A frame that is compiled anew for other sizes is not traced
#: twice for them again.
_remained: set[Line] = set()


_wants: list[Callable[[dynamo.Asked], bool]] = []


def install(wants: Callable[[dynamo.Asked], bool]) -> None:
    """Has Dynamo asked for every frame that `wants` says it of, from now on; its backend is to call
    take_away or leave. Where this torch lacks a name for it nothing is asked."""
    _wants.append(wants)
    if len(_wants) > 1:
        return
    places = dynamo.where_reads_are_kept()
    if places is None:
        return
    compiles, reads = places

    def compile_frame(original: Any, *args: Any, **kwargs: Any) -> Any:
        asked = dynamo.asked_for(args)
        if asked.in_one_graph or not any(wants(asked) for wants in _wants) or _users_own():
            with _tracing(None):
                return original(*args, **kwargs)
        trace = _Trace()
        try:
            with _tracing(trace):
                return original(*args, **kwargs)
        except Exception as error:
            if not trace.met or trace.off:
                raise
            log.debug("a frame is compiled anew, without reads of numbers: %s", error)
            dynamo.forget_breaks(trace.breaks)
        with _tracing(None):
            return original(*args, **kwargs)

    def call_method(
        original: Any, variable: Any, translator: Any, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        trace = _active.trace
        if trace is not None and name == "item":
            if dynamo.line_of(translator) in _remained:
                with _set(False):
                    return original(variable, translator, name, *args, **kwargs)
            trace.met = True
        return original(variable, translator, name, *args, **kwargs)

    surround(compiles, compile_frame)
    surround(reads, call_method)


def take_away(module: torch.fx.GraphModule, *, generated: bool) -> list[Applied]:
    """What the pass has done in a graph of Dynamo's. Does not return if reads remain that Dynamo
    was asked to keep: what it raises has the frame traced again, and must reach Dynamo."""
    applied, remaining = keep.apply(module, generated=generated)
    _decline(remaining)
    return applied


def leave(module: torch.fx.GraphModule) -> None:
    """The same for a graph that is not to be changed."""
    _decline(keep.reads(module))


def _decline(reads: Sequence[Any]) -> None:
    trace = _active.trace
    if not reads or trace is None or trace.off:
        return
    lines = {_line(each) for each in reads}
    known = {each for each in lines if each is not None} - _remained
    _remained.update(known)
    if len(known) < len(lines):  # not all can be told apart, or one was kept in another way
        trace.off = True
        setattr(dynamo.config(), _SETTING, False)
    trace.met = False
    dynamo.forget_breaks(trace.breaks)
    places = ", ".join(f"{file}:{line}" for file, line in sorted(known))
    log.debug("reads of numbers remain, and Dynamo ends its graphs at them: %s", places or "all")
    raise dynamo.traced_again("reads of numbers remain")


def _line(read: Any) -> Line | None:
    """The innermost frame of a node, as `dynamo.line_of` has it while it is traced."""
    found = _FRAME.findall(read.stack_trace or "")
    return (found[-1][0], int(found[-1][1])) if found else None


@contextlib.contextmanager
def _tracing(trace: _Trace | None) -> Iterator[None]:
    """Dynamo's setting is as the trace needs it; what is compiled within a trace for others has it
    off, as outside."""
    outer = _active.trace
    _active.trace = trace
    try:
        with contextlib.nullcontext() if outer is trace is None else _set(trace is not None):
            yield
    finally:
        _active.trace = outer


def _set(value: bool) -> contextlib.AbstractContextManager[Any]:
    context: contextlib.AbstractContextManager[Any] = dynamo.config().patch(**{_SETTING: value})
    return context


def _users_own() -> bool:
    """Whether the user has set it."""
    return bool(getattr(dynamo.config(), _SETTING)) and _active.trace is None
