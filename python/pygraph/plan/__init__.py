"""What would be captured, told without a GPU.

`plan(model, args)` traces a program with tensors that have a shape and a device but no memory, and
says what torch.compile would hand to PyGraph: the graphs, what breaks them apart, which of their
inputs stay and which change from call to call, and what stands in the way of a capture, each with
the line of the program that is to blame. Nothing is compiled and nothing runs.
"""

from pygraph.plan.model import KINDS, Argument, Break, Finding, GraphPlan, Kind, Plan
from pygraph.plan.trace import plan

__all__ = [
    "KINDS",
    "Argument",
    "Break",
    "Finding",
    "GraphPlan",
    "Kind",
    "Plan",
    "plan",
]
