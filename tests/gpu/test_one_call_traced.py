"""`pygraph trace` on a GPU: the kernels of a graph by name, within the call's time."""

from __future__ import annotations

from typing import Any

import torch
from helpers import Mlp

from pygraph.frontends.trace.watch import CallWatch


def test_the_kernels_of_a_call_stand_behind_its_launch() -> None:
    watch = CallWatch()
    with watch.watching():
        function: Any = torch.compile(Mlp().cuda(), backend="pygraph")
        for _ in range(12):
            function(torch.randn(16, 64, device="cuda"))
    traced = watch.kept
    assert traced is not None and traced.device == torch.cuda.get_device_name()
    names = [span.name for span in traced.spans]
    assert {"guards", "entry", "bind", "allocation", "launch", "results"} <= set(names)
    assert len(traced.work) >= 2 and all(work.name for work in traced.work)
    (launch,) = (span for span in traced.spans if span.name == "launch")
    apart_ns = 20_000  # of the two clocks
    assert all(work.start >= launch.start - apart_ns for work in traced.work)
    assert max(work.end for work in traced.work) < launch.end + 1_000_000_000
