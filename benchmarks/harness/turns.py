"""Alone on the machine for the clocks, while others prepare.

A worker that is ready to be timed says so in its status file, and waits. The suite stops all other
workers (SIGSTOP, with their compilers), tells that one to go, and lets the others go on when it has
ended: what it gives back to the GPU at its end would disturb the next one's clocks as well. A
worker with more to do behind its clocks can give up its turn earlier; it is stopped for the next.
What a stopped worker was taking the time of is not falsified: the suite tells it for how long it
stood still, before it goes on. Only graphs' own reports do not know of that: seconds of links and
proofs in them (`timings_ms`) can have a stop in them.

Files in one folder, by the name of the workload: NAME, what it is at; NAME.go, its turn has come;
NAME.stopped, seconds in which it was stopped so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.jobs import Running

WAITING = "waits to be timed"
TIMED = "was timed"
POLL_S = 0.02


class Clocks:
    """The suite's side. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._alone: Running | None = None

    def tick(self, running: Sequence[Running]) -> None:
        """Called often, with all workers that there are."""
        if self._alone is not None and not self._holds(self._alone, running):
            self._alone = None
            for each in running:
                self._resume(each)
        if self._alone is None:
            waiting = [e for e in running if status(self._folder, e.job.model) == WAITING]
            self._alone = waiting[0] if waiting else None
            if self._alone is not None:
                self._stop_others(running)
                Path(self._folder, f"{self._alone.job.model}.go").touch()
        elif len(running) > 1:
            self._stop_others(running)

    def forget(self, name: str) -> None:
        """Another process begins with this workload."""
        for ending in ("", ".stopped"):
            Path(self._folder, f"{name}{ending}").unlink(missing_ok=True)

    def _holds(self, alone: Running, running: Sequence[Running]) -> bool:
        return alone in running and status(self._folder, alone.job.model) != TIMED

    def _stop_others(self, running: Sequence[Running]) -> None:
        for each in running:
            if each is not self._alone:
                each.stop()

    def _resume(self, running: Running) -> None:
        if running.is_stopped:
            total = running.stopped_s + running.standing_s
            Path(self._folder, f"{running.job.model}.stopped").write_text(str(total))
            running.resume()


def status(folder: Path, name: str) -> str:
    """What a worker is at; empty before it says anything."""
    try:
        return Path(folder, name).read_text()
    except OSError:
        return ""


class Turn:
    """A worker's side."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._name = folder, name

    def tell(self, what: str) -> None:
        Path(self.folder, self._name).write_text(what)

    def clock(self) -> float:
        """Seconds, as time.perf_counter(), in which this process was not stopped."""
        try:
            stopped = float(Path(self.folder, f"{self._name}.stopped").read_text())
        except (OSError, ValueError):
            stopped = 0.0
        return time.perf_counter() - stopped

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds until the process ends, or gives it up."""
        self.tell(WAITING)
        go = Path(self.folder, f"{self._name}.go")
        while not go.exists():
            time.sleep(POLL_S)
        yield

    def give_up(self) -> None:
        """The others go on, while this process still runs."""
        self.tell(TIMED)
