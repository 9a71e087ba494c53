"""Models of few kernels: Inductor fuses pointwise work, and no matrix product with anything."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._dynamo import graph_break
from torch.nn import functional

from benchmarks.selection.scenario import WIDTH


def weights(many: int, rows: int, columns: int) -> nn.ParameterList:
    return nn.ParameterList(torch.randn(rows, columns) * rows**-0.5 for _ in range(many))


class Pointwise(nn.Module):
    """One pointwise kernel."""

    def forward(self, x: Any) -> Any:
        return torch.tanh(x) * 2.0 + x


class Clone(nn.Module):
    """One copy."""

    def forward(self, x: Any) -> Any:
        return x.clone()


class Total(nn.Module):
    """One reduction."""

    def forward(self, x: Any) -> Any:
        return x.square().sum(-1)


class Product(nn.Module):
    """One matrix product."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        (self.weight,) = weights(1, width, width)

    def forward(self, x: Any) -> Any:
        return x @ self.weight


class Kernels(nn.Module):
    """So many: products and pointwise ones in turn."""

    def __init__(self, many: int, width: int = WIDTH) -> None:
        super().__init__()
        self.many, self.weights = many, weights((many + 1) // 2, width, width)

    def forward(self, x: Any) -> Any:
        for n in range(self.many):
            x = torch.tanh(x) if n % 2 else x @ self.weights[n // 2]
        return x


class Columns(nn.Module):
    """A reduction over rows, and one pointwise kernel, of any number of tensors."""

    def forward(self, *them: Any) -> Any:
        found = them[0]
        for each in them[1:]:
            found = found * each
        return found * found.sum(0, keepdim=True)


class Each(nn.Module):
    """A kernel for each tensor."""

    def forward(self, *them: Any) -> Any:
        return [torch.tanh(each) * 2.0 for each in them]


class Foreach(nn.Module):
    """One kernel, or a few, for all tensors."""

    def forward(self, *them: Any) -> Any:
        return torch._foreach_mul(them, 2.0)


class Readers(nn.Module):
    """So many kernels that read the same input."""

    def __init__(self, many: int, columns: int = 16) -> None:
        super().__init__()
        self.weights = weights(many, WIDTH, columns)

    def forward(self, x: Any) -> Any:
        return [x @ weight for weight in self.weights]


class Broken(nn.Module):
    """A forward that breaks into so many graphs, each of so many kernels."""

    def __init__(self, graphs: int, kernels: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Kernels(kernels) for _ in range(graphs))


def broken(graphs: int, kernels: int) -> Callable[[], nn.Module]:
    """A class for each number of graphs: Dynamo goes on behind a break by where it stands in the
    code, and gives up code that breaks in a loop."""
    lines = [f"    x = self.parts[{n}](x)\n    graph_break()" for n in range(graphs)]
    lines[-1] = lines[-1].replace("    graph_break()", "    return x")
    found: dict[str, Any] = {"graph_break": graph_break}
    exec("def forward(self, x):\n" + "\n".join(lines), found)
    forward: FunctionType = found["forward"]
    kind = type("Broken", (Broken,), {"forward": forward, "__module__": __name__})
    return lambda: kind(graphs, kernels)


class Outputs(nn.Module):
    """So many results of one kernel, or a few."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self.many = many

    def forward(self, x: Any) -> Any:
        return [x * float(n + 1) + 1.0 for n in range(self.many)]


class Regression(nn.Module):
    """A net in training, whose loss is made within it: how well it tells its first input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return (self.layers(x) - 2.0 * x.flatten(1)[:, :1]).square().mean()


def perceptron(layers: int, width: int) -> Callable[[], nn.Module]:
    """In training."""

    def made() -> nn.Module:
        pairs = [(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
        return Regression(*(each for pair in pairs for each in pair), nn.Linear(width, 1))

    return made


def convolutions(channels: int, size: int) -> nn.Sequential:
    """Of square images. A bias, or a mean over the image, would hide which one it was."""

    def layer(inputs: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False), nn.ReLU()]

    ends = [nn.Flatten(), nn.Linear(channels * (size // 4) ** 2, 10)]
    return nn.Sequential(*layer(3), *layer(channels, 2), *layer(channels, 2), *ends)


class Bag(nn.Module):
    """Means of rows of a table."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="mean")

    def forward(self, indices: Any) -> Any:
        return self.table(indices)


class Cell(nn.Module):
    """A step of an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Any, hidden: Any, cell: Any) -> Any:
        forget, take, give, new = (self.inner(x) + self.outer(hidden)).chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(new)
        return torch.sigmoid(give) * torch.tanh(cell), cell


class Normed(nn.Module):
    """A norm and a softmax: two kernels, or one."""

    def forward(self, x: Any) -> Any:
        return functional.layer_norm(x, x.shape[-1:]).softmax(0)
