"""One scenario in a process of its own; see harness/worker.py.

python -m benchmarks.selection.worker measure SCENARIO [MODES] --out FILE [--gate] ...
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.worker import Given, end_with_parent, in_modes, run
from benchmarks.selection.catalogue import find
from benchmarks.selection.modes import available
from benchmarks.selection.run import run_scenario


def measure(given: Given) -> dict[str, Any]:
    return in_modes(given, available(given.device), run_scenario)


if __name__ == "__main__":
    end_with_parent()
    run({"measure": measure}, find, lambda scenario: scenario.model())
