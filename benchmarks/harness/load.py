"""What the machine's CPUs do while something is timed: work of others, and time that a hypervisor
gives to other machines, make host times longer, and nothing else tells."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

STAT = Path("/proc/stat")


@dataclass
class Load:
    """CPUs that were busy, on average over a span of time."""

    own: float = 0.0
    """With this process, all its threads."""
    others: float | None = None
    """With anything else on the machine; None where /proc/stat cannot be read."""
    stolen: float | None = None
    """Wanted by this machine, and given to others by the hypervisor."""

    def to_dict(self) -> dict[str, float | None]:
        return {
            name: None if value is None else round(value, 2) for name, value in asdict(self).items()
        }


@contextmanager
def watch() -> Iterator[Load]:
    """The load, known when the block is left."""
    load = Load()
    started, own, machine = time.perf_counter(), _own_s(), _machine_s()
    yield load
    seconds = max(time.perf_counter() - started, 1e-9)
    load.own = (_own_s() - own) / seconds
    after = _machine_s()
    if machine is not None and after is not None:
        busy, stolen = (b - a for a, b in zip(machine, after, strict=True))
        load.others = max(busy / seconds - load.own, 0.0)
        load.stolen = stolen / seconds


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _machine_s() -> tuple[float, float] | None:
    """Seconds of all CPUs since the start: busy, stolen (proc_stat(5))."""
    try:
        words = STAT.read_text().splitlines()[0].split()[1:]
        user, nice, system, _, _, interrupts, soft, stolen = (int(word) for word in words[:8])
    except (OSError, ValueError, IndexError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft) / ticks, stolen / ticks
