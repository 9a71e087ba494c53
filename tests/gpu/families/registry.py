"""What an operator family is: a callable, how to make its arguments, and what is expected of it.

Most families are run through `CompiledGraph` as they are, operator by operator (DIRECT), so that
Dynamo and Inductor leave the operator alone; some go through torch.compile (AOT, INDUCTOR).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch

GRAPHED, PARTLY, FALLS_BACK = "graphed", "graphed, partly copied", "fallback"
DIRECT, AOT, INDUCTOR = "direct", "aot", "inductor"

Tensor = torch.Tensor


class Make:
    """Makes arguments on one device from one seeded generator: no two calls give the same."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        made = torch.randn(
            shape,
            generator=self.generator,
            device=self.device,
            dtype=dtype if dtype.is_complex or dtype == torch.float64 else torch.float32,
        )
        return made.to(dtype)

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def ints(
        self, high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        made = torch.randint(low, high, shape, generator=self.generator, device=self.device)
        return made.to(dtype)

    def whole(self, *shape: int) -> Tensor:
        """Small whole numbers as floats: sums of them are exact in any order."""
        return self.ints(17, *shape, low=-8).to(torch.float32)

    def bools(self, *shape: int) -> Tensor:
        return self.rand(*shape) > 0.5

    def permutation(self, n: int) -> Tensor:
        return self.rand(n).argsort()

    def ascending(self, n: int, last: int) -> Tensor:
        """n int32 offsets that ascend, each at most `last`, the last being `last`."""
        offsets = self.ints(last + 1, n, dtype=torch.int32).sort().values
        offsets[-1] = last
        return offsets

    def definite(self, *batch: int, n: int) -> Tensor:
        """Symmetric positive definite matrices."""
        a = self.randn(*batch, n, n)
        return a @ a.mT + n * torch.eye(n, device=self.device)


@dataclasses.dataclass(frozen=True)
class Case:
    """`function(*inputs, *constants)` returns a tensor or several, none sharing memory with an
    argument. `inputs` and `constants` make new ones with other values each time; integer tensors
    stay valid when they get the values of another set."""

    function: Callable[..., Any]
    inputs: Callable[[], list[Any]]
    constants: Callable[[], list[Any]] = list


Build = Callable[[Make], Case]


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    build: Build
    expect: str  #: GRAPHED, PARTLY or FALLS_BACK
    why: str  #: what is special about its graph, or what keeps it from being one
    path: str = DIRECT
    gpu_only: bool = False
    reason: str = ""  #: a part of the reason that the report must give when it falls back

    @property
    def id(self) -> str:
        """The name as part of a test's."""
        return re.sub(r"[^\w.]+", "-", self.name).strip("-.")


FAMILIES: list[Family] = []


def family(
    name: str,
    why: str,
    *,
    expect: str = GRAPHED,
    path: str = DIRECT,
    gpu_only: bool = False,
    reason: str = "",
) -> Callable[[Build], Build]:
    """Registers a function that builds the family's case."""

    def register(build: Build) -> Build:
        FAMILIES.append(Family(name, build, expect, why, path, gpu_only, reason))
        return build

    return register


def simple(
    name: str,
    why: str,
    function: Callable[..., Any],
    inputs: Callable[[Make], list[Any]],
    constants: Callable[[Make], list[Any]] = lambda make: [],
    **options: Any,
) -> None:
    """Registers a family that is a function and two ways of making arguments."""
    family(name, why, **options)(
        lambda make: Case(function, lambda: inputs(make), lambda: constants(make))
    )
