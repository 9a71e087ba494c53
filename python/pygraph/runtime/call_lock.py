"""Many callers at a time, or one that is alone: threads that call one compiled graph.

While a thread links, the proof rewinds what the graph writes and runs it again. A call of another
thread in between would lose what it wrote, or see half of it. So linking waits until the calls that
are under way have returned, and later ones wait until it is done.

Every call passes, so passing takes no lock: a thread first says that it is inside and looks then
whether somebody is alone; one that will be alone says so first and looks then who is inside. One of
two sees the other (the GIL keeps both in order).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType


class CallLock:
    """A thread may be inside several times over, and becomes alone from inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}  #: how many times over, by thread
        self._alone: int | None = None
        self._calling = _Calling(self)

    def calling(self) -> _Calling:
        """A context: inside, one of many."""
        return self._calling

    def enter(self) -> None:
        me = threading.get_ident()
        before = self._inside.get(me, 0)
        self._inside[me] = before + 1
        if before or self._alone is None or self._alone == me:
            return  # who waits to be alone waits for those who are inside already
        self.leave()
        with self._changed:
            self._changed.wait_for(lambda: self._alone in (None, me))
            self._inside[me] = 1

    def leave(self) -> None:
        me = threading.get_ident()
        left = self._inside[me] - 1
        if left:
            self._inside[me] = left
        else:
            del self._inside[me]
        if self._alone is not None:
            with self._changed:
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


class _Calling:
    def __init__(self, lock: CallLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.leave()
