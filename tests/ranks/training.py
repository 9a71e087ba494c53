"""Parallel models as torch has them, compiled and as they are, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import pygraph
from tests.ranks.launch import ON_GPUS, RANKS
from tests.ranks.scenarios import device, options, scenario

STEPS = 10
WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def blocks(count: int = 3) -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(5)
    made = nn.Sequential(*(Block() for _ in range(count))).to(device())
    torch.manual_seed(dist.get_rank())
    return made


def mesh() -> Any:
    return init_device_mesh(device().type, (RANKS,))


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="pygraph", options=options(), dynamic=False)


def same_input(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape, device=device())
    dist.broadcast(x, 0)
    return x


def figures(**more: Any) -> dict[str, Any]:
    graphs = pygraph.report().graphs
    calls, replays = sum(g.calls for g in graphs), sum(g.replays for g in graphs)
    reasons = [f"{g.name}: {g.reason}" for g in graphs if g.reason]
    return {"graphs": len(graphs), "calls": calls, "replays": replays, "reasons": reasons} | more


Run = Callable[[torch.Tensor], torch.Tensor]


def trains(
    model: Any, run: Run, reference: Any, expected: Run, inputs: Callable[[], torch.Tensor]
) -> int:
    """Steps whose losses are not the reference's."""
    pairs = [
        (step, torch.optim.SGD(each.parameters(), lr=0.05, foreach=False))
        for each, step in ((model, run), (reference, expected))
    ]
    wrong = 0
    for _ in range(STEPS):
        x, losses = inputs(), []
        for step, optimizer in pairs:
            loss = step(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        wrong += unlike(*losses)
    return wrong


def unlike(found: float, wanted: float) -> bool:
    return not abs(found - wanted) <= 1e-5 * abs(wanted)


def tensor_parallel(
    model: nn.Sequential, sequence: bool = False, over: Any = None
) -> nn.Sequential:
    """`over`: a mesh; None: all ranks."""
    over = over or mesh()
    for block in model:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }
        parallelize_module(block, over, plan)
    return model


@scenario
def tensor_parallel_inference() -> dict[str, Any]:
    reference = blocks()
    model = tensor_parallel(copy.deepcopy(reference))
    step = compiled(model)
    wrong = 0
    with torch.no_grad():
        for _ in range(STEPS):
            x = same_input(4, 8, WIDTH)
            wrong += not torch.allclose(step(x), reference(x), rtol=1e-4, atol=1e-4)
    return figures(wrong=wrong, past=pygraph.report().graphs[0].past_wrappers)


@scenario
def tensor_parallel_training() -> dict[str, Any]:
    reference = tensor_parallel(blocks())
    model = copy.deepcopy(reference)

    def inputs() -> torch.Tensor:
        return same_input(4, 8, WIDTH)

    return figures(wrong=trains(model, compiled(model), reference, reference, inputs))


@scenario
def sequence_parallel_training() -> dict[str, Any]:
    reference = tensor_parallel(blocks(), sequence=True)
    model = copy.deepcopy(reference)

    def inputs() -> torch.Tensor:
        return same_input(4, 8, WIDTH).chunk(RANKS, 1)[dist.get_rank()].contiguous()

    return figures(wrong=trains(model, compiled(model), reference, reference, inputs))


def own_input() -> torch.Tensor:
    return torch.randn(4, 8, WIDTH, device=device())


def replicated(model: nn.Module) -> DistributedDataParallel:
    index = device().index
    return DistributedDataParallel(model, device_ids=None if index is None else [index])


@scenario
def ddp() -> dict[str, Any]:
    reference, model = replicated(blocks()), replicated(blocks())
    return figures(wrong=trains(model, compiled(model), reference, reference, own_input))


@scenario
def ddp_accumulates() -> dict[str, Any]:
    """Two of three backwards keep their gradients to themselves."""
    reference, model = replicated(blocks()), replicated(blocks())
    inside = compiled(model)
    pairs = [
        (run, wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05, foreach=False))
        for run, wrapped in ((inside, model), (reference, reference))
    ]
    wrong = 0
    for _ in range(STEPS):
        batches = [own_input() for _ in range(3)]
        losses = []
        for run, wrapped, optimizer in pairs:
            for x in batches[:2]:
                with wrapped.no_sync():
                    run(x).square().mean().backward()
            loss = run(batches[2]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        wrong += unlike(*losses)
    return figures(wrong=wrong)


def sharded(model: nn.Sequential, compile_blocks: bool, over: Any = None) -> nn.Sequential:
    """`over`: a mesh; None: all ranks."""
    over = over or mesh()
    for block in model:
        if compile_blocks:
            block.compile(backend="pygraph", options=options(), dynamic=False)
        fully_shard(block, mesh=over)
    fully_shard(model, mesh=over)
    return model


@scenario
def fsdp() -> dict[str, Any]:
    reference, model = sharded(blocks(6), False), sharded(blocks(6), True)
    return figures(wrong=trains(model, model, reference, reference, own_input))


def captured_steps(
    make: Callable[[], Run], inputs: Callable[[], torch.Tensor] = own_input, debug: str = "off"
) -> dict[str, Any]:
    """Training steps, each captured whole, beside the same as they are."""
    expected = make()
    step = pygraph.capture(make(), device="cuda" if ON_GPUS else "twin", debug=debug)
    wrong = 0
    for _ in range(STEPS):
        x = inputs()
        wrong += unlike(step(x).item(), expected(x).item())
    return figures(wrong=wrong)


class Functional:
    """FSDP2's collectives as functional ones, which the twin runs."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(Functional, AllGather):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, **_: Any
    ) -> None:
        output_tensor.copy_(functional.all_gather_tensor(input_tensor, 0, group))


class Scatter(Functional, ReduceScatter):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, **_: Any
    ) -> None:
        output_tensor.copy_(functional.reduce_scatter_tensor(input_tensor, "sum", 0, group))


def use_functional_collectives(block: Any) -> None:
    """Where the twin captures what FSDP2 does."""
    if not ON_GPUS:
        block.set_custom_all_gather(Gather())
        block.set_custom_reduce_scatter(Scatter())


def sharded_steps(begin: bool = False, halves: bool = False, **more: Any) -> dict[str, Any]:
    """Training steps of FSDP2, each captured whole, its gathering and scattering inside. `begin`:
    gradients are dropped at the beginning, and clipped; `halves`: of each batch one backward keeps
    its gradients to itself."""

    def make() -> Run:
        model = blocks()
        for block in model:
            fully_shard(block, mesh=mesh(), **more)
            use_functional_collectives(block)
        fully_shard(model, mesh=mesh(), **more)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            if begin:
                optimizer.zero_grad()
            parts = x.chunk(2) if halves else (x,)
            for number, part in enumerate(parts):
                model.set_requires_gradient_sync(number == len(parts) - 1)
                loss = model(part).square().mean()
                loss.backward()
            if begin:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if not begin:
                optimizer.zero_grad()
            return loss.detach()

        return step

    return captured_steps(make)


@scenario
def fsdp_whole_step() -> dict[str, Any]:
    return sharded_steps()


@scenario
def fsdp_whole_step_gradients_stay() -> dict[str, Any]:
    """They are DTensors, which each step makes anew."""
    return sharded_steps(begin=True)


@scenario
def fsdp_whole_step_in_halves() -> dict[str, Any]:
    return sharded_steps(halves=True, reshard_after_forward=False)


@scenario
def fsdp_whole_step_mixed_precision() -> dict[str, Any]:
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return sharded_steps(mp_policy=half)


def split_steps(
    make_model: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor]
) -> dict[str, Any]:
    """Training steps, each captured whole. Parameters are DTensors; the loss is plain."""

    def make() -> Run:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    return captured_steps(make, inputs)


@scenario
def tensor_parallel_whole_step() -> dict[str, Any]:
    return split_steps(lambda: tensor_parallel(blocks()), lambda: same_input(4, 8, WIDTH))


class Grid:
    """Four ranks: data parallel in one dimension, tensor parallel in the other."""

    def __init__(self) -> None:
        names = "data", "tensor"
        mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=names)
        # Each time that a mesh is asked for one of its dimensions it makes another object.
        self.data, self.tensor = (mesh[name] for name in names)

    def model(self, compile_blocks: bool) -> nn.Sequential:
        """Each block is split by one dimension, and what each rank has of it is sharded by the
        other."""
        split = tensor_parallel(blocks(), over=self.tensor)
        made = sharded(split, compile_blocks, over=self.data)
        for block in made:
            use_functional_collectives(block)
        return made

    def input(self) -> torch.Tensor:
        """The same on ranks that split a model."""
        x = torch.randn(4, 8, WIDTH, device=device())
        group = self.tensor.get_group()
        dist.broadcast(x, dist.get_global_rank(group, 0), group)
        return x


@scenario
def two_dimensions() -> dict[str, Any]:
    grid = Grid()
    model, reference = grid.model(True), grid.model(False)
    return figures(wrong=trains(model, model, reference, reference, grid.input))


@scenario
def two_dimensions_whole_step() -> dict[str, Any]:
    grid = Grid()
    return split_steps(lambda: grid.model(False), grid.input)


def whole_steps(
    average: Callable[[Sequence[torch.Tensor]], None], debug: str = "off"
) -> dict[str, Any]:
    """Training steps, each captured whole; `average` is what makes gradients those of all ranks."""

    def make() -> Run:
        model = blocks()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            average([each.grad for each in model.parameters() if each.grad is not None])
            optimizer.step()
            return loss.detach()

        return step

    return captured_steps(make, debug=debug)


def by_functional_collectives(gradients: Sequence[torch.Tensor]) -> None:
    for each in gradients:
        each.copy_(functional.all_reduce(each, "sum", dist.group.WORLD) / RANKS)


@scenario
def whole_step() -> dict[str, Any]:
    """With its collectives inside, which return tensors of their own."""
    return whole_steps(by_functional_collectives)


@scenario
def whole_step_compared() -> dict[str, Any]:
    """What compares replays with the callable makes no run that other ranks do not make."""
    return whole_steps(by_functional_collectives, debug="compare")


@scenario
def whole_step_in_place() -> dict[str, Any]:
    """With collectives that write their argument, on the communicator's own stream."""

    def average(gradients: Sequence[torch.Tensor]) -> None:
        under_way = [dist.all_reduce(each, async_op=True) for each in gradients]
        for work in under_way:
            work.wait()

    return whole_steps(average)


@scenario
def pipeline_stage() -> dict[str, Any]:
    """The first rank's half of a model sends to the second one's, each captured with what it
    sends or gets."""
    first = dist.get_rank() == 0
    layer = blocks(1)
    reference = copy.deepcopy(layer)
    there = torch.zeros(4, WIDTH, device=device())

    def make(layer: nn.Module) -> Run:
        def stage(x: torch.Tensor) -> torch.Tensor:
            if first:
                y = layer(x)
                dist.send(y, 1)
                return y * 1
            dist.recv(there, 0)
            found: torch.Tensor = layer(there)
            return found

        return stage

    stage = pygraph.capture(make(layer), device="cuda" if ON_GPUS else "twin")
    expected = make(reference)
    wrong = 0
    with torch.no_grad():
        for _ in range(STEPS):
            x = torch.randn(4, WIDTH, device=device())
            wrong += not torch.allclose(stage(x), expected(x), rtol=1e-5, atol=1e-5)
    return figures(wrong=wrong)
