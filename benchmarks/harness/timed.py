"""What the clocks say of one model in one mode, as records store it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness.measure import Samples, percentile


@dataclass
class Timed:
    """Times are None where a mode is wrong or raised: it is not timed."""

    workload: str
    batch: int
    mode: str
    correct: bool = False
    latency_us: float | None = None
    """Until the GPU is idle; the median, as are `host_us` and `pipelined_us`."""
    latency_p10_us: float | None = None
    latency_p90_us: float | None = None
    latency_worst_us: float | None = None
    host_us: float | None = None
    host_p90_us: float | None = None
    pipelined_us: float | None = None
    samples: int = 0

    def take(self, samples: Samples) -> None:
        """Condense the samples of the clocks."""
        self.samples = len(samples.latency)
        self.latency_us = percentile(samples.latency, 50)
        self.latency_p10_us = percentile(samples.latency, 10)
        self.latency_p90_us = percentile(samples.latency, 90)
        self.latency_worst_us = max(samples.latency)
        self.host_us = percentile(samples.host, 50)
        self.host_p90_us = percentile(samples.host, 90)
        self.pipelined_us = percentile(samples.pipelined, 50)
