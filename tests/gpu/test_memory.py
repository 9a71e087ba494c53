"""Memory: captures take none, what is idle can be had by others, and peaks are those of default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pygraph
from benchmarks.engine.memory import measure_memory, packing
from benchmarks.engine.tight import CALLS, STREAM_MIB, measure_tight
from benchmarks.harness.build import make_model
from benchmarks.harness.device import MIB, Device
from pygraph.capturing import record
from pygraph.demo.models import Workload

ROWS = 65536


class Wide(nn.Module):
    """Activations of 1 GiB each behind inputs, weights and outputs of some MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 4096)
        self.second = nn.Linear(4096, 4096)
        self.last = nn.Linear(4096, 16)

    def forward(self, x: Any) -> Any:
        return (self.last(torch.relu(self.second(torch.relu(self.first(x))))),)


WIDE = Workload(
    "wide", ROWS, Wide, lambda generator: (torch.randn(ROWS, 64, generator=generator),), "torch"
)


@pytest.fixture(autouse=True)
def whole_gpu() -> Any:
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def test_a_capture_needs_no_memory() -> None:
    found = measure_tight(WIDE, "pygraph", Device())
    assert found.error is None
    assert found.calls == CALLS
    assert found.share > 0.5  # else a second copy of the activations would have fitted
    assert found.same_bits
    assert found.captured_for_free, found.graphs


def test_free_memory_is_the_same_behind_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver's word at each capture, not by the report."""
    taken: list[float] = []
    original = record.record

    def watched(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        result = original(*args, **kwargs)
        taken.append((before - torch.cuda.mem_get_info()[0]) / MIB)
        return result

    monkeypatch.setattr(record, "record", watched)
    device = Device()
    model, inputs = make_model(WIDE, "cuda"), WIDE.make_inputs(0, "cuda")
    compiled = torch.compile(model, backend="pygraph")
    for _ in range(CALLS):
        compiled(*inputs)
        device.synchronize()
    assert len(taken) >= 2, "captures A and B"
    assert all(abs(each) <= STREAM_MIB for each in taken), taken


def test_peaks_and_idle_memory() -> None:
    device = Device()
    default = measure_memory(WIDE, "default", device)
    torch._dynamo.reset()
    own = measure_memory(WIDE, "pygraph", device)
    assert [graph["state"] for graph in own.graphs] == ["graphed"]
    assert own.digest == default.digest
    assert own.peak_mib is not None and default.peak_mib is not None
    assert own.peak_mib <= 1.02 * default.peak_mib
    assert own.call_mib > 1000  # the reading sees the activations
    assert own.held_mib < own.call_mib / 4
    assert own.private_mib == 0
    assert own.freed_is_usable and own.same_after
    packed = packing(default, own)
    assert packed["over_allocator"] is not None and packed["over_allocator"] <= 1.02


def test_torchs_own_graphs_keep_their_memory() -> None:
    """That the reading of idle memory can tell: a private pool cannot be had by others."""
    found = measure_memory(WIDE, "reduce-overhead", Device())
    assert found.held_mib > 1000


def test_memory_that_runs_out_in_a_replay_costs_one_call() -> None:
    """The call raises what torch raises, and the graph serves the next one."""
    model, inputs = make_model(WIDE, "cuda"), WIDE.make_inputs(0, "cuda")
    compiled = torch.compile(model, backend="pygraph")
    for _ in range(4):
        expected = compiled(*inputs)[0].clone()
    (before,) = pygraph.report().graphs
    assert (before.state, before.replays) == ("graphed", 2)
    torch.cuda.empty_cache()
    ballast = torch.empty(
        torch.cuda.mem_get_info()[0] - (512 << 20), dtype=torch.uint8, device="cuda"
    )
    with pytest.raises(torch.OutOfMemoryError):
        compiled(*inputs)
    del ballast
    torch.cuda.empty_cache()
    assert torch.equal(compiled(*inputs)[0], expected)
    (after,) = pygraph.report().graphs
    assert (after.state, after.replays) == ("graphed", 3)


def test_workspaces_of_operators_share_memory_with_what_lives_between_them(
    operators: Any,
) -> None:
    """Two operators with a workspace of 32 MiB each, and a buffer of 32 MiB between them that
    neither needs: there is room for one of them at a time."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return operators.work(operators.narrow(operators.widen(operators.work(x))))

    fast = torch.compile(function, backend="pygraph")
    x = torch.randn(1024, 16, device="cuda")
    for _ in range(4):
        torch.testing.assert_close(fast(x), function(x))
    (graph,) = pygraph.report().graphs
    assert graph.replays == 2, graph.blame
    assert graph.scratch_bytes >= 96 * MIB
    assert graph.arena_bytes <= 40 * MIB, graph.arena_bytes / MIB


def test_gradients_of_convolutions_have_memory_of_their_own() -> None:
    """Called for all of its gradients at once, a convolution's backward puts the weight's, 2 and 8
    MiB here, where the workspace of the input's was, 8 and 11 MiB, and has them copied out."""
    model = nn.Sequential(
        *(nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False) for width in (64, 128, 256))
    ).cuda()
    fast = torch.compile(model, backend="pygraph", options={"compiler": "aot"})
    weights = list(model.parameters())
    with torch.enable_grad():
        for _ in range(5):
            x = torch.randn(32, 64, 32, 32, device="cuda")
            expected = torch.autograd.grad(model(x).square().mean(), weights)
            found = torch.autograd.grad(fast(x).square().mean(), weights)
            torch.testing.assert_close(found, expected)
    (backward,) = (graph for graph in pygraph.report().graphs if "backward" in graph.name)
    assert backward.replays > 0, backward.blame
    assert (backward.outputs_direct, backward.outputs_copied) == (3, 0)


@pytest.fixture
def operators() -> Any:
    """One with a workspace that it allocates, writes and reads itself, and two whose results are
    512 times as large and as small as what they take."""

    def work(x: torch.Tensor) -> torch.Tensor:
        workspace = torch.empty(8 << 20, dtype=torch.float32, device=x.device)
        workspace.fill_(1.0)
        return x * workspace[: x.numel()].view_as(x)

    def widen(x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(0).repeat(512, 1, 1)

    def narrow(x: torch.Tensor) -> torch.Tensor:
        return x[0] + x[511]

    def shape_of_widen(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(512, *x.shape)

    def shape_of_narrow(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.shape[1:])

    shapes = {work: torch.empty_like, widen: shape_of_widen, narrow: shape_of_narrow}
    with torch.library._scoped_library("pygraph_memory", "DEF") as library:
        for operator, shape in shapes.items():
            name = operator.__name__
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, operator, "CUDA")
            torch.library.register_fake(f"pygraph_memory::{name}", shape, lib=library)
        yield torch.ops.pygraph_memory
