"""One pattern in a process of its own; see harness/worker.py.

python -m benchmarks.patterns.worker measure PATTERN [MODES] --out FILE [--gate] ...
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.worker import Given, end_with_parent, in_modes, run
from benchmarks.patterns.catalogue import find
from benchmarks.patterns.modes import available
from benchmarks.patterns.run import run_pattern


def measure(given: Given) -> dict[str, Any]:
    return in_modes(given, available(given.device), run_pattern)


if __name__ == "__main__":
    end_with_parent()
    run({"measure": measure}, lambda name, _: find(name), lambda pattern: pattern.model())
