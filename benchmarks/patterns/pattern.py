"""What a pattern is: a model with an obstacle, the same model without it, and their inputs.

Both stand around one load: two chains of ten small matrix products with pointwise work in between,
which no compiler fuses, so 40 kernels. The clean model computes the same from inputs that are on
the device already. Where the program brings much from the host, or wants its results there, no
program can do without the copy: there the clean one makes it by hand, around the compiled model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pygraph.demo.models import MODEL_SEED

Tensors = tuple[Any, ...]

WIDTH, LAYERS = 128, 10
TENSORS = 8
"""Different tensors that a stream of inputs goes around."""
VALUES = 512
"""Different numbers that it goes around."""
LIMITS = {False: 1.10, True: 1.15}
"""What an obstacle may cost, in times of the clean program: without and with one copy more."""


BY_HAND = "; the clean program has it, too, outside of the compiled model:"
"""Behind what stands in the way, where the clean program copies by hand."""


class Chain(nn.Module):
    """Twice as many kernels as layers."""

    def __init__(self) -> None:
        super().__init__()
        scale = WIDTH**-0.5
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) * scale for _ in range(LAYERS))

    def forward(self, x: Any) -> Any:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x


class Loaded(nn.Module):
    """A model with the load; the obstacle mostly stands in the middle."""

    by_hand = False
    """A clean one: its program copies by hand, in `called`, and brings inputs of the host there."""

    def called(self, forward: Callable[..., Any], *inputs: Any) -> Any:
        """What the program does around the compiled `forward`. It is timed."""
        return forward(*inputs)

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = Chain(), Chain()

    def place(self, device: torch.device) -> None:
        """Make what shall not move with the model: tensors that stay on the CPU."""

    def restart(self) -> None:
        """Back to the state before the first call."""

    def observe(self, inputs: Tensors, outputs: Any) -> Any:
        """All that a call has computed: its results, and what it wrote."""
        return outputs


def square(generator: torch.Generator) -> Tensors:
    return (torch.randn(WIDTH, WIDTH, generator=generator),)


def number(k: int) -> float:
    """The k-th of numbers between 0 and 1 of which no two are equal."""
    return k * 0.6180339887498949 % 1.0


@dataclass(frozen=True)
class Pattern:
    name: str
    about: str
    """What stands in the way, and what a clean program does by hand."""
    model: type[Loaded]
    clean: type[Loaded]
    """The model itself where its inputs alone are in the way."""
    tensors: Callable[[torch.Generator], Tensors] = square
    """The first inputs, made on the CPU and moved to the device."""
    host: tuple[int, ...] = ()
    """The places of those that stay on the CPU."""
    values: Callable[[int], Tensors] = lambda k: ()
    """The inputs behind them, in call k."""
    further: Callable[[torch.device], Tensors] = lambda device: ()
    """Inputs of the clean model alone, behind the others."""
    training: bool = False
    """An iteration is a forward, which returns a loss, and a backward."""
    random: bool = False
    """Compiled code draws other numbers than eager from one seed, and is compared with default."""
    tolerance: float = 1e-3
    """Relative, against eager."""
    one_copy_more: bool = False
    """Something of the host's has to be brought in each call, which the clean program has on the
    device."""
    ends_process: Mapping[str, str] = field(default_factory=dict)
    """Modes that are not run, since they would end the process, and why they do."""

    @property
    def limit(self) -> float:
        """Of pygraph's latency in times of the clean program's."""
        return LIMITS[self.one_copy_more]

    def build(self, clean: bool, device: torch.device) -> Loaded:
        """The same weights for both."""
        torch.manual_seed(MODEL_SEED)
        model = (self.clean if clean else self.model)().to(device)
        model.place(device)
        return model if self.training else model.eval()

    def moved(self, tensors: Tensors, clean: bool, device: torch.device) -> Tensors:
        stay = self.host if not clean or self.clean.by_hand else ()
        return tuple(each if n in stay else each.to(device) for n, each in enumerate(tensors))

    def behind(self, k: int, clean: bool, device: torch.device) -> Tensors:
        if not clean:
            return self.values(k)
        on_device = tuple(as_tensor(value).to(device) for value in self.values(k))
        return (*on_device, *self.further(device))

    def inputs(self, seed: int, clean: bool, device: torch.device) -> Tensors:
        """Those of one call. What is drawn for the clean model is drawn from torch's generator
        with this seed, with which the other model draws it."""
        tensors = self.tensors(torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        return (*self.moved(tensors, clean, device), *self.behind(seed, clean, device))

    def stream(self, clean: bool, device: torch.device) -> Stream:
        generators = [torch.Generator().manual_seed(1000 + n) for n in range(TENSORS)]
        tensors = [self.moved(self.tensors(each), clean, device) for each in generators]
        return Stream(
            (*tensors[k % TENSORS], *self.behind(1000 + k, clean, device)) for k in range(VALUES)
        )


class Stream(list[Tensors]):
    """Inputs of call after call: whichever place is asked for, the next ones are given. So loops
    that begin at place 0 again do not begin with the same numbers."""

    taken = 0

    def __getitem__(self, place: Any) -> Any:
        self.taken += 1
        return super().__getitem__(self.taken % len(self))


def as_tensor(value: Any) -> Any:
    """Numbers are single ones, as the results of the device are."""
    if isinstance(value, torch.Tensor):
        return value
    made = torch.as_tensor(value)
    return made.float() if made.is_floating_point() else made


def flat(observed: Any) -> Tensors:
    """Copies on the CPU of all that was observed."""
    if isinstance(observed, tuple):
        return tuple(each for part in observed for each in flat(part))
    return (as_tensor(observed).detach().cpu().clone(),)
