"""A minimal training job: a counter and its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gavelpy import LeaseIterator


class Count:
    """Counts steps and records its items."""

    def __init__(self, save_s: float = 0.0) -> None:
        self.value = 0
        self.seen: list[int] = []
        self.saves: list[str] = []
        self._save_s = save_s

    def save(self, directory: Path) -> None:
        """Writes the count."""
        time.sleep(self._save_s)
        (directory / "count").write_text(str(self.value))
        self.saves.append(directory.name)

    def load(self, directory: Path) -> None:
        """Reads the count."""
        self.value = int((directory / "count").read_text())

    def step(self, item: int) -> None:
        """One step."""
        self.value += 1
        self.seen.append(item)

    def run(self, batches: LeaseIterator[int], step_s: float = 0.0) -> LeaseIterator[int]:
        """The loop of every training script."""
        for item in batches:
            self.step(item)
            time.sleep(step_s)
        return batches


class OneShot:
    """Items with `set_epoch`."""

    def __init__(self, items: Iterable[int]) -> None:
        self._items = list(items)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        """Has the signature of torch's samplers."""
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)


class Seekable:
    """Items that can start within an epoch."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._position = 0
        self.produced = 0

    def resume_at(self, epoch: int, position: int) -> None:
        """Starts the next epoch at this position."""
        self._position = position

    def __iter__(self) -> Iterator[int]:
        for item in range(self._position, self._length):
            self.produced += 1
            yield item
