"""Training on any number of GPUs that divides the batch: the job grows and shrinks, its steps stay the same.

    gavel submit --gpus 1,2,4 -- python examples/frameworks/elastic_training.py

Each lease may have another number of ranks. A step always trains on BATCH samples, those that it would have had on any
other number of ranks; each rank takes its part. Losses differ by rounding and by the dropout of each rank only, and a
run with the same numbers of ranks at the same steps has the same bits.

Without gavel: `torchrun --nproc-per-node 4 elastic_training.py --checkpoints DIRECTORY --steps 100`, then again with
another number of processes and of steps.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import distributed, nn
from torch.utils.data import TensorDataset

from gavelpy import LeaseIterator
from gavelpy.torch import Ranks, ResumableLoader, TrainingState, process_group

EPOCHS, ITEMS, CLASSES = 12, 1536, 10
BATCH = 48  # over all ranks: 1, 2, 3, 4, 6, 8, 12, 16, 24 or 48 ranks
MOST_AT_ONCE = 24  # samples that one GPU has memory for


def main(options: argparse.Namespace) -> None:
    """Trains to the end, or until the lease ends."""
    torch.set_num_threads(1)
    with process_group() as ranks:
        torch.manual_seed(options.seed + ranks.rank)  # weights are those of the first rank
        layers = [nn.Linear(16, 64), nn.ReLU(), nn.Dropout(options.dropout), nn.Linear(64, CLASSES)]
        model = ranks.wrap(nn.Sequential(*layers))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
        state = TrainingState(model=model, optimizer=optimizer)
        loader = ResumableLoader(
            items(), ranks.batch_per_rank(BATCH), seed=options.seed, rank=ranks.rank, world=ranks.world
        )
        batches = LeaseIterator(
            loader,
            state.save,
            load=state.load,
            epochs=EPOCHS,
            steps_total=options.steps,
            save_on="all",
            checkpoint_directory=options.checkpoints,
        )
        for inputs, kinds in batches:
            time.sleep(options.pause / ranks.world)
            loss = step(model, optimizer, inputs.to(ranks.device), kinds.to(ranks.device))
            loss = mean_of_ranks(loss, ranks)
            if ranks.rank == 0:
                print(f"step {batches.step} ranks {batches.world} loss {loss.item():.9g}", flush=True)
        if batches.finished and ranks.rank == 0:
            print("complete", flush=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    """One step on this rank's part of the batch, in pieces that fit the memory; returns its mean loss."""
    optimizer.zero_grad()
    total = torch.zeros((), device=inputs.device)
    for some, of in zip(inputs.split(MOST_AT_ONCE), kinds.split(MOST_AT_ONCE), strict=True):
        loss = nn.functional.cross_entropy(model(some), of) * len(some) / len(inputs)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def mean_of_ranks(loss: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The loss of the whole batch."""
    if ranks.world > 1:
        distributed.all_reduce(loss)
    return loss / ranks.world


def items() -> TensorDataset:
    """Points around the centre of their class."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(CLASSES, 16, generator=generator)
    kinds = torch.randint(CLASSES, (ITEMS,), generator=generator)
    return TensorDataset(centres[kinds] + 1.2 * torch.randn(ITEMS, 16, generator=generator), kinds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on any number of GPUs that divides the batch.")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per step on one rank, as of a larger model")
    parser.add_argument("--steps", type=int, help="last step (default: that of the job, or all epochs)")
    parser.add_argument("--checkpoints", help="directory for checkpoints, without gavel")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
