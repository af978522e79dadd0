"""Iterate over a loader epoch by epoch, from the data position at which an earlier lease stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Generic, Protocol, TypeVar, runtime_checkable

from gavelpy.errors import InvalidInput
from gavelpy.runtime.iterator.checkpoints import DataPosition

Item = TypeVar("Item", covariant=True)


@runtime_checkable
class Resumable(Protocol):
    """A loader that can start within an epoch without producing the earlier items."""

    def resume_at(self, epoch: int, position: int) -> None:
        """Makes the next iteration start in this epoch, after `position` items."""
        ...


class EpochCursor(Generic[Item]):
    """The items of a loader from a data position on. `position` counts the items used in this epoch; the caller adds.

    Calls `set_epoch` of the loader and of its sampler, if they have one. Items of a loader that is not Resumable are
    skipped one by one.
    """

    def __init__(self, loader: Iterable[Item], epochs: int, start: DataPosition) -> None:
        self._loader = loader
        self._epochs = epochs
        passed, position = _split(loader, start.position)
        self.epoch = start.epoch + passed
        self.position = position
        self._items = self._start_epoch() if start.steps and self.epoch < epochs else None

    def __iter__(self) -> Iterator[Item]:
        while self.epoch < self._epochs:
            items = self._items or self._start_epoch()
            before = self.position
            yield from items
            self._items = None
            if self.position == 0 and before == 0:
                raise InvalidInput("loader must yield items each time it is iterated over, but it is empty")
            self.epoch += 1
            self.position = 0

    def _start_epoch(self) -> Iterator[Item]:
        for part in (self._loader, getattr(self._loader, "sampler", None)):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(self.epoch)
        if isinstance(self._loader, Resumable):
            self._loader.resume_at(self.epoch, self.position)
            return iter(self._loader)
        items = iter(self._loader)
        skipped = sum(1 for _ in islice(items, self.position))
        if skipped < self.position:
            raise InvalidInput(
                f"loader must yield at least {self.position} items to resume at this position, got {skipped}"
            )
        return items


def _split(loader: object, position: int) -> tuple[int, int]:
    """Complete epochs and the rest, for checkpoints that record steps only."""
    length = len(loader) if isinstance(loader, Sized) else 0
    return divmod(position, length) if 0 < length < position else (0, position)
