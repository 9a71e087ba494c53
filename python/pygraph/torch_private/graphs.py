"""FX graphs."""

from __future__ import annotations

import torch


def copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    """The same nodes with what is in their meta, and with that of the output."""
    copy = torch.fx.Graph()
    returned = copy.graph_copy(graph, {}, return_output_node=True)
    assert returned is not None
    value, last = returned
    copy.output(value).meta = dict(last.meta)
    return copy
