"""Models with branches that do not depend on each other and that no library has: four towers, a
mixture of experts, many heads, and a detector with a pyramid of features in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from pygraph.demo.models import MODEL_SEED


def layers(*widths: int) -> nn.Sequential:
    """Linear, LayerNorm and ReLU from width to width; norms keep the input visible at the end."""
    found: list[nn.Module] = []
    for before, behind in pairwise(widths):
        found += [nn.Linear(before, behind), nn.LayerNorm(behind), nn.ReLU()]
    return nn.Sequential(*found)


class Towers(nn.Module):
    """A recommender: a tower for each input, joined by all products of two towers' results, those
    results themselves, and a head."""

    def __init__(self, towers: int, depth: int, width: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(layers(*[width] * (depth + 1)) for _ in range(towers))
        pairs = towers * (towers - 1) // 2
        self.head = nn.Sequential(layers(towers * width + pairs, width), nn.Linear(width, 1))

    def forward(self, *inputs: Any) -> Any:
        return self.join([tower(x) for tower, x in zip(self.towers, inputs, strict=True)])

    def join(self, found: Sequence[Any]) -> Any:
        scale = found[0].shape[-1] ** -0.5
        products = [(a * b).sum(-1, keepdim=True) * scale for a, b in combinations(found, 2)]
        return self.head(torch.cat([*found, *products], -1))


class OnStreams:
    """Towers in eager mode, each on a stream of its own, as one writes it by hand."""

    def __init__(self, model: Towers) -> None:
        self.model = model
        self.streams = [torch.cuda.Stream() for _ in model.towers]

    def __call__(self, *inputs: Any) -> Any:
        origin = torch.cuda.current_stream()
        found = []
        for stream, tower, x in zip(self.streams, self.model.towers, inputs, strict=True):
            stream.wait_stream(origin)
            x.record_stream(stream)  # its memory is not given away before the tower has read it
            with torch.cuda.stream(stream):
                found.append(tower(x))
        for stream, result in zip(self.streams, found, strict=True):
            origin.wait_stream(stream)
            result.record_stream(origin)
        return self.model.join(found)


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Any) -> Any:
        return self.narrow(F.gelu(self.wide(x)))


class MixtureLayer(nn.Module):
    """Dense routing: all experts run, and their results are summed up by weight."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width, hidden) for _ in range(experts))

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        weights = self.gate(y).softmax(-1)
        for number, expert in enumerate(self.experts):
            x = x + weights[:, number : number + 1] * expert(y)
        return x


def mixture(depth: int, experts: int, width: int, hidden: int) -> nn.Module:
    return nn.Sequential(*(MixtureLayer(experts, width, hidden) for _ in range(depth)))


class Heads(nn.Module):
    """An ensemble of heads on one trunk; the results are side by side."""

    def __init__(self, heads: int, depth: int, width: int) -> None:
        super().__init__()
        self.trunk = layers(width, width, width)
        self.heads = nn.ModuleList(
            nn.Sequential(layers(*[width] * depth), nn.Linear(width, 8)) for _ in range(heads)
        )

    def forward(self, x: Any) -> Any:
        x = self.trunk(x)
        return torch.stack([head(x) for head in self.heads], 1)


# ------------------------------------------------------------------------------ the detector


def separable(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Fusion(nn.Module):
    """Feature maps of one size to one: a weighted mean, and a convolution."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(inputs))
        self.convolution = separable(width, width)

    def forward(self, *found: Any) -> Any:
        weights = F.relu(self.weights)
        weights = weights / (weights.sum() + 1e-4)
        mixed = sum(weights[n] * each for n, each in enumerate(found))
        return self.convolution(F.silu(mixed))


class PyramidCell(nn.Module):
    """BiFPN (Tan et al., 2019, figure 3): from the coarsest level down, and up again."""

    def __init__(self, levels: int, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(Fusion(2, width) for _ in range(levels - 1))
        self.up = nn.ModuleList(
            Fusion(3 if level < levels - 2 else 2, width) for level in range(levels - 1)
        )

    def forward(self, levels: Sequence[Any]) -> list[Any]:
        between = [levels[-1]]  # from the coarsest to the finest
        for fusion, level in zip(self.down, reversed(levels[:-1]), strict=True):
            coarser = F.interpolate(between[-1], size=level.shape[-2:], mode="nearest")
            between.append(fusion(level, coarser))
        between.reverse()
        found = [between[0]]
        for number, fusion in enumerate(self.up, 1):
            finer = F.max_pool2d(found[-1], 3, 2, 1)
            last = number == len(levels) - 1
            own = (levels[number],) if last else (levels[number], between[number])
            found.append(fusion(*own, finer))
        return found


class LevelHead(nn.Module):
    """Separable convolutions over each level, all levels with the same weights."""

    def __init__(self, depth: int, width: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.ModuleList(separable(width, width) for _ in range(depth))
        self.predict = nn.Conv2d(width, outputs, 3, padding=1)

    def forward(self, x: Any) -> Any:
        for each in self.body:
            x = F.silu(each(x))
        return self.predict(x).flatten(2)


class Detector(nn.Module):
    """EfficientDet (Tan et al., 2019): features of timm's backbone at strides 8, 16 and 32, two
    coarser levels, BiFPN, and heads for classes and for boxes over the five levels. Anchors and
    suppression are left out: they are no part of the network."""

    def __init__(self, backbone: str, width: int, cells: int, depth: int, classes: int) -> None:
        super().__init__()
        self.backbone = import_module("timm").create_model(
            backbone, pretrained=False, features_only=True, out_indices=(2, 3, 4)
        )
        channels = self.backbone.feature_info.channels()
        self.narrow = nn.ModuleList(
            nn.Sequential(nn.Conv2d(each, width, 1, bias=False), nn.BatchNorm2d(width))
            for each in (*channels, channels[-1])
        )
        self.cells = nn.ModuleList(PyramidCell(5, width) for _ in range(cells))
        self.classes = LevelHead(depth, width, 9 * classes)
        self.boxes = LevelHead(depth, width, 9 * 4)

    def forward(self, images: Any) -> Any:
        found = self.backbone(images)
        levels = [narrow(each) for narrow, each in zip(self.narrow, found, strict=False)]
        levels.append(F.max_pool2d(self.narrow[-1](found[-1]), 3, 2, 1))
        levels.append(F.max_pool2d(levels[-1], 3, 2, 1))
        for cell in self.cells:
            levels = cell(levels)
        heads = (self.classes, self.boxes)
        return tuple(torch.cat([head(each) for each in levels], 2) for head in heads)


# ------------------------------------------------------------------------------ norms


@torch.no_grad()
def settled(model: nn.Module, size: int, images: int = 4) -> nn.Module:
    """The model, its norms with the statistics of some noise. As they are made, signals fade or
    overflow 16 bits in a deep network, and stale inputs would not show in its results."""
    device = torch.get_default_device()
    generator = torch.Generator("cpu").manual_seed(MODEL_SEED)
    noise = torch.randn(images, 3, size, size, generator=generator, device="cpu").to(device)
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.to(device).train()(noise)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()
