"""Batches of a data set in memory: shuffled in each epoch, the same for every rank and after every restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class Shuffled:
    """One epoch per iteration, starting at the position set by `resume_at`.

    The order of an epoch depends on the seed and the epoch only, so there is nothing to save. Each rank takes its own
    part of every `ranks * batch_size` rows; a remainder that fills no such batch is dropped.
    """

    def __init__(self, data: Sequence[Tensor], batch_size: int, seed: int, rank: int = 0, ranks: int = 1) -> None:
        self.data = data
        self.batch_size, self.seed, self.rank, self.ranks = batch_size, seed, rank, ranks
        self.epoch = self.position = 0
        if len(self) == 0:
            raise ValueError(f"batch_size must be in [1, {len(data[0]) // ranks}], got {batch_size}")

    def __len__(self) -> int:
        return len(self.data[0]) // (self.ranks * self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(len(self.data[0]), generator=torch.Generator().manual_seed(self.seed + self.epoch))
        for batch in range(self.position, len(self)):
            begin = (batch * self.ranks + self.rank) * self.batch_size
            rows = order[begin : begin + self.batch_size]
            yield tuple(part[rows] for part in self.data)

    def resume_at(self, epoch: int, position: int) -> None:
        """Starts the next iteration in this epoch and skips this many batches; called by LeaseIterator."""
        self.epoch, self.position = epoch, position


class Turns:
    """Endless empty batches, for jobs that generate their own data."""

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            yield ()

    def resume_at(self, epoch: int, position: int) -> None:
        """Does nothing: all positions are equal."""
