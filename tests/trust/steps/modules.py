"""What the models of random whole steps are made of, beside torch's own modules. Each keeps the
width of its input. Random programs import all of this by name."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass
class Batch:
    """Arguments as a dataclass."""

    inputs: dict[str, Any]
    rest: Any = None


class Pair(NamedTuple):
    first: Any
    second: Any


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(0.5))  # without dimensions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.inner(x)


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(width, width), nn.Linear(width, width)
        self.decode.weight = self.encode.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(torch.tanh(self.encode(x)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + torch.softmax(q @ k.transpose(0, 1) / 2, -1) @ v


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros_like(x)
        for _ in range(2):
            hidden = self.cell(x, hidden)
        return hidden


class Embedded(nn.Module):
    """Looks the input up in a table."""

    def __init__(self, width: int, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, width, sparse=sparse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.detach().abs() * 2).long() % 6
        return self.embedding(tokens).mean(1) + x


class Remembering(nn.Module):
    """Writes a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.75).add_(x.mean(0), alpha=0.25)
        return x - self.mean


class Averaging(nn.Module):
    """Rebinds a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.mean
        self.mean = 0.75 * before + 0.25 * x.mean(0).detach()
        return x - before


class Recalling(nn.Module):
    """Rebinds an attribute, which is None at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x if self.last is None else x + self.last
        self.last = x.mean(0).detach()
        return y


class Gated(nn.Module):
    """Frozen and unused parameters, and settings in containers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.frozen = nn.Linear(width, width), nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(width))
        self.settings: dict[str, Any] = {"scale": 0.5, "names": ["a", "b"], "on": True}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.gate(x)) * self.frozen(x) * self.settings["scale"]
        return y + x if self.settings["on"] else y


class Counting(nn.Module):
    """Counts on the host what it never uses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


class Noisy(nn.Module):
    """Draws random numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x + self.shift
        return x + torch.randn_like(x) * 0.125 + self.shift


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bound: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= ctx.bound), None


class Clipped(nn.Module):
    """A function with a backward of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bound = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Clipped.apply(x, self.bound)


class Checkpointed(nn.Module):
    """Runs its forward again in the backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        run = torch.utils.checkpoint.checkpoint
        return run(lambda y: torch.tanh(self.inner(y)), x, use_reentrant=False)


class Normed(nn.Module):
    """A weight that is made of others, and a power iteration in buffers."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        wrap = getattr(nn.utils.parametrizations, kind)
        self.inner = wrap(nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softplus(self.inner(x))


class Hooked(nn.Module):
    """Hooks on a module and on a gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.inner.register_forward_hook(_doubled)
        self.inner.weight.register_hook(_halved)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


def _doubled(module: nn.Module, arguments: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def _halved(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 0.5


def take(optimizers: dict[Any, Any], parameter: torch.Tensor) -> None:
    """A step for one parameter, in the backward."""
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
