"""TorchBench's programs that are no pictures or words: two of ocean models, two recommenders, and
DCGAN's discriminator."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import nn

from benchmarks.harness.program import Sample, Tensors
from benchmarks.paper.workloads.sources import torchbench_module
from pygraph.demo.models import MODEL_SEED


class Function(nn.Module):
    """A function without weights."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _grid(points: int) -> tuple[int, int, int]:
    """pyhpc's: flat, about as many points as asked for."""
    side = points ** (1 / 3)
    return math.ceil(2 * side), math.ceil(2 * side), math.ceil(0.25 * side)


# ------------------------------------------------------------------------------ equation of state


def equation_of_state(tiny: bool) -> nn.Module:
    source = torchbench_module("torchbenchmark.models.pyhpc_equation_of_state.eos_pytorch")
    return Function(source.gsw_dHdT)


def one_result(model: Any, *inputs: Any) -> Tensors:
    return (model(*inputs),)


def sample_water(points: int) -> Sample:
    """Salinity, temperature and pressure in TorchBench's ranges."""
    shape = _grid(points)

    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        def between(low: float, high: float, *size: int) -> Any:
            drawn = torch.rand(size, generator=generator, dtype=torch.float64)
            return low + (high - low) * drawn

        return between(1e-2, 10, *shape), between(-12, 20, *shape), between(0, 1e3, 1, 1, shape[2])

    return sample


# ------------------------------------------------------------------------------ kinetic energy


def kinetic_energy(tiny: bool) -> nn.Module:
    source = torchbench_module("torchbenchmark.models.pyhpc_turbulent_kinetic_energy.tke_pytorch")
    return Function(source.integrate_tke)


def integrate(model: Any, *inputs: Any) -> Tensors:
    """The last two inputs are written to, so they are copied first."""
    *others, energy, change = inputs
    return tuple(model(*others, energy.clone(), change.clone()))


def sample_sea(points: int) -> Sample:
    """The 21 fields, in the order of the function's arguments."""
    x, y, z = _grid(points)
    volume = (x, y, z)

    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        def normal(*size: int) -> Any:
            return torch.randn(size, generator=generator, dtype=torch.float64)

        def mask() -> Any:
            return (torch.rand(volume, generator=generator) < 0.8).double()

        speeds = [normal(*volume, 3) for _ in range(3)]
        masks = [mask() for _ in range(3)]
        lines = [normal(size) for size in (x, x, y, y, z, z, y, y)]
        bottom = torch.randint(0, z, (x, y), generator=generator)
        volumes = [normal(*volume) for _ in range(3)]
        surface = normal(x, y)
        energies = [normal(*volume, 3) for _ in range(2)]
        return (*speeds, *masks, *lines, bottom, *volumes, surface, *energies)

    return sample


# ------------------------------------------------------------------------------ DLRM

TABLES = 8


def dlrm(tiny: bool) -> nn.Module:
    """TorchBench's architecture: eight tables, pairwise dot products between two MLPs."""
    source = torchbench_module(
        "torchbenchmark.models.dlrm.dlrm_s_pytorch", ("onnx", "sklearn", "sklearn.metrics")
    )
    rows, width, bottom, top = (
        (50, 4, [8, 8], [16, 1]) if tiny else (1_000_000, 64, [512, 512], [1024, 1024, 1024, 1])
    )
    features = TABLES + 1
    pairs = features * (features - 1) // 2
    numpy.random.seed(MODEL_SEED)  # its weights are NumPy's
    return source.DLRM_Net(
        width,
        numpy.array([rows] * TABLES),
        numpy.array([*bottom, width]),
        numpy.array([pairs + width, *top]),
        arch_interaction_op="dot",
    )


def click(model: Any, dense: Any, *lookups: Any) -> Tensors:
    """`lookups`: where each row's indices start, by table, and the indices, by table."""
    return (model(dense, list(lookups[:TABLES]), list(lookups[TABLES:])),)


def sample_clicks(batch: int, dense: int, rows: int, per_lookup: int) -> Sample:
    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        starts = [torch.arange(0, batch * per_lookup, per_lookup) for _ in range(TABLES)]
        indices = [
            torch.randint(rows, (batch * per_lookup,), generator=generator) for _ in range(TABLES)
        ]
        return (torch.rand(batch, dense, generator=generator), *starts, *indices)

    return sample


# ------------------------------------------------------------------------------ DeepRecommender

ITEMS = 197_951


def recommender(tiny: bool) -> nn.Module:
    source = torchbench_module(
        "torchbenchmark.models.nvidia_deeprecommender.reco_encoder.model.model"
    )
    sizes = [50, 8, 8, 16] if tiny else [ITEMS, 512, 512, 1024]
    return source.AutoEncoder(
        layer_sizes=sizes, nl_type="selu", is_constrained=False, dp_drop_prob=0.8
    )


def sample_ratings(batch: int, items: int) -> Sample:
    """Dense normal numbers, as TorchBench's, drawn on the device: the CPU would take minutes."""

    def sample(generator: torch.Generator, device: torch.device) -> Tensors:
        seed = int(torch.randint(2**62, (), generator=generator))
        there = torch.Generator(device).manual_seed(seed)
        return (torch.randn(batch, items, generator=there, device=device),)

    return sample


# ------------------------------------------------------------------------------ DCGAN


def discriminator(tiny: bool) -> nn.Module:
    source = torchbench_module("torchbenchmark.models.dcgan")
    model: nn.Module = source.Discriminator(SimpleNamespace(ngpu=1, nc=3, ndf=4 if tiny else 64))
    return model.apply(source.weights_init)
