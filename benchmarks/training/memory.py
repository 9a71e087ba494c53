"""What training in one mode needs of the GPU's memory, in a process of its own.

The steady state counts: everything is compiled and captured before, and what that left behind is
given back before the peaks are read anew.
"""

from __future__ import annotations

from benchmarks.harness.device import MIB, Device, Memory, nbytes
from benchmarks.harness.modes import Bench, begin, warm_up
from benchmarks.harness.reports import fallbacks, read_report
from benchmarks.harness.weigh import own_memory, steady
from benchmarks.training import modes
from benchmarks.training.models import Training
from benchmarks.training.record import Weight

STEPS = 8


def weigh_training(training: Training, mode: str, device: Device, shared: bool) -> Weight:
    """All figures of one mode; raises what the mode raises. `shared`: others use the GPU, so the
    driver's figures would be theirs as well."""
    device.synchronize()  # the context is made: it is nobody's in particular
    before = device.memory()
    bench = Bench(
        training.make_program(device.torch),
        [training.make_inputs(1000 + n, device.torch) for n in range(modes.INPUTS)],
        device,
        workload=training,
    )
    trainer = begin(modes.MODES[mode], bench)
    # The copy that it trains is enough.
    bench.model = trainer.program
    warm_up(trainer, bench)
    after = steady(trainer, bench, STEPS)
    optimizer = [each for state in trainer.optimizer.state.values() for each in state.values()]
    own = own_memory(bench) + nbytes(optimizer) / MIB
    found = Weight(training.name, mode, steps=STEPS, own_mib=own)
    note(found, before, after, shared)
    if mode == "pygraph":
        report = read_report()
        found.graphs = sum(graph.graphed for graph in report.graphs)
        found.fallbacks = fallbacks(report.graphs)
    return found


def note(found: Weight, before: Memory, after: Memory, shared: bool) -> None:
    """From the readings to the figures."""
    found.torch_peak_mib = after.peak_allocated
    found.torch_reserved_mib = after.peak_reserved
    found.private_mib, found.private_idle_mib = after.private, after.idle
    found.peak_mib = after.peak_allocated
    if found.mode == "pygraph":
        # Idle memory of private pools is not allocated by torch's count. For torch's own graphs it
        # is left out: some of it was counted when it was allocated, at another time of the step.
        found.peak_mib = None if after.idle is None else after.peak_allocated + after.idle
    found.driver_mib = None if shared else after.in_use - before.in_use
