"""What a workload of the paper is: a program, its inputs, and where they come from.

An iteration is what the paper's table 1 takes as one: a forward without gradients, or a forward, a
scalar loss made of its results and a backward; there is no optimizer. Weights are random. Every
program takes and returns plain tensors, so that all modes can be called, copied for and compared
alike. The loss is not part of the program: modes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.harness.build import build_on
from benchmarks.harness.program import BF16, Program, Sample, Tensors, made_inputs
from pygraph.demo.models import Unavailable

FP32, FP64 = "fp32", "fp64"


@dataclass(frozen=True)
class Workload:
    """One row of the paper's table 1."""

    name: str
    """The paper's short name, with -I and -T where a model is there twice."""
    model: str
    suite: str
    """huggingface, torchbench or timm."""
    training: bool
    batch: int
    build: Callable[[bool], nn.Module]
    """The model; True for a tiny version of the same architecture, for tests on a CPU."""
    call: Callable[..., Any]
    """From the model and its inputs to a tuple of tensors; in training a loss is made of them."""
    sample: Callable[[bool], Sample]
    """True for the tiny version's inputs."""
    precision: str = BF16
    source: str = ""
    """The library and class, or the folder of TorchBench, that the model is made from."""
    deviation: str = ""
    """What is not as in the paper, and why; empty where nothing is."""
    needs: tuple[str, ...] = ()
    """Modules that have to be importable; "torchbench" stands for a checkout of TorchBench."""
    random: bool = False
    """Draws random numbers, as dropout does."""
    compared: Callable[[Tensors], Tensors] | None = None
    """What of the results is compared with eager, where rounding can change their shapes."""
    inductor: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of Inductor, for all modes alike."""

    @property
    def groups(self) -> tuple[str, ...]:
        """What it can be asked for by, besides its name."""
        return self.suite, "training" if self.training else "inference"

    def settings(self) -> AbstractContextManager[Any]:
        """Inductor's, around all that compiles: in torch 2.13 they are those of one thread, and so
        do not reach a backward that is compiled late, on autograd's."""
        from torch._inductor import config

        return config.patch(dict(self.inductor))

    def make_program(self, device: torch.device, tiny: bool = False) -> Program:
        """Always with the same weights for one kind of device. Raises Unavailable, with what is
        missing, where a library or TorchBench is."""
        from benchmarks.paper.workloads import sources

        if missing := sources.missing(self.needs):
            raise Unavailable(f"{missing}; `./run bench --list` says what to install")
        model = build_on(device, partial(self.build, tiny), "torch")
        program = Program(model, self.call, self.precision == BF16 and device.type == "cuda")
        return program.train(self.training)

    def make_inputs(self, seed: int, device: torch.device, tiny: bool = False) -> Tensors:
        return made_inputs(self.sample(tiny), seed, device)
