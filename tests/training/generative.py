"""Models that make images: two that train against each other, and one that draws noise inside."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from training.workload import Setup, Training


def _initialise(module: nn.Module) -> None:
    """As the DCGAN paper has it (Radford et al., 2016)."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def _generator(noise: int, width: int, levels: int) -> nn.Module:
    """From 1x1 to 4x4, then twice the side per level."""
    channels = width << (levels - 1)
    layers: list[nn.Module] = [nn.ConvTranspose2d(noise, channels, 4, 1, 0, bias=False)]
    for _ in range(levels - 1):
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False))
        channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    layers += [nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*layers).apply(_initialise)


def _discriminator(width: int, levels: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]
    for level in range(1, levels):
        layers.append(nn.Conv2d(width << (level - 1), width << level, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(width << level), nn.LeakyReLU(0.2, inplace=True)]
    layers += [nn.Conv2d(width << (levels - 1), 1, 4, 1, 0, bias=False), nn.Flatten(0)]
    return nn.Sequential(*layers).apply(_initialise)


def dcgan(setup: Setup) -> Training:
    """The discriminator runs three times per step: on real images, on made ones without and on
    made ones with gradients for whoever made them."""
    batch, noise = setup.pick(2, 64), setup.pick(8, 100)
    width, levels = setup.pick(4, 64), setup.pick(2, 4)
    side = 4 << levels
    generator = setup.place(_generator(noise, width, levels))
    discriminator = setup.place(_discriminator(width, levels))
    for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    generate, judge = setup.compile(generator), setup.compile(discriminator)

    def against(judged: torch.Tensor, target: float) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(judged, torch.full_like(judged, target))

    def step(index: int) -> list[torch.Tensor]:
        real = setup.uniform(batch, 3, side, side) * 2 - 1
        made = generate(setup.normal(batch, noise, 1, 1))
        for_discriminator.zero_grad()
        on_real = against(judge(real), 1.0)
        on_made = against(judge(made.detach()), 0.0)
        (on_real + on_made).backward()
        for_discriminator.step()
        for_generator.zero_grad()
        fooled = against(judge(made), 1.0)
        fooled.backward()
        for_generator.step()
        return [each.detach() for each in (on_real, on_made, fooled, made)]

    return Training([generator, discriminator], [for_generator, for_discriminator], step)


# ------------------------------------------------------------------------------------------ VAE


class VAE(nn.Module):
    """Returns the reconstruction's loss and the divergence from the prior."""

    def __init__(self, pixels: int, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.SiLU())
        self.mean, self.log_variance = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, pixels))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        posterior = torch.distributions.Normal(
            mean, torch.exp(0.5 * log_variance), validate_args=False
        )
        logits = self.decoder(posterior.rsample())
        reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        return reconstruction / x.shape[0], divergence / x.shape[0]


def vae(setup: Setup) -> Training:
    batch, pixels = setup.pick(4, 128), setup.pick(36, 784)
    model = setup.place(VAE(pixels, setup.pick(16, 512), setup.pick(4, 20)))
    optimiser = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        optimiser.zero_grad()
        reconstruction, divergence = compiled(setup.uniform(batch, pixels))
        (reconstruction + divergence).backward()
        optimiser.step()
        return [reconstruction.detach(), divergence.detach()]

    return Training([model], [optimiser], step)
