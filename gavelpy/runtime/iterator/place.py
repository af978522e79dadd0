"""Walking over a loader epoch by epoch, from the place where an earlier lease stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Generic, Protocol, TypeVar, runtime_checkable

from gavelpy.errors import InvalidInput
from gavelpy.runtime.iterator.checkpoints import Place

Item = TypeVar("Item", covariant=True)


@runtime_checkable
class Resumable(Protocol):
    """A loader that can begin in the middle of an epoch without producing what comes before."""

    def resume_at(self, epoch: int, position: int) -> None:
        """The next iteration is of this epoch, and begins after so many items."""
        ...


class EpochWalk(Generic[Item]):
    """Items of the loader from a place on. `position` counts those of this epoch that are used; its user raises it.

    A loader, or its sampler, that has `set_epoch` is told each epoch. One that cannot resume has its items skipped.
    """

    def __init__(self, loader: Iterable[Item], epochs: int, start: Place) -> None:
        self._loader = loader
        self._epochs = epochs
        passed, position = _split(loader, start.position)
        self.epoch = start.epoch + passed
        self.position = position
        self._items = self._begun() if start.steps and self.epoch < epochs else None

    def __iter__(self) -> Iterator[Item]:
        while self.epoch < self._epochs:
            items = self._items or self._begun()
            before = self.position
            yield from items
            self._items = None
            if self.position == 0 and before == 0:
                raise InvalidInput("loader must yield items each time it is iterated over, but it is empty")
            self.epoch += 1
            self.position = 0

    def _begun(self) -> Iterator[Item]:
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
                f"loader must yield at least {self.position} items to go on where it stopped, got {skipped}"
            )
        return items


def _split(loader: object, position: int) -> tuple[int, int]:
    """Whole epochs in a count of items and the rest, for checkpoints that tell only how many steps they have."""
    length = len(loader) if isinstance(loader, Sized) else 0
    return divmod(position, length) if 0 < length < position else (0, position)
