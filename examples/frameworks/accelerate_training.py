"""Accelerate under leases: LeaseIterator calls `save_state` and `load_state`, and preemptions cost no step.

    gavel submit --steps 60 -- python examples/frameworks/accelerate_training.py

On several GPUs, one process for each: `--gpus 2`. Do not pass the loader to `prepare`: ResumableLoader splits the items
among the ranks itself and knows its position.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import TensorDataset

from gavelpy import LeaseIterator
from gavelpy.torch import ResumableLoader

EPOCHS, ITEMS, BATCH = 3, 80, 4


def main(pause_s: float) -> None:
    """Trains to the end, or until the lease ends."""
    torch.manual_seed(3)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # on CPUs it needs this to use several ranks
    network = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=0.01))
    inputs = torch.randn(ITEMS, 4, generator=torch.Generator().manual_seed(1))
    items = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = ResumableLoader(items, BATCH, seed=5, rank=accelerator.process_index, world=accelerator.num_processes)

    def save(directory: Path) -> None:
        accelerator.save_state(str(directory))  # models, optimizers and the random state of each rank

    def load(directory: Path) -> None:
        accelerator.load_state(str(directory))

    batches = LeaseIterator(loader, save, load=load, epochs=EPOCHS, save_on="all")
    for batch in batches:
        time.sleep(pause_s)
        values, targets = (tensor.to(accelerator.device) for tensor in batch)
        loss = nn.functional.mse_loss(model(values), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.print(f"step {batches.step} loss {loss.item():.9f}", flush=True)
    if batches.finished:
        accelerator.print("complete", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)
