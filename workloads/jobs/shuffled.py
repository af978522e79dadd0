"""Batches of a data set in memory: shuffled in each epoch, the same for every rank and after every restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class Shuffled:
    """One epoch each time it is iterated over, from the place that `resume_at` has set.

    The order of an epoch follows from the seed and the epoch alone, so there is nothing to save. Of every `ranks *
    batch_size` rows each rank takes its own part; a rest that fills no such batch is left out.
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
        """The next iteration is of this epoch and leaves out so many batches: for LeaseIterator."""
        self.epoch, self.position = epoch, position


class Turns:
    """Empty batches without an end, for jobs that make their own data."""

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            yield ()

    def resume_at(self, epoch: int, position: int) -> None:
        """Every place is alike."""
