"""Checkpoints that are complete or absent, and a loader that resumes at the data position of one.

    <directory>/step-000000001200/   what the caller's `save` has written, and gavel.json: the data position
    <directory>/.writing-...         incomplete; can be removed

A checkpoint is written under another name, synced to disk, then renamed. If all ranks write (`world` > 1), they write
into the same directory; each marks when it is done, and the first rank renames when all have.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

from gavelpy.errors import InvalidInput, LeaseExpired, RemoteViolation
from gavelpy.runtime.lease_files import (
    clock_s,
    lease_name,
    lease_of,
    leases_of,
    step_name,
    step_of,
    whole_checkpoints,
)
from gavelpy.runtime.whole_files import read_text_whole

POSITION_FILE: Final = "gavel.json"
POLL_S: Final = 0.01
_WRITING: Final = ".writing-"


@dataclass(frozen=True)
class DataPosition:
    """Where a loop was when it was saved."""

    steps: int = 0
    epoch: int = 0
    position: int = 0  # items of the epoch that have been used
    took_s: float = 0.0  # duration of the write
    ranks: int = 0  # of the job; 0 = not recorded
    batch: int = 0  # samples of an item, over all ranks; 0 = not known
    samples: int = 0  # of the epoch that have been used, over all ranks, if `batch` is known


def read_position(directory: Path) -> DataPosition:
    """The data position of a checkpoint; in the first epoch if only its name has the steps."""
    text = read_text_whole(directory / POSITION_FILE)
    steps = step_of(directory.name)
    if text is None:
        if steps is None:
            raise RemoteViolation(f"{directory} must be a checkpoint: its name must be step-<12 digits>")
        return DataPosition(steps=steps, position=steps)
    try:
        position = DataPosition(**json.loads(text))
        counts = (getattr(position, name) for name in ("steps", "epoch", "position", "ranks", "batch", "samples"))
        is_good = all(isinstance(value, int) and value >= 0 for value in counts) and math.isfinite(position.took_s)
    except (ValueError, TypeError) as error:
        raise RemoteViolation(f"{directory / POSITION_FILE} must contain a data position: {error}") from error
    if not is_good:
        raise RemoteViolation(f"{directory / POSITION_FILE} must contain a data position, got {text[:200]!r}")
    return position


class CheckpointWriter:
    """Writes the checkpoints of one run into its directory. With `world` > 1, all ranks write each of them together.

    `ranks`: the number of ranks that resume from one.
    """

    def __init__(self, directory: Path, rank: int = 0, world: int = 1, ranks: int = 1) -> None:
        self._directory = directory
        self._rank = rank
        self._world = world
        self._ranks = ranks
        self._loaded = [directory / f".rank-{number}-loaded" for number in range(ranks)] if ranks > 1 else []

    def write(self, position: DataPosition, save: Callable[[Path], object], deadline_s: float) -> float:
        """Writes a checkpoint and returns the seconds it took; raises LeaseExpired after the deadline (of `clock_s`).

        Does nothing if the checkpoint exists.
        """
        began_s = clock_s()
        final = self._directory / step_name(position.steps)
        if final.exists():
            return 0.0
        writing = self.writing_directory(position.steps)
        with _removed_on_failure(None if self._world > 1 else writing):
            save(writing)
            sync_tree(writing)
            if self._world > 1:
                self._wait_for_ranks(writing, final, deadline_s)
            if self._rank == 0:
                text = json.dumps(asdict(position) | {"took_s": clock_s() - began_s, "ranks": self._ranks})
                (writing / POSITION_FILE).write_text(text)
                sync_tree(writing)
                self._publish(writing, final, deadline_s)
            else:
                _wait(final.exists, deadline_s, f"checkpoint {final.name} was not completed by the first rank")
        return clock_s() - began_s

    def writing_directory(self, steps: int) -> Path:
        """The directory, made if necessary, of a checkpoint until it is complete."""
        own = "" if self._world > 1 else f"-{os.getpid()}"
        writing = self._directory / f"{_WRITING}{step_name(steps)}{own}"
        writing.mkdir(parents=True, exist_ok=True)
        return writing

    def prune(self, steps: float) -> None:
        """Removes complete checkpoints with fewer steps, each by one rename."""
        _prune(self._directory, steps)

    def mark_loaded(self) -> None:
        """Marks that this rank needs no earlier checkpoint. If the mark cannot be written, all are kept."""
        if self._loaded:
            with suppress(OSError):
                self._directory.mkdir(parents=True, exist_ok=True)
                self._loaded[self._rank].touch()

    def prune_earlier(self) -> None:
        """Removes the checkpoints of the job's earlier leases, complete or not, once all ranks have loaded theirs."""
        if not all(path.exists() for path in self._loaded):
            return
        own = lease_of(self._directory.name)
        of_job = self._directory.parent
        for lease in leases_of(of_job):
            if own is not None and lease < own:
                _prune(of_job / lease_name(lease), math.inf)
                for incomplete in (of_job / lease_name(lease)).glob(f"{_WRITING}*"):
                    shutil.rmtree(incomplete, ignore_errors=True)

    def _wait_for_ranks(self, writing: Path, final: Path, deadline_s: float) -> None:
        """Marks that this rank has written; the first rank waits for all."""
        done = [writing / f".rank-{rank}-done" for rank in range(self._world)]
        done[self._rank].touch()
        if self._rank > 0:
            return
        _wait(lambda: all(path.exists() for path in done), deadline_s, f"not all ranks wrote checkpoint {final.name}")
        for path in done:
            path.unlink()

    def _publish(self, writing: Path, final: Path, deadline_s: float) -> None:
        if clock_s() >= deadline_s:
            shutil.rmtree(writing, ignore_errors=True)
            raise LeaseExpired(f"the lease was over before checkpoint {final.name} was complete; it does not count")
        writing.rename(final)
        _sync(self._directory)


@contextmanager
def _removed_on_failure(writing: Path | None) -> Iterator[None]:
    """Removes an incomplete checkpoint; a complete one has been renamed by then."""
    try:
        yield
    finally:
        if writing is not None:
            shutil.rmtree(writing, ignore_errors=True)


def _prune(directory: Path, steps: float) -> None:
    for step in whole_checkpoints(directory):
        if step < steps:
            gone = directory / f".gone-{step_name(step)}-{os.getpid()}"
            (directory / step_name(step)).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def sync_tree(directory: Path) -> None:
    """Syncs all files below a directory to disk, and the directories."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder) / name for name in names):
            if path.is_file() and not path.is_symlink():
                _sync(path)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wait(is_done: Callable[[], bool], deadline_s: float, problem: str) -> None:
    while not is_done():
        if clock_s() >= deadline_s:
            raise LeaseExpired(f"{problem} before the lease was over")
        time.sleep(POLL_S)


Item = TypeVar("Item", covariant=True)


@runtime_checkable
class Resumable(Protocol):
    """A loader that can start within an epoch without producing the earlier items."""

    def resume_at(self, epoch: int, position: int) -> None:
        """Makes the next iteration start in this epoch, after `position` items."""
        ...


@runtime_checkable
class CountsSamples(Protocol):
    """A loader whose position is counted in samples over all ranks, so that it holds at any number of ranks."""

    scales_batch: bool  # whether an item may have more samples on more ranks

    @property
    def samples_per_item(self) -> int:
        """Samples of an item, over all ranks."""
        ...

    def items_after(self, samples: int) -> int:
        """Items that are left of an epoch after this many samples."""
        ...

    def resume_at_sample(self, epoch: int, samples: int) -> None:
        """Makes the next iteration start in this epoch, after this many samples of its order."""
        ...


class EpochCursor(Generic[Item]):
    """The items of a loader from a data position on. `position` counts the items used in this epoch; the caller adds.

    Calls `set_epoch` of the loader and of its sampler, if they have one. Items of a loader that is not Resumable are
    skipped one by one. Raises InvalidInput if the job had another number of `ranks` and the position does not hold.
    """

    def __init__(self, loader: Iterable[Item], epochs: int, start: DataPosition, ranks: int = 1) -> None:
        self._loader = loader
        self._epochs = epochs
        self._batch = batch_of(loader)
        scales = loader.scales_batch if isinstance(loader, CountsSamples) else None
        check_ranks(start, ranks, self._batch, scales=scales, name=type(loader).__name__)
        passed, position = _split(loader, start.position) if not start.batch else (0, start.position)
        rest = 0
        if self._batch and start.batch:
            position, rest = divmod(start.samples, self._batch)
        self.epoch = start.epoch + passed
        self.position = position
        self._rest = rest  # samples of this epoch that fill no item of now
        self._items = self._start_epoch() if start.steps and self.epoch < epochs else None

    def __iter__(self) -> Iterator[Item]:
        while self.has_epoch:
            yield from self.rest_of_epoch()

    @property
    def batch(self) -> int:
        """Samples of an item, over all ranks; 0 = not known."""
        return self._batch

    @property
    def samples(self) -> int:
        """Samples of this epoch that have been used, over all ranks; 0 if `batch` is not known."""
        return self.position * self._batch + self._rest

    def items_left(self) -> int:
        """Items of this epoch and the next ones; 0 = not known."""
        loader: object = self._loader
        length = length_of(loader)
        of_epoch = loader.items_after(self.samples) if isinstance(loader, CountsSamples) else length - self.position
        return max(0, of_epoch + (self._epochs - self.epoch - 1) * length) if length else 0

    @property
    def has_epoch(self) -> bool:
        """Whether an epoch is left."""
        return self.epoch < self._epochs

    def rest_of_epoch(self) -> Iterator[Item]:
        """The items of the current epoch that are left; then the next epoch is current."""
        items = self._items or self._start_epoch()
        before = self.position
        yield from items
        self._items = None
        if self.position == before == self._rest == 0:
            raise InvalidInput("loader must yield items each time it is iterated over, but it is empty")
        self.epoch += 1
        self.position = self._rest = 0

    def _start_epoch(self) -> Iterator[Item]:
        for part in (self._loader, getattr(self._loader, "sampler", None)):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(self.epoch)
        if isinstance(self._loader, CountsSamples):
            self._loader.resume_at_sample(self.epoch, self.samples)
            return iter(self._loader)
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


def check_ranks(start: DataPosition, ranks: int, batch: int, *, scales: bool | None, name: str) -> None:
    """Raises InvalidInput if a data position of another number of ranks or another batch does not hold here.

    `batch`: samples of a step over all ranks, 0 = not known. `scales`: whether it may be larger on more ranks; None =
    a position that fills no whole batch does not hold. `name`: what counts.
    """
    if start.ranks in (0, ranks):
        holds = not batch or not start.batch or scales is not None or start.samples % batch == 0
    elif batch and start.batch:
        holds = batch == start.batch or bool(scales)
    elif not (holds := not start.position):
        raise InvalidInput(
            f"{name} must count samples to resume a checkpoint of {start.ranks} ranks on {ranks}: use ResumableLoader, "
            "or set the attribute samples_per_item of the loader to the samples of an item over all ranks"
        )
    if not holds:
        raise InvalidInput(
            f"a batch must have {start.batch} samples over all ranks, as in the checkpoint of {start.ranks} ranks, got "
            f"{batch} on {ranks}: take batch_per_rank({start.batch}) of gavelpy.torch, or scales_batch=True of "
            "ResumableLoader if a step may have more samples on more ranks"
        )


def batch_of(loader: object) -> int:
    """Samples of an item of a loader, over all ranks; 0 = not known."""
    batch = getattr(loader, "samples_per_item", 0)
    return batch if isinstance(batch, int) and batch > 0 else 0


def _split(loader: object, position: int) -> tuple[int, int]:
    """Complete epochs and the rest, for checkpoints that record steps only."""
    length = length_of(loader)
    return divmod(position, length) if 0 < length < position else (0, position)


def length_of(loader: object) -> int:
    """Items of one pass over a loader; 0 = unknown, as of a loader over a stream, whose `__len__` raises TypeError."""
    try:
        return len(loader) if isinstance(loader, Sized) else 0
    except (TypeError, NotImplementedError):
        return 0
