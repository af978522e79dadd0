"""LeaseIterator: iterates over a loader under leases, from the data position of the last checkpoint on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, Literal, TypeVar

from gavelpy.errors import InvalidInput
from gavelpy.runtime.iterator.barrier import NEVER
from gavelpy.runtime.iterator.checkpoints import DataPosition, EpochCursor, length_of
from gavelpy.runtime.iterator.lease_loop import LeaseLoop, Save
from gavelpy.runtime.iterator.metrics import report_metric

Item = TypeVar("Item")


class LeaseIterator(LeaseLoop, Generic[Item]):
    """Iterates over a loader while the job has a lease; a step is one item.

        batches = LeaseIterator(loader, save, load=load, epochs=10)
        for batch in batches:
            train(batch)
        if batches.finished:
            publish(model)

    `save(directory)` writes a checkpoint into an empty directory. `load(directory)` is called by the constructor if
    there is a checkpoint to resume from; the loader resumes at the data position of the checkpoint. The loop ends after
    `epochs` (default 1 without `steps_total`), at `steps_total` (default: that of the job), or when the lease ends;
    `finished` is true unless the lease ended it. In a loop of another form, call `step_done()` after each step until
    `should_stop()`.

    In a gang, create one on every rank. By default the first rank saves, as models are the same on all ranks; with
    `save_on="all"` each rank calls `save` with the same directory at the same step.

    A job with several sizes may resume on another number of ranks: the position of a loader that counts samples
    (`gavelpy.torch.ResumableLoader`) holds there, that of another one is refused.

    Outside a lease it is an ordinary loop, which saves into `checkpoint_directory`, if given, and resumes from there.
    """

    def __init__(
        self,
        loader: Iterable[Item] = (),
        save: Save | None = None,
        *,
        load: Callable[[Path], object] | None = None,
        epochs: int | None = None,
        steps_total: int | None = None,
        save_on: Literal["first", "all"] = "first",
        checkpoint_directory: Path | str | None = None,
        checkpoint_every_s: float | None = None,
    ) -> None:
        if epochs is not None and epochs < 1:
            raise InvalidInput(f"epochs must be 1 or more, got {epochs!r}")
        self._loader = loader
        self._epochs = epochs
        self._is_by_epoch = False
        super().__init__(
            save,
            load=load,
            steps_total=steps_total,
            save_on=save_on,
            checkpoint_directory=checkpoint_directory,
            checkpoint_every_s=checkpoint_every_s,
        )

    @property
    def epoch(self) -> int:
        """The current pass over the loader, from 0."""
        return self._cursor.epoch

    @property
    def world(self) -> int:
        """Ranks of the job under this lease; another lease may have another number."""
        return self._context.world

    @property
    def plan(self) -> str:
        """What the job's owner gave for the number of GPUs of this lease (`gavel submit --plan`); empty = nothing."""
        return os.environ.get("GAVEL_PLAN", "")

    def __iter__(self) -> Iterator[Item]:
        if self.should_stop():
            return
        cursor = self._cursor
        for item in cursor.rest_of_epoch() if self._is_by_epoch else cursor:
            yield item
            cursor.position += 1
            if not self.should_stop():  # finish() may have been called
                self.step_done()
            if self.should_stop():
                if self._is_by_epoch and not self.finished:
                    raise SystemExit(0)
                return
        if not self._is_by_epoch:
            self.finish()

    def report_metric(self, name: str, value: float) -> None:
        """Reports a metric, such as the loss, at the step in progress: see `gavelpy.report_metric`.

        Of a gang, the first rank reports; calls of the others do nothing.
        """
        if self._context.rank == 0:
            report_metric(name, value, step=self.step)

    def each_epoch(self) -> Iterator[int]:
        """The epochs that are left, for two nested loops: in each of them, iterate over this object.

            for epoch in batches.each_epoch():
                for batch in batches:
                    train(batch)
                evaluate(model)

        If the lease ends, the process ends with code 0 after the checkpoint, within the inner loop: what follows it in
        the epoch runs once, after the last batch of the epoch.
        """
        self._is_by_epoch = True
        while self._cursor.has_epoch and not self.should_stop():
            yield self._cursor.epoch
        self.finish()

    def _start_at(self, start: DataPosition) -> None:
        epochs = self._epochs or (NEVER if self._total else 1)
        self._cursor = EpochCursor(self._loader, epochs, start, self.world)
        left = self._cursor.items_left() if epochs != NEVER else 0
        own = self._steps + left if length_of(self._loader) and epochs != NEVER else 0
        self._in_all = min(filter(None, (self._total, own)), default=0)

    def _position(self) -> DataPosition:
        cursor = self._cursor
        return DataPosition(self._steps, cursor.epoch, cursor.position, batch=cursor.batch, samples=cursor.samples)
