"""Many callers at a time, or one that is alone: threads that call one compiled graph.

While a thread links, the proof rewinds what the graph writes and runs it again. A call of another
thread in between would lose what it wrote, or see half of it. So linking waits until the calls that
are under way have returned, and later ones wait until it is done.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator


class Turnstile:
    """A thread may be inside several times over, and becomes alone from inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()  #: by thread
        self._alone: int | None = None

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """One of many."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._alone in (None, me))
            self._inside[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else is inside meanwhile."""
        me = threading.get_ident()
        with self._changed:
            entered = self._inside.pop(me, 0)  # who waits here is in nobody's way
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._alone in (None, me))
            nested, self._alone = self._alone == me, me
            self._changed.wait_for(lambda: not self._inside)
            if entered:
                self._inside[me] = entered
        try:
            yield
        finally:
            with self._changed:
                if not nested:
                    self._alone = None
                self._changed.notify_all()
