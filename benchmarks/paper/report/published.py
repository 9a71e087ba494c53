"""What the paper published: PyGraph, arXiv 2503.19779 (as GraCE at OSDI'26).

On an H100 with PyTorch 2.4, so only ratios can stand beside other measurements. Figures that are
not known here are left out: most bars of figure 7 are printed without numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "PyGraph, arXiv 2503.19779"
CONDITIONS = "published, H100, PyTorch 2.4"


@dataclass(frozen=True)
class Figure:
    """One published number, and where it stands."""

    value: float
    where: str
    text: str
    """As a table shows it."""


@dataclass(frozen=True)
class Published:
    """What is known of one workload."""

    speed_up: Figure | None = None
    """Of PyGraph over PyTorch 2 with CUDA graphs."""
    coverage: Figure | None = None
    """Share of kernels in graphs, PyGraph."""
    coverage_torch: Figure | None = None
    bytes_torch: Figure | None = None
    """Copied per replay by PyTorch 2 with CUDA graphs."""
    note: str = ""


def _coverage(percent: float, text: str = "") -> Figure:
    return Figure(percent / 100, "table 2", text or f"{percent:.2f}%")


def _copied(value: float, text: str) -> Figure:
    return Figure(value, "table 3", text)


WORKLOADS = {
    "XLNET-I": Published(
        speed_up=Figure(3.36, "figure 7", "3.36"),
        coverage=_coverage(99.0, ">99%"),
        note="413 kernels in one FX graph, which one CPU tensor kept from being captured",
    ),
    "MMC": Published(note="PyTorch 2.4 captured nothing"),
    "ST": Published(
        coverage=_coverage(74.22),
        coverage_torch=_coverage(5.14),
        note="a NumPy scalar in the attention",
    ),
    "DALLE2": Published(
        coverage=_coverage(99.0, ">99%"),
        note="a copy from the CPU kept a graph of 314 kernels from being captured",
    ),
    "EOS": Published(note="short kernels and 3 large inputs: graphs that copy lose"),
    "TKE": Published(note="patching instead of copying gained 23%"),
    "VM": Published(
        coverage=_coverage(71.01),
        coverage_torch=_coverage(58.84),
        note="of 21 graphs 4 were worth deploying",
    ),
    "DR-I": Published(note="one input of several GB"),
    "MTCG-T": Published(bytes_torch=_copied(1e9, "1 GB")),
    "DGPT2": Published(bytes_torch=_copied(953e6, "953 MB")),
    "STCLM": Published(bytes_torch=_copied(850e6, "850 MB")),
    "DMLM": Published(bytes_torch=_copied(548e6, "548 MB")),
}

GEOMEAN = Figure(1.29, "figure 7", "1.29")
"""Over PyTorch 2 with CUDA graphs, 25 workloads."""
MOST_BYTES = Figure(336, "table 3", "336 B")
"""That PyGraph copies per replay."""
COMPILE = Figure(2.21, "figure 13", "2.21")
"""Compile time of PyGraph over that of PyTorch 2 with CUDA graphs."""
FOUND, DEPLOYED = 123, 97
"""Graphs of the 25 workloads, and how many of them the selection deployed."""

NOTHING = Published()

ORDER = (
    *("XLNET-I", "MMC", "ST", "DALLE2", "EOS", "TKE", "VM", "DR-I", "XLNET-T", "MTCG-T", "DLRM"),
    *("MBERT", "TEFD", "ALNET", "DCGAN", "BERT", "LCNET", "DR-T", "DNET", "MTCG-I", "DBV2"),
    *("BSCG", "DGPT2", "STCLM", "DMLM"),
)
"""The rows of table 1."""


def of(name: str) -> Published:
    """Nothing known where the paper gives no number."""
    return WORKLOADS.get(name, NOTHING)
