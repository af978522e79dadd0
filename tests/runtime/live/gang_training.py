"""One rank of a gang that really trains: gloo, averaged gradients, every rank at the same step.

`python gang_training.py DIRECTORY PAUSE_S` writes the lines of a witness, and at the end the sum of its weights. Once
the file DIRECTORY/hurry exists, it no longer pauses.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gavelpy import LeaseIterator
from gavelpy.torch import Ranks, ResumableLoader, TrainingState, process_group
from tests.runtime.live.witness import HURRY, Evidence

ITEMS, BATCH = 64, 4


def train(ranks: Ranks, directory: Path, pause_s: float) -> None:
    """Trains until the lease or the work is over."""
    torch.manual_seed(1 + ranks.rank)  # the ranks differ until gradients are averaged and rank 0's model is sent
    model = ranks.wrap(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = TrainingState(model=model, optimizer=optimizer)
    loader = ResumableLoader(items(), BATCH, rank=ranks.rank, world=ranks.world)
    steps = LeaseIterator(loader, state.save, load=state.load, save_on="all", epochs=10_000)
    evidence = Evidence(directory)
    evidence.write("began", steps.steps_done)
    for inputs, targets in steps:
        time.sleep(0.0 if (directory / HURRY).exists() else pause_s)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        evidence.ran(steps.steps_done)
    evidence.write("finished" if steps.finished else "stopped", steps.steps_done)
    weights = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    (directory / f"weights-{ranks.rank}-{steps.steps_done}").write_text(f"{weights!r}")


def items() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(ITEMS, 4, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group("gloo", on_cpu=True) as joined:
        train(joined, Path(sys.argv[1]), float(sys.argv[2]))
