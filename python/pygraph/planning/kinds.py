"""The plan's words for what can stand in the way of a capture, and for how much of a graph runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of obstacle: what it is, whether it takes the graph apart, and what helps."""

    title: str
    splits: bool
    effect: str
    remedy: str = ""
    """What to change in the program; empty where nothing has to be."""


KINDS = {
    "library state": Kind(
        "a library that a failed capture would leave unusable",
        True,
        "the graph that it is in runs without a CUDA graph",
        "call it outside of the compiled function",
    ),
    "host seed": Kind(
        "a random seed is on the CPU",
        True,
        "its operator would read its address on the GPU, and is not captured",
        "give it one on the GPU",
    ),
    "host value": Kind(
        "the host reads a value of the GPU",
        True,
        "the host waits, so the graph ends there",
        "keep the value in a tensor, or read it behind the model",
    ),
    "data-dependent shape": Kind(
        "a shape depends on values",
        True,
        "sizes are known only once the graph has run",
        "keep the size, with torch.where in place of a mask",
    ),
    "control flow": Kind(
        "a branch or loop on a tensor",
        True,
        "runs between two parts of the graph",
        "compute both sides and choose with torch.where, if they are cheap",
    ),
    "cpu operator": Kind(
        "an operator computes on the CPU",
        True,
        "runs between two parts of the graph",
        "make the tensor on the GPU (device=x.device)",
    ),
    "host to device": Kind(
        "a copy from the CPU to the GPU",
        True,
        "runs between two parts of the graph",
        "register the tensor as a buffer, or move it before the model is called",
    ),
    "device to host": Kind(
        "a copy from the GPU to the CPU",
        True,
        "runs between two parts of the graph",
        "return the tensor, and move it behind the model",
    ),
    "cpu input": Kind(
        "an input lives on the CPU",
        True,
        "its value has to reach the kernels on every call",
        "pass it on the GPU",
    ),
    "collective": Kind(
        "a collective operation", False, "its peers' addresses stay as they were captured"
    ),
    "random numbers": Kind(
        "draws random numbers", False, "seed and offset are set before each replay"
    ),
}
"""Each `Finding.kind`, in the order of `pygraph.operators.table.Obstacle`."""

COVERS = ("wholly", "in part", "not at all")
"""How a graph runs as CUDA graphs. "in part": what no pass takes away runs between two of
them, as torch.compile would run it. "not at all": all of its inputs are on the CPU, and no pass has
anything to do; or a library in it must not be captured."""
