"""Image models, and the MLP: dropout, BatchNorm, attention, autocast."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from pygraph.demo.small_models import UNet
from training.workload import Setup, Training

# ------------------------------------------------------------------------------------------ MLP


def mlp(setup: Setup) -> Training:
    batch, features, classes = setup.pick(8, 256), setup.pick(16, 784), 10
    width = setup.pick(32, 1024)
    model = setup.place(
        nn.Sequential(
            nn.Linear(features, width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(width, classes),
        )
    )
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    largest = torch.zeros((), device=setup.device)

    def note_largest(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        torch.maximum(largest, parameter.grad.abs().max(), out=largest)

    model[3].weight.register_post_accumulate_grad_hook(note_largest)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        x, target = setup.normal(batch, features), setup.integers(classes, batch)
        optimiser.zero_grad()
        outputs = compiled(x)
        loss = F.cross_entropy(outputs, target)
        loss.backward()
        optimiser.step()
        return [loss.detach(), outputs.detach(), largest.clone()]

    return Training([model], [optimiser], step)


# ------------------------------------------------------------------------------------ ResNet-18


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            for number in range(2):
                stride = 2 if stage and not number else 1
                blocks.append(BasicBlock(channels, width << stage, stride))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        out: torch.Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


def resnet18(setup: Setup) -> Training:
    batch, side, classes = setup.pick(4, 32), setup.pick(32, 96), setup.pick(10, 100)
    model = setup.place(ResNet18(setup.pick(8, 64), classes))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=50)
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        images, target = setup.normal(batch, 3, side, side), setup.integers(classes, batch)
        optimiser.zero_grad()
        outputs = compiled(images)
        loss = F.cross_entropy(outputs, target, label_smoothing=0.1)
        loss.backward()
        optimiser.step()
        schedule.step()
        return [loss.detach(), outputs.detach()]

    return Training([model], [optimiser], step)


# ------------------------------------------------------------------------------------------ ViT


class EncoderLayer(nn.Module):
    """Attention and MLP, each behind a norm of its own."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(nn.Module):
    def __init__(
        self, side: int, patch: int, width: int, layers: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads, 0.1) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        out: torch.Tensor = self.head(self.norm(self.layers(self.dropout(x)))[:, 0])
        return out


def vit(setup: Setup) -> Training:
    batch, side, classes = setup.pick(2, 32), setup.pick(16, 96), setup.pick(10, 100)
    width, layers, heads = setup.pick((32, 2, 4), (384, 6, 6))
    model = setup.place(ViT(side, setup.pick(4, 8), width, layers, heads, classes))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(step / 50))
    )
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        images, target = setup.normal(batch, 3, side, side), setup.integers(classes, batch)
        optimiser.zero_grad(set_to_none=False)
        outputs = compiled(images)
        loss = F.cross_entropy(outputs, target)
        loss.backward()
        optimiser.step()
        schedule.step()
        return [loss.detach(), outputs.detach()]

    return Training([model], [optimiser], step)


# ---------------------------------------------------------------------------------------- U-Net


def unet(setup: Setup) -> Training:
    """fp16 on a GPU and bf16 on a CPU. The scale is part of what is compared: GradScaler skips
    steps by what it finds in the gradients."""
    batch, side, classes = setup.pick(2, 8), setup.pick(16, 128), 3
    model = setup.place(UNet(setup.pick(4, 32), setup.pick(2, 4), classes))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    kind = torch.device(setup.device).type
    scaler = torch.amp.GradScaler(kind, growth_interval=8)
    dtype = torch.float16 if kind == "cuda" else torch.bfloat16
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        images, target = (
            setup.normal(batch, 3, side, side),
            setup.integers(classes, batch, side, side),
        )
        optimiser.zero_grad()
        with torch.autocast(kind, dtype=dtype):
            loss = F.cross_entropy(compiled(images), target)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        return [loss.detach(), loss.new_tensor(scaler.get_scale())]

    return Training([model], [optimiser], step)
