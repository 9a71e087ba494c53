"""What would be captured, told without a GPU.

`plan(model, args)` traces a program with tensors that have a shape and a device but no memory, and
says what torch.compile would hand to PyGraph: the graphs, what breaks them apart, which of their
inputs stay and which change from call to call, and what stands in the way of a capture, each with
the line of the program that is to blame. Nothing is compiled and nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pygraph.planning.kinds import KINDS, Kind
from pygraph.planning.model import Argument, Break, Finding, GraphPlan, Plan

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


def plan(
    model: Callable[..., Any],
    args: Sequence[Any] | Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    training: bool = False,
    device: str | None = None,
) -> Plan:
    """Say what torch.compile would hand to PyGraph for `model(*args, **kwargs)`.

    Nothing is computed: the model's parameters, its buffers and all tensors among the arguments are
    replaced for the time of the call by tensors without memory. Where the program is wholly on the
    CPU it is taken as one that will be moved to the GPU with its arguments; where it is on a GPU or
    on "meta" already, a tensor on the CPU is reported as such.

    With `training`, the outputs are summed and a backward is traced as well. A failed trace raises
    nothing: `Plan.error` says what happened.
    """
    # Imported here: torch takes seconds to load, and the names above need none of it.
    from pygraph.planning.trace import trace

    return trace(model, args, kwargs, name, training, device)
