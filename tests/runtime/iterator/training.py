"""A small training job with everything that makes resuming hard: dropout, shuffling, moments, a schedule."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gavelpy import LeaseIterator
from gavelpy.torch import Ranks, ResumableLoader, TrainingState

ALONE = Ranks(0, 0, 1, torch.device("cpu"))
EPOCHS = 3
ITEMS = 40
BATCH = 4


def train(
    ranks: Ranks = ALONE, save_on: Literal["first", "all"] = "first", **options: Any
) -> tuple[list[float], LeaseIterator[Any]]:
    """The loss of each step of this run, and the iterator at its end."""
    torch.manual_seed(5 + ranks.rank)
    model = ranks.wrap(_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)
    state = TrainingState(model=model, optimizer=optimizer, schedule=schedule)
    loader = ResumableLoader(_items(), BATCH, seed=11, rank=ranks.rank, world=ranks.world, **options)
    losses = []
    batches = LeaseIterator(loader, state.save, load=state.load, epochs=EPOCHS, save_on=save_on)
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, batches


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))


def _items() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(ITEMS, 6, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
