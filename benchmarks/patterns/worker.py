"""One pattern in a process of its own; see harness/worker.py.

python -m benchmarks.patterns.worker measure PATTERN [MODES] --out FILE [--gate] ...
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.harness.environment import environment
from benchmarks.harness.measure import Phases
from benchmarks.harness.turns import Turn
from benchmarks.harness.worker import Given, end_with_parent, run
from benchmarks.patterns.catalogue import find
from benchmarks.patterns.modes import available
from benchmarks.patterns.run import Options, run_pattern
from pygraph.demo.models import chosen


def measure(given: Given) -> dict[str, Any]:
    names = None if given.mode == "all" else given.mode
    wanted = chosen(names, available(given.device), "mode")
    options = Options(wanted, given.options, given.seconds)
    if given.turns is not None:
        turn = Turn(given.turns, given.workload.name)
        options = Options(
            wanted, given.options, given.seconds, turn.alone, turn.give_up, turn.clock
        )
    # In front of the clocks: it asks another program, which others' clocks would stop for long.
    env = environment()
    phases = Phases()
    records = run_pattern(given.workload, given.device, options, phases)
    return {
        "env": env,
        "records": [asdict(each) for each in records],
        "phases": {name: round(seconds, 2) for name, seconds in phases.items()},
    }


if __name__ == "__main__":
    end_with_parent()
    run({"measure": measure}, lambda name, _: find(name), lambda pattern: pattern.model())
