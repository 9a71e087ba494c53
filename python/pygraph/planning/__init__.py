"""The plan of a program: what would be captured of it, and what stands in the way.

Here are its data, its text, the words for obstacles, how one ATen graph is read, and the tensors
without memory that a program is traced with. `frontends/compile/plan.py` traces and fills it in.
"""

from pygraph.planning.kinds import KINDS, Kind
from pygraph.planning.model import Argument, Break, Finding, GraphPlan, Plan

__all__ = ["KINDS", "Argument", "Break", "Finding", "GraphPlan", "Kind", "Plan"]
