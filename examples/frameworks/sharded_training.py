"""A model sharded over its ranks (FSDP) under leases: all ranks save one checkpoint with torch.distributed.checkpoint.

    gavel submit --steps 60 --gpus 2 -- python examples/frameworks/sharded_training.py
    gavel submit --steps 60 --gpus 2 --one-process-per-node -- torchrun examples/frameworks/sharded_training.py

A checkpoint is complete when all ranks have written their shards. It can be loaded by another number of ranks: with
`--gpus 2,1,4`, each lease may have one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from gavelpy import LeaseIterator
from gavelpy.torch import ResumableLoader, load_random_state, process_group, save_random_state

EPOCHS, ITEMS, BATCH = 3, 160, 8  # of all ranks


def main(pause_s: float) -> None:
    """Trains to the end, or until the lease ends."""
    with process_group() as ranks:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1)).to(ranks.device)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        inputs = torch.randn(ITEMS, 4, generator=torch.Generator().manual_seed(1))
        items = TensorDataset(inputs, inputs.sum(1, keepdim=True))
        loader = ResumableLoader(items, ranks.batch_per_rank(BATCH), seed=5, rank=ranks.rank, world=ranks.world)

        def save(directory: Path) -> None:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=directory)
            save_random_state(directory)

        def load(directory: Path) -> None:
            weights, moments = get_state_dict(model, optimizer)
            dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=directory)
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
            load_random_state(directory)

        batches = LeaseIterator(loader, save, load=load, epochs=EPOCHS, save_on="all")
        for batch in batches:
            time.sleep(pause_s)
            values, targets = (tensor.to(ranks.device) for tensor in batch)
            loss = nn.functional.mse_loss(model(values), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if ranks.rank == 0:
                print(f"step {batches.step} loss {loss.item():.9f}", flush=True)
        if batches.finished and ranks.rank == 0:
            print("complete", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)
