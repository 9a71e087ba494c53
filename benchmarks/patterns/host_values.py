"""Numbers of Python and NumPy that change from call to call."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.patterns.pattern import Loaded, Pattern, Tensors, number


class Scaled(Loaded):
    def forward(self, x: Any, scale: Any) -> Any:
        return self.tail(self.head(x) * scale)


class Diffused(Loaded):
    def forward(self, x: Any, sigma: Any) -> Any:
        return self.tail(self.head(x) * (1 - sigma**2) ** 0.5 + x * sigma)


class Squared(Loaded):
    def forward(self, x: Any, sigma: Any) -> Any:
        return self.tail(self.head(x) * (1 - sigma**2))


class Mixed(Loaded):
    def forward(self, x: Any, scale: Any, share: Any, shift: Any) -> Any:
        return self.tail(self.head(x) * scale + x * share + shift)


class Counted(Loaded):
    def forward(self, x: Any, n: Any) -> Any:
        return self.tail(self.head(x) * (n + 1) / (2 * n + 4))


class Tripled(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) * torch.tensor(3.0))


class TripledClean(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) * 3.0)


class Updated(Loaded):
    """A step of an optimizer for the weights of the head."""

    def forward(self, x: Any, rate: Any) -> Tensors:
        y = self.tail(self.head(x))
        return tuple(weight - rate * (y * weight) for weight in self.head.weights)


def numpy_number(k: int) -> Tensors:
    import numpy

    return (numpy.float32(0.5 + number(k)),)


PATTERNS = (
    Pattern(
        "float_scale",
        "a Python float that is different in each call",
        Scaled,
        Scaled,
        values=lambda k: (0.5 + number(k),),
        one_copy_more=True,
    ),
    Pattern(
        "float_computed",
        "a Python float that is computed with before tensors see it: (1 - sigma**2) ** 0.5",
        Diffused,
        Diffused,
        values=lambda k: (number(k),),
        one_copy_more=True,
    ),
    Pattern(
        "float_power",
        "a power of a Python float, and no root of it: 1 - sigma**2",
        Squared,
        Squared,
        values=lambda k: (number(k),),
        one_copy_more=True,
    ),
    Pattern(
        "two_numbers",
        "two Python floats and a number in a CPU tensor, all different in each call",
        Mixed,
        Mixed,
        values=lambda k: (0.5 + number(k), number(3 * k + 1), torch.tensor(number(5 * k + 2))),
        one_copy_more=True,
    ),
    Pattern(
        "int_arithmetic",
        "a Python int that is different in each call and only computed with",
        Counted,
        Counted,
        values=lambda k: (k,),
        one_copy_more=True,
    ),
    Pattern(
        "numpy_scalar",
        "a number of NumPy's",
        Scaled,
        Scaled,
        values=numpy_number,
        one_copy_more=True,
    ),
    Pattern("tensor_made", "torch.tensor(3.0) in the forward", Tripled, TripledClean),
    Pattern(
        "learning_rate",
        "a learning rate: a number in a CPU tensor, for ten updates",
        Updated,
        Updated,
        values=lambda k: (torch.tensor(0.1 * number(k)),),
        one_copy_more=True,
    ),
)
