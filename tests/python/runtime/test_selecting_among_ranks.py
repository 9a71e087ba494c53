"""In one of several ranks, no clock of this process alone decides what serves."""

from __future__ import annotations

import pytest
import torch

from pygraph.capturing.twin import twin_device
from pygraph.decide import cost_model
from pygraph.reporting import GraphReport
from pygraph.runtime.selecting import Selecting


class NoContests:
    """A dispatcher that is asked for no contest."""

    def __init__(self) -> None:
        self.resting: list[object] = []

    def rest(self, program: object) -> None:
        self.resting.append(program)


@pytest.mark.parametrize(
    ("kernels", "callable_s", "graph_s", "by", "pays"),
    [
        (100, 0.0, 0.0, "model", True),
        (0, 0.0, 0.0, "model", False),  # with so many results
        (100, 1.0, 0.9, "model", True),  # of the slowest rank, and not clear
        (0, 1.0, 0.1, "proof", True),  # and clear
    ],
)
def test_the_model_decides_or_what_all_have_measured(
    kernels: int, callable_s: float, graph_s: float, by: str, pays: bool
) -> None:
    dispatcher, report = NoContests(), GraphReport("graph 0", "graphed")
    selecting = Selecting("measure", twin_device(), dispatcher, report)  # type: ignore[arg-type]
    contents = cost_model.Contents(nodes=kernels, patched=400, arguments=1, results=1)
    program = object()
    selecting.add(
        program,
        (),
        [torch.zeros(1)],
        contents,
        callable_s=callable_s,
        graph_s=graph_s,
        by_rule=True,
    )
    (found,) = report.selection
    assert (found.by, found.graph) == (by, pays)
    assert dispatcher.resting == ([] if pays else [program])
    assert not selecting.undecided
