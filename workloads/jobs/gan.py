"""Generative adversarial network: a DCGAN learns to draw synthetic blobs.

An image is one soft disc near the middle, brighter than its background. Generator and discriminator are those of
Radford et al. (2016). A loss means little here, as each side's falls when the other's rises; `distance` measures the
difference between generated and real images: of their means and deviations, pixel by pixel.

    python gan.py --steps 500
    python gan.py --steps 20000 --full --device cuda     # 64 x 64 pixels, 64 channels, batches of 128
"""

from __future__ import annotations

import sys

import torch
from choices import Sizes
from torch import Tensor, nn
from torch.nn import functional
from training import Batch, Training, main

SMALL = Sizes(batch_size=16, width=8, image_size=16, latent=16, images=2048)
FULL = Sizes(batch_size=128, width=64, image_size=64, latent=100, images=8192)


def blobs(images: int, image_size: int, seed: int) -> Tensor:
    """Images (N, 1, size, size) in [-1, 1]."""
    draw = torch.Generator().manual_seed(seed)
    centre = 0.5 + 0.1 * torch.randn(images, 2, 1, 1, generator=draw)
    radius = 0.15 + 0.1 * torch.rand(images, 1, 1, generator=draw)
    place = torch.linspace(0, 1, image_size)
    distance = torch.hypot(place - centre[:, 0], place[:, None] - centre[:, 1])
    return torch.tanh(8 * (radius - distance) / radius)[:, None]


def generator(width: int, image_size: int, latent: int) -> nn.Sequential:
    """Noise (N, latent, 1, 1) to images; every layer doubles the side, from 4 on."""
    channels = width * image_size // 8
    layers: list[nn.Module] = [nn.ConvTranspose2d(latent, channels, 4, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    side = 4
    while side < image_size // 2:
        layers += [
            nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(channels // 2),
            nn.ReLU(),
        ]
        channels, side = channels // 2, side * 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 1, 4, 2, 1), nn.Tanh())


def discriminator(width: int, image_size: int) -> nn.Sequential:
    """Images to one score each, (N,): large = real. Every layer halves the side, down to 4."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    channels, side = width, image_size // 2
    while side > 4:
        layers += [
            nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False),
            nn.GroupNorm(1, 2 * channels),  # a batch has real and generated images: each is normalised alone
            nn.LeakyReLU(0.2),
        ]
        channels, side = 2 * channels, side // 2
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4), nn.Flatten(0))


class Gan(Training):
    """Adam for both sides, in turn; the generator uses the non-saturating loss."""

    job_type = "DCGAN"
    small, full = SMALL, FULL

    def build(self) -> None:
        sizes = self.sizes
        size = sizes["image_size"]
        self.generator = self.network("generator", generator(sizes["width"], size, sizes["latent"]))
        self.discriminator = self.network("discriminator", discriminator(sizes["width"], size))
        self.of_generator = self.kept("of_generator", torch.optim.Adam(self.generator.parameters(), 1e-3, (0.5, 0.999)))
        self.of_discriminator = self.kept(
            "of_discriminator", torch.optim.Adam(self.discriminator.parameters(), 1e-3, (0.5, 0.999))
        )
        self.batches = self.shuffled(blobs(sizes["images"], size, self.choices.seed))

    def step(self, batch: Batch) -> Tensor:
        (real,) = batch
        generated = self.generator(self.noise(len(real)))

        scores = self.discriminator(torch.cat([real, generated.detach()]))
        is_real = (torch.arange(len(scores), device=scores.device) < len(real)).float()
        self.of_discriminator.zero_grad()
        functional.binary_cross_entropy_with_logits(scores, is_real).backward()
        self.of_discriminator.step()

        judge = self.networks["discriminator"].requires_grad_(False)  # the generator's turn: the other side stays fixed
        loss = functional.softplus(-judge(generated)).mean()
        self.of_generator.zero_grad()
        loss.backward()
        self.of_generator.step()
        judge.requires_grad_(True)
        return loss.detach()

    def noise(self, images: int) -> Tensor:
        return torch.randn(images, self.sizes["latent"], 1, 1, device=self.device)

    def figures(self) -> dict[str, float]:
        """Distance between generated and real images: of means and of deviations, root mean square over pixels."""
        real = blobs(256, self.sizes["image_size"], 1_000_003).to(self.device)
        generated = self.generator(self.noise(256))
        means, deviations = (f(generated, 0) - f(real, 0) for f in (torch.mean, torch.std))
        return {"distance": (means.square().mean() + deviations.square().mean()).sqrt().item()}


if __name__ == "__main__":
    sys.exit(main(Gan))
