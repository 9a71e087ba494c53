"""Measurements as processes: several at once for compilers, one after the other for the clock and
for memory, each with a time limit, and none taking the others with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

POLL_S = 0.05
LOGGED = 20_000
"""Characters of an output that are kept."""


@dataclass(frozen=True)
class Job:
    """A call of a worker, such as benchmarks.engine.worker."""

    kind: str
    model: str = "unet"
    mode: str = "default"
    limit_s: float = 120.0
    worker: str = field(default="", kw_only=True)
    """Its module; see worker.py."""

    @property
    def name(self) -> str:
        return " ".join((self.kind, self.model, self.mode))

    def command(self) -> list[str]:
        return [sys.executable, "-m", self.worker, self.kind, self.model, self.mode]


@dataclass(frozen=True)
class Outcome:
    """What became of a job: a result, or the reason why there is none."""

    job: Job
    seconds: float
    result: Any = None
    error: str | None = None
    log: str = ""
    """The end of what it printed."""
    ran: bool = True
    """False: its turn did not come."""


Done = Callable[[Outcome], Job | None]
"""Told an outcome; `together` runs what it returns as another job."""


class Running:
    """A job's process. Behind its gate it has imported everything and waits for `go()`."""

    def __init__(
        self, job: Job, folder: Path, threads: int | None = None, extra: Sequence[str] = ()
    ) -> None:
        self.job = job
        self._started: float | None = None
        self._stopped_at: float | None = None
        self.stopped_s = 0.0
        """Seconds in which it was stopped, up to the last time."""
        place = Path(tempfile.mkdtemp(dir=folder))
        self._out, self._log = place / "result.json", place / "log"
        # What it prints is there when it crashes.
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if threads is not None:
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
        command = [*job.command(), "--out", str(self._out), "--gate", *extra]
        with self._log.open("w") as log:
            # A session of its own: a compiler's helpers end with the process that is ended.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )

    def go(self) -> None:
        self._started = time.monotonic()
        gate: IO[str] | None = self._process.stdin
        assert gate is not None
        with contextlib.suppress(BrokenPipeError):
            gate.write("go\n")
            gate.close()

    @property
    def seconds(self) -> float:
        """Since it was let go; while it is stopped, no time passes."""
        if self._started is None:
            return 0.0
        now = time.monotonic() if self._stopped_at is None else self._stopped_at
        return now - self._started - self.stopped_s

    @property
    def is_stopped(self) -> bool:
        return self._stopped_at is not None

    @property
    def standing_s(self) -> float:
        """Seconds since it was stopped; 0 where it runs."""
        return 0.0 if self._stopped_at is None else time.monotonic() - self._stopped_at

    def stop(self) -> None:
        """Let neither the process nor its helpers run, until `resume()`."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._stopped_at is not None:
            self.stopped_s += time.monotonic() - self._stopped_at
            self._stopped_at = None
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def finished(self, deadline: float) -> bool:
        """Whether it has ended; it is ended at its limit or at the deadline, what comes first."""
        if self._process.poll() is not None:
            return True
        late = self.seconds > self.job.limit_s or time.monotonic() > deadline
        if late:
            self.end()
        return late

    def end(self) -> None:
        """End the process and its helpers, if they still run."""
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def outcome(self) -> Outcome:
        log = self._log.read_text(errors="replace")
        try:
            found = json.loads(self._out.read_text())
        except (OSError, ValueError):
            found = {"error": self._why_nothing(log)}
        result, error = found.get("result"), found.get("error")
        return Outcome(self.job, self.seconds, result, error, log[-LOGGED:])

    def _why_nothing(self, log: str) -> str:
        if self._process.returncode == -signal.SIGKILL:
            return f"ended after {self.seconds:.0f} s, or killed by the system"
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        # What C++ says of an exception that nobody caught, in front of its stack.
        said = [line for line in lines if line.startswith("what():")] or lines[-1:]
        last = said[-1][:300] if said else "no output"
        return f"exit status {self._process.returncode}: {last}"


def in_turn(jobs: Iterable[Job], deadline: float, done: Done, extra: Sequence[str] = ()) -> None:
    """One at a time; each starts up while the one before it is measured. `deadline` is on the
    monotonic clock; a job that does not get its turn before is reported as not run."""
    waiting = deque(jobs)
    following: Running | None = None
    current: Running | None = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting:
                job = waiting.popleft()
                if time.monotonic() > deadline:
                    done(Outcome(job, 0.0, error="not run: out of time", ran=False))
                    continue
                current = following or Running(job, Path(folder), extra=extra)
                following = Running(waiting[0], Path(folder), extra=extra) if waiting else None
                current.go()
                while not current.finished(deadline):
                    time.sleep(POLL_S)
                done(current.outcome())
        finally:
            for running in (current, following):
                if running is not None:
                    running.end()


def together(
    jobs: Iterable[Job],
    deadline: float,
    done: Done,
    most: int,
    threads: int | None = None,
    extra: Sequence[str] = (),
    tick: Callable[[Sequence[Running]], None] = lambda _: None,
    fits: Callable[[Job, Sequence[Running]], bool] = lambda *_: True,
) -> None:
    """Up to `most` at once, with `threads` compiler threads each. `tick` is called all the while
    with those that run. `fits` says whether one can run beside those; one that does not lets others
    pass, and any can run alone."""
    waiting = deque(jobs)
    running: list[Running] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while len(running) < most and time.monotonic() <= deadline:
                    job = next((job for job in waiting if not running or fits(job, running)), None)
                    if job is None:
                        break
                    waiting.remove(job)
                    running.append(Running(job, Path(folder), threads, extra))
                    running[-1].go()
                for each in [each for each in running if each.finished(deadline)]:
                    running.remove(each)
                    if (further := done(each.outcome())) is not None:
                        waiting.appendleft(further)
                if not running and time.monotonic() > deadline:
                    for job in waiting:
                        done(Outcome(job, 0.0, error="not run: out of time", ran=False))
                    return
                tick(running)
                time.sleep(POLL_S)
        finally:
            for each in running:
                each.end()
