"""What is measured on several GPUs.

The paper's tensor parallel workloads are XLNET-I 128, DALLE2 2, ST 1 and VM 1 (arXiv 2503.19779,
section 6). Torch's own plans do not split these models, so a stack of blocks with the same batch
takes the place of each; the record says of which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pygraph
from benchmarks.gpus.models import Gpt, Llama, staged, tensor_parallel
from benchmarks.harness.isolate import isolated
from benchmarks.harness.modes import compiling

Step = Callable[..., Any]
INPUTS = 8
POSITIONS = 512


@dataclasses.dataclass
class Program:
    """One mode of a workload, on one rank."""

    step: Step
    """From inputs to a result that every rank has: an output, or a loss."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, how it is split, and what it is called with."""

    name: str
    batch: int
    parallel: str
    """"tensor", "ddp" or "fsdp2"; "stages": one process has all GPUs."""
    make: Callable[[bool, int], Any]
    """The model, from whether it is tiny and how many ranks split it."""
    length: int
    width: int
    decode: bool = False
    trains: bool = False
    stands_for: str | None = None

    def inputs(self, device: torch.device, tiny: bool) -> list[tuple[Any, ...]]:
        """Of tensor parallel ranks the same, of others each its own."""
        seed = torch.Generator().manual_seed(dist.get_rank() if self.trains else 0)
        width, length = (64, min(self.length, 8)) if tiny else (self.width, self.length)
        dtype = torch.bfloat16 if device.type == "cuda" and not self.trains else torch.float32
        found: list[tuple[Any, ...]] = []
        for number in range(INPUTS):
            x = torch.randn(self.batch, length, width, generator=seed).to(device, dtype)
            position = torch.tensor([7 + number], device=device)
            found.append((x, position) if self.decode else (x,))
        return found

    def program(self, mode: str, device: torch.device, tiny: bool) -> Program:
        """Weights are the same in each mode, and on each rank."""
        torch.manual_seed(0)
        with torch.device(device):
            model = self.make(tiny, dist.get_world_size())
        if not self.trains:
            model = model.to(torch.bfloat16) if device.type == "cuda" else model
            model.eval()
        if self.parallel == "stages":
            model = staged(model, places_of(device))
            forward = compiled(model, "default" if mode == "capture" else mode, device)
            return _training(forward, model, mode) if self.trains else Program(forward)
        if not self.trains:
            return Program(compiled(tensor_parallel(model, _mesh(device)), mode, device))
        if self.parallel == "ddp":
            places = [device.index] if device.type == "cuda" else None
            wrapped = DistributedDataParallel(model, device_ids=places)
            return _training(compiled(wrapped, mode, device), wrapped, mode)
        for block in model.blocks:
            if mode != "eager":
                block.compile(**compiling(mode, device.type == "cuda"))
            fully_shard(block, mesh=_mesh(device))
        fully_shard(model, mesh=_mesh(device))
        return _training(model, model, mode)


def places_of(device: torch.device) -> list[torch.device]:
    """Where the stages of a model are that begins on `device`: all GPUs."""
    if device.type != "cuda":
        return [device, device]
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def compiled(model: Any, mode: str, device: torch.device) -> Any:
    if mode == "eager":
        return model
    own = isolated(model, mode.replace("-", "_"))
    return torch.compile(own, **compiling(mode, device.type == "cuda"))


def _mesh(device: torch.device) -> Any:
    return init_device_mesh(device.type, (dist.get_world_size(),))


def _training(forward: Any, model: Any, mode: str) -> Program:
    on_gpu = next(model.parameters()).is_cuda
    # What a graph of a whole step needs, and costs nothing elsewhere.
    more = {"fused": True, "capturable": on_gpu}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **more)

    def step(*inputs: Any) -> Any:
        loss = forward(*inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if mode == "capture":
        return Program(pygraph.capture(step, device="cuda" if on_gpu else "twin"))
    return Program(step)


def reference(workload: Workload, device: torch.device, tiny: bool) -> Step:
    """The whole model on this rank alone, in eager mode: for inference."""
    torch.manual_seed(0)
    with torch.device(device):
        model = workload.make(tiny, 1)
    model = model.to(torch.bfloat16) if device.type == "cuda" else model
    found: Step = model.eval()
    return found


def _llama(layers: int, width: int, heads: int, cache: int | None = None) -> Any:
    def make(tiny: bool, ranks: int) -> Any:
        held = None if cache is None else (cache, 32 if tiny else POSITIONS)
        return Llama(2, 64, 4, held, ranks) if tiny else Llama(layers, width, heads, held, ranks)

    return make


def _gpt(layers: int, width: int, heads: int) -> Any:
    return lambda tiny, ranks: Gpt(2, 64, 4) if tiny else Gpt(layers, width, heads)


WORKLOADS: Sequence[Workload] = (
    Workload("llama-decode-1", 1, "tensor", _llama(16, 2048, 16, 1), 1, 2048, decode=True),
    Workload("llama-decode-16", 16, "tensor", _llama(16, 2048, 16, 16), 1, 2048, decode=True),
    Workload("gpt-128", 128, "tensor", _gpt(12, 768, 12), 32, 768, stands_for="XLNET-I 128"),
    Workload("llama-2", 2, "tensor", _llama(12, 1024, 16), 128, 1024, stands_for="DALLE2 2"),
    Workload("gpt-1", 1, "tensor", _gpt(12, 512, 8), 128, 512, stands_for="ST 1"),
    Workload("llama-1", 1, "tensor", _llama(12, 768, 12), 196, 768, stands_for="VM 1"),
    Workload("gpt-ddp", 8, "ddp", _gpt(12, 512, 8), 128, 512, trains=True),
    Workload("gpt-fsdp2", 8, "fsdp2", _gpt(12, 512, 8), 128, 512, trains=True),
    Workload("llama-stages-1", 1, "stages", _llama(16, 2048, 16, 1), 1, 2048, decode=True),
    Workload("gpt-stages", 8, "stages", _gpt(12, 512, 8), 128, 512, trains=True),
)
