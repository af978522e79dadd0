"""Recommender: an autoencoder learns people's preferences from their choices.

People and items have tastes in a few dimensions; people choose items near their own taste. The network gets
a part of the choices of a person and predicts all of them (a denoising autoencoder with a multinomial likelihood:
Liang et al., 2018).

    python recommender.py --steps 500
    python recommender.py --steps 20000 --full --device cuda     # 20,000 things, 600-200-600, batches of 512 people
"""

from __future__ import annotations

import sys

import torch
from choices import Sizes
from torch import Tensor, nn
from torch.nn import functional
from training import Batch, Training, main

TASTES = 8
SMALL = Sizes(batch_size=32, width=48, things=512, choices=24, people=2048)
FULL = Sizes(batch_size=512, width=200, things=20_000, choices=100, people=8192)


def choices_of(people: int, things: int, choices: int, seed: int) -> Tensor:
    """The choices of each person, (people, choices) different items; the items are the same for every seed."""
    nature = torch.randn(things, TASTES, generator=torch.Generator().manual_seed(0))

    draw = torch.Generator().manual_seed(seed)
    chosen: list[Tensor] = []
    for start in range(0, people, 1024):  # in parts: scores for all people and items at once need much memory
        taste = torch.randn(min(1024, people - start), TASTES, generator=draw)
        liking = taste @ nature.T
        whim = -torch.log(torch.empty_like(liking).exponential_(generator=draw))  # Gumbel: draws without replacement
        chosen.append((1.5 * liking + whim).topk(choices).indices)
    return torch.cat(chosen)


class Autoencoder(nn.Module):
    """Maps choices to tastes and back; during training a part of the choices is hidden."""

    def __init__(self, things: int, width: int) -> None:
        super().__init__()
        self.hide = nn.Dropout(0.5)
        self.encoder = nn.Sequential(nn.Linear(things, 3 * width), nn.Tanh(), nn.Linear(3 * width, width), nn.Tanh())
        self.decoder = nn.Sequential(nn.Linear(width, 3 * width), nn.Tanh(), nn.Linear(3 * width, things))

    def forward(self, chosen: Tensor) -> Tensor:
        scores: Tensor = self.decoder(self.encoder(self.hide(functional.normalize(chosen))))
        return scores


class Recommender(Training):
    """Adam on the negative log-likelihood of a person's choices."""

    job_type = "Autoencoder"
    small, full = SMALL, FULL

    def build(self) -> None:
        sizes = self.sizes
        self.model = self.network("model", Autoencoder(sizes["things"], sizes["width"]))
        self.optimizer = self.kept("optimizer", torch.optim.Adam(self.model.parameters(), lr=1e-3))
        chosen = choices_of(sizes["people"], sizes["things"], sizes["choices"], self.choices.seed)
        self.batches = self.shuffled(chosen)

    def step(self, batch: Batch) -> Tensor:
        (chosen,) = batch
        loss = self.loss_of(chosen)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def loss_of(self, chosen: Tensor) -> Tensor:
        """Negative log-likelihood in nats per choice."""
        marked = torch.zeros(len(chosen), self.sizes["things"], device=chosen.device).scatter(1, chosen, 1.0)
        likely = functional.log_softmax(self.model(marked), dim=1)
        return -likely.gather(1, chosen).mean()

    def figures(self) -> dict[str, float]:
        """Recall: half of each unseen person's choices are hidden; the fraction found among as many suggestions."""
        sizes = self.sizes
        half = sizes["choices"] // 2
        chosen = choices_of(256, sizes["things"], sizes["choices"], 1_000_003).to(self.device)
        known, hidden = chosen[:, :half], chosen[:, half : 2 * half]
        marked = torch.zeros(len(chosen), sizes["things"], device=self.device).scatter(1, known, 1.0)
        suggested = self.model(marked).masked_fill(marked > 0, -torch.inf).topk(half).indices
        return {"recall": (suggested[:, :, None] == hidden[:, None, :]).any(2).double().mean().item()}


if __name__ == "__main__":
    sys.exit(main(Recommender))
