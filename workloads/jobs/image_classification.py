"""Image classification: a ResNet-18 learns to classify generated textures.

A class is a grating: waves of one direction, one frequency and two colours. Every image of it has its own phase,
strength and noise, so the network must generalise.

    python image_classification.py --steps 200
    python image_classification.py --steps 20000 --full --device cuda     # 64 channels, 32 x 32 pixels, batches of 128
"""

from __future__ import annotations

import math
import sys

import torch
from choices import Sizes
from torch import Tensor, nn
from torch.nn import functional
from training import Batch, Training, main

CLASSES = 10
NOISE = 0.5
SMALL = Sizes(batch_size=16, width=8, image_size=16, images=2048)
FULL = Sizes(batch_size=128, width=64, image_size=32, images=8192)


def textures(images: int, image_size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, size, size) about 0 and their classes (N,); the classes look the same for every seed."""
    looks = torch.Generator().manual_seed(0)
    angle = math.pi * torch.arange(CLASSES) / CLASSES
    cycles = 1.5 + 2.5 * torch.rand(CLASSES, generator=looks)
    colour = torch.randn(CLASSES, 3, 1, 1, generator=looks)

    draw = torch.Generator().manual_seed(seed)
    kind = torch.randint(CLASSES, (images,), generator=draw)
    phase = 2 * math.pi * torch.rand(images, 1, 1, generator=draw)
    strength = 0.5 + torch.rand(images, 1, 1, 1, generator=draw)
    place = torch.linspace(0, 1, image_size)
    along = torch.cos(angle)[:, None, None] * place + torch.sin(angle)[:, None, None] * place[:, None]
    waves = torch.sin(2 * math.pi * cycles[kind][:, None, None] * along[kind] + phase)
    noise = torch.randn(images, 3, image_size, image_size, generator=draw)
    return strength * colour[kind] * waves[:, None] + NOISE * noise, kind


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.through = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        alike = stride == 1 and inputs == outputs
        self.around = (
            nn.Identity()
            if alike
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.through(images) + self.around(images))


def resnet18(width: int) -> nn.Sequential:
    """The network of He et al. (2016) in its form for small images: no pooling after the first convolution."""
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks: list[nn.Module] = []
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        blocks += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class ImageClassification(Training):
    """Stochastic gradient descent with momentum on the cross-entropy."""

    job_type = "ResNet-18"
    small, full = SMALL, FULL

    def build(self) -> None:
        sizes = self.sizes
        self.model = self.network("model", resnet18(sizes["width"]))
        self.optimizer = self.kept(
            "optimizer", torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        )
        self.batches = self.shuffled(*textures(sizes["images"], sizes["image_size"], self.choices.seed))

    def step(self, batch: Batch) -> Tensor:
        images, kind = batch
        loss = functional.cross_entropy(self.model(images), kind)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def figures(self) -> dict[str, float]:
        """Accuracy on unseen images."""
        images, kind = (t.to(self.device) for t in textures(256, self.sizes["image_size"], 1_000_003))
        return {"accuracy": (self.model(images).argmax(1) == kind).double().mean().item()}


if __name__ == "__main__":
    sys.exit(main(ImageClassification))
