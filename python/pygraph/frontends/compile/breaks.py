"""Where Dynamo gave up on one graph and began another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from pygraph.planning import Break
from pygraph.planning.source import of_frames
from pygraph.torch_private import dynamo

REMEDY = "take the line out of the compiled function, or follow Dynamo's explanation"

_RESUMED = re.compile(r"in torch_dynamo_resume_in_\w*?_at_(\d+)\b")


def count() -> int:
    """Breaks so far."""
    return len(dynamo.graph_breaks())


def since(before: int) -> list[Break]:
    """Those behind the first `before`; all, where Dynamo was reset meanwhile."""
    breaks = dynamo.graph_breaks()
    return [of_reason(*each) for each in breaks[before if before <= len(breaks) else 0 :]]


def of_reason(stack: Sequence[Any], reason: str) -> Break:
    source, code = of_frames(stack)
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    why = [line for line in lines if line.startswith("Explanation:")]
    return Break(
        reason=lines[0] if lines else "unknown",
        explanation=why[0].removeprefix("Explanation:").strip() if why else None,
        source=source,
        code=code,
    )


def around(gm: torch.fx.GraphModule) -> Break | None:
    """The break that ends this graph of Dynamo's, or else one that it begins behind."""
    ends = dynamo.break_behind(gm)
    if ends is not None:
        return of_reason(*ends)
    for node in gm.graph.nodes:
        resumed = _RESUMED.search(node.stack_trace or "")
        if resumed is not None:
            return _at(int(resumed[1]))
    return None


def _at(line: int) -> Break:
    for stack, reason in reversed(dynamo.graph_breaks()):
        if any(frame.lineno == line for frame in stack):
            return of_reason(stack, reason)
    return Break(reason=f"a break in line {line}")
