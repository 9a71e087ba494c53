"""What the paper published: PyGraph, arXiv 2503.19779 (as GraCE at OSDI'26).

On an H100 with PyTorch 2.4, so only ratios can stand beside other measurements. Figures that are
not known here are left out: most bars of figure 7 are printed without numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "PyGraph, arXiv 2503.19779"
CONDITIONS = "published, H100, PyTorch 2.4"


@dataclass(frozen=True)
class Published:
    """What is known of one workload, as a table shows it."""

    speed_up: str = ""
    """Of PyGraph over PyTorch 2 with CUDA graphs: figure 7."""
    coverage: str = ""
    """Share of kernels in graphs, PyGraph: table 2."""
    coverage_torch: str = ""
    bytes_torch: str = ""
    """Copied per replay by PyTorch 2 with CUDA graphs: table 3."""
    note: str = ""


WORKLOADS = {
    "XLNET-I": Published(
        speed_up="3.36",
        coverage=">99%",
        note="413 kernels in one FX graph, which one CPU tensor kept from being captured",
    ),
    "MMC": Published(note="PyTorch 2.4 captured nothing"),
    "ST": Published(
        coverage="74.22%", coverage_torch="5.14%", note="a NumPy scalar in the attention"
    ),
    "DALLE2": Published(
        coverage=">99%",
        note="a copy from the CPU kept a graph of 314 kernels from being captured",
    ),
    "EOS": Published(note="short kernels and 3 large inputs: graphs that copy lose"),
    "TKE": Published(note="patching instead of copying gained 23%"),
    "VM": Published(
        coverage="71.01%", coverage_torch="58.84%", note="of 21 graphs 4 were worth deploying"
    ),
    "DR-I": Published(note="one input of several GB"),
    "MTCG-T": Published(bytes_torch="1 GB"),
    "DGPT2": Published(bytes_torch="953 MB"),
    "STCLM": Published(bytes_torch="850 MB"),
    "DMLM": Published(bytes_torch="548 MB"),
}

GEOMEAN = "1.29"
"""Over PyTorch 2 with CUDA graphs, 25 workloads: figure 7."""
MOST_BYTES = 336
"""That PyGraph copies per replay: table 3."""
COMPILE = "2.21"
"""Compile time of PyGraph over that of PyTorch 2 with CUDA graphs: figure 13."""
FOUND, DEPLOYED = 123, 97
"""Graphs of the 25 workloads, and how many of them the selection deployed."""


def of(name: str) -> Published:
    """Nothing known where the paper gives no number."""
    return WORKLOADS.get(name, Published())
