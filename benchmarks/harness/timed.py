"""What the clocks say of one model in one mode, as records store it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

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
    latency_p99_us: float | None = None
    latency_worst_us: float | None = None
    host_us: float | None = None
    host_p90_us: float | None = None
    pipelined_us: float | None = None
    samples: int = 0

    @property
    def timed(self) -> bool:
        return self.correct and self.latency_us is not None

    def take(self, samples: Samples) -> None:
        """Condense the samples of the clocks."""
        self.samples = len(samples.latency)
        self.latency_us = percentile(samples.latency, 50)
        self.latency_p10_us = percentile(samples.latency, 10)
        self.latency_p90_us = percentile(samples.latency, 90)
        self.latency_p99_us = percentile(samples.latency, 99)
        self.latency_worst_us = max(samples.latency)
        self.host_us = percentile(samples.host, 50)
        self.host_p90_us = percentile(samples.host, 90)
        self.pipelined_us = percentile(samples.pipelined, 50)


@dataclass
class Measured(Timed):
    """And what the checks and PyGraph's report say of it."""

    error: str | None = None
    is_bound: bool = False
    """The floor is the sum of kernel times, since there is no graph of an iteration; `error` says
    why."""
    verdict: dict[str, Any] = field(default_factory=dict)
    """check.Verdict."""
    compile_s: float | None = None
    """Up to the steady state, with warm caches on disk, unless `extra` has one of
    figures.NOT_CACHED; modules of torch and of PyGraph (0.2 s) are imported before."""
    bytes_copied: float | None = None
    """Per iteration, to bring tensors in place or results out; kernels' own copies left out."""
    fallbacks: list[dict[str, str]] = field(default_factory=list)
    """pygraph: [{graph, reason}] of compiled graphs that do not run as CUDA graphs."""
    extra: dict[str, Any] = field(default_factory=dict)
    """With figures.NOT_CACHED, where not 0: how often, while this mode was compiled."""

    @property
    def timed(self) -> bool:
        return self.latency_us is not None and (self.correct or self.is_bound)

    def take_verdict(self, verdict: Any) -> None:
        self.correct, self.error, self.verdict = verdict.correct, verdict.reason, asdict(verdict)

    def take_bound(self, kernel_us: float) -> None:
        """Nothing can be faster than the kernels of an iteration together."""
        self.latency_us, self.is_bound = kernel_us, True
