"""Networks of the training benchmark that no library brings, written from their publications."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def _dcgan_weights(module: nn.Module) -> None:
    """Normal with a deviation of 0.02, as the paper has it."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


class Generator(nn.Module):
    """DCGAN's (Radford et al., 2015): a vector of noise to an image of 64 x 64."""

    def __init__(self, noise: int = 100, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = (noise, 8 * width, 4 * width, 2 * width, width)
        for number, (inputs, outputs) in enumerate(pairwise(widths)):
            stride, padding = (1, 0) if number == 0 else (2, 1)
            layers += [
                nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(True),
            ]
        layers += [nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.apply(_dcgan_weights)

    def forward(self, noise: Any) -> Any:
        return self.layers(noise)


class Discriminator(nn.Module):
    """DCGAN's: an image of 64 x 64 to the probability that it is real."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False)]
        layers.append(nn.LeakyReLU(0.2, inplace=True))
        for inputs, outputs in pairwise((width, 2 * width, 4 * width, 8 * width)):
            layers += [
                nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.LeakyReLU(0.2, inplace=True),
            ]
        layers += [nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)
        self.apply(_dcgan_weights)

    def forward(self, image: Any) -> Any:
        return self.layers(image).view(-1)


class DCGAN(nn.Module):
    """The step of the discriminator, which is what TorchBench's dcgan compiles: its loss on a batch
    of real images and on one of the generator's. The generator runs in train mode as well, so its
    normalisation statistics move; its weights are not trained."""

    def __init__(self, noise: int = 100, width: int = 64) -> None:
        super().__init__()
        self.generator = Generator(noise, width).requires_grad_(False)
        self.discriminator = Discriminator(width)

    def forward(self, real: Any, noise: Any) -> Any:
        with torch.no_grad():
            fake = self.generator(noise)
        on_real, on_fake = self.discriminator(real), self.discriminator(fake)
        return F.binary_cross_entropy(on_real, torch.ones_like(on_real)) + F.binary_cross_entropy(
            on_fake, torch.zeros_like(on_fake)
        )


class DeepRecommender(nn.Module):
    """The autoencoder of ratings by Kuchaiev and Ginsburg (2017): SELU throughout, dropout on the
    code, and the squared error on what was rated."""

    def __init__(self, items: int, hidden: Sequence[int] = (512, 512, 1024), dropout: float = 0.8):
        super().__init__()
        widths = (items, *hidden)
        self.encoder = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.decoder = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths[::-1]))
        self.dropout = nn.Dropout(dropout)
        for linear in (*self.encoder, *self.decoder):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, ratings: Any) -> Any:
        x = ratings
        for layer in self.encoder:
            x = F.selu(layer(x))
        x = self.dropout(x)
        for layer in self.decoder:
            x = F.selu(layer(x))
        rated = ratings != 0
        return ((x * rated - ratings) ** 2).sum() / rated.sum()


class TinyConvNet(nn.Module):
    """Stands for ResNet-50 where everything is tiny: convolutions, normalisation, a shortcut."""

    def __init__(self, width: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.conv(x))
        return self.head(x.mean((2, 3)))
