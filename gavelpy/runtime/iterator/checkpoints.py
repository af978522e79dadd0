"""Checkpoints that are whole or not there: written under another name, synced to disk, then renamed.

    <directory>/step-000000001200/   what the caller's `save` has written, and gavel.json: where the loop stood
    <directory>/.writing-...         not whole; of no value to anybody

Where all ranks write (`world` > 1) they write into the same directory; each says when it is done, and the first rank
renames when all have.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gavelpy.errors import LeaseExpired, RemoteViolation
from gavelpy.runtime.lease_files import (
    clock_s,
    lease_name,
    lease_of,
    leases_of,
    read_text_whole,
    step_name,
    step_of,
    whole_checkpoints,
)

PLACE_FILE: Final = "gavel.json"
POLL_S: Final = 0.01
_WRITING: Final = ".writing-"


@dataclass(frozen=True)
class Place:
    """Where a loop stood when it was saved."""

    steps: int = 0
    epoch: int = 0
    position: int = 0  # items of the epoch that were used
    took_s: float = 0.0  # to write the checkpoint


def read_place(directory: Path) -> Place:
    """The place in a whole checkpoint; the start of its first epoch where only its name tells the steps."""
    text = read_text_whole(directory / PLACE_FILE)
    steps = step_of(directory.name)
    if text is None:
        if steps is None:
            raise RemoteViolation(f"{directory} must be a checkpoint: its name must be step-<12 digits>")
        return Place(steps=steps, position=steps)
    try:
        place = Place(**json.loads(text))
        whole = (place.steps, place.epoch, place.position)
        is_good = all(isinstance(value, int) and value >= 0 for value in whole) and math.isfinite(place.took_s)
    except (ValueError, TypeError) as error:
        raise RemoteViolation(f"{directory / PLACE_FILE} must say where the loop stood: {error}") from error
    if not is_good:
        raise RemoteViolation(f"{directory / PLACE_FILE} must say where the loop stood, got {text[:200]!r}")
    return place


class CheckpointWriter:
    """Writes the checkpoints of one run into its directory. `world` > 1: all ranks write each of them together.

    `ranks` is how many resume from one, whoever writes.
    """

    def __init__(self, directory: Path, rank: int = 0, world: int = 1, ranks: int = 1) -> None:
        self._directory = directory
        self._rank = rank
        self._world = world
        self._loaded = [directory / f".rank-{number}-loaded" for number in range(ranks)] if ranks > 1 else []

    def write(self, place: Place, save: Callable[[Path], object], deadline_s: float) -> float:
        """Saves and returns the seconds it took; raises LeaseExpired rather than finish after the deadline.

        The deadline is a time of `clock_s`. A checkpoint that is there already is left as it is.
        """
        began_s = clock_s()
        final = self._directory / step_name(place.steps)
        if final.exists():
            return 0.0
        writing = self._directory / (f"{_WRITING}{final.name}" + ("" if self._world > 1 else f"-{os.getpid()}"))
        with _swept(None if self._world > 1 else writing):
            writing.mkdir(parents=True, exist_ok=True)
            save(writing)
            sync_tree(writing)
            if self._world > 1:
                self._meet(writing, final, deadline_s)
            if self._rank == 0:
                text = json.dumps(asdict(place) | {"took_s": clock_s() - began_s})
                (writing / PLACE_FILE).write_text(text)
                sync_tree(writing)
                self._put(writing, final, deadline_s)
            else:
                _wait(final.exists, deadline_s, f"checkpoint {final.name} was not made whole by the first rank")
        return clock_s() - began_s

    def prune(self, steps: float) -> None:
        """Removes whole checkpoints with fewer steps than these, each in one move."""
        _prune(self._directory, steps)

    def tell_loaded(self) -> None:
        """Says that this rank needs no earlier checkpoint any more. Where that cannot be written, they all stay."""
        if self._loaded:
            with suppress(OSError):
                self._directory.mkdir(parents=True, exist_ok=True)
                self._loaded[self._rank].touch()

    def prune_earlier(self) -> None:
        """Removes the checkpoints of the job's earlier leases, also half ones; what else is there stays.

        Not while a rank that starts slowly may still have to load one: nothing else holds the others up.
        """
        if not all(path.exists() for path in self._loaded):
            return
        own = lease_of(self._directory.name)
        jobs_own = self._directory.parent
        for lease in leases_of(jobs_own):
            if own is not None and lease < own:
                _prune(jobs_own / lease_name(lease), math.inf)
                for half in (jobs_own / lease_name(lease)).glob(f"{_WRITING}*"):
                    shutil.rmtree(half, ignore_errors=True)

    def _meet(self, writing: Path, final: Path, deadline_s: float) -> None:
        """Says that this rank has written; the first rank waits for all."""
        done = [writing / f".rank-{rank}-done" for rank in range(self._world)]
        done[self._rank].touch()
        if self._rank > 0:
            return
        _wait(lambda: all(path.exists() for path in done), deadline_s, f"not all ranks wrote checkpoint {final.name}")
        for path in done:
            path.unlink()

    def _put(self, writing: Path, final: Path, deadline_s: float) -> None:
        if clock_s() >= deadline_s:
            shutil.rmtree(writing, ignore_errors=True)
            raise LeaseExpired(f"the lease was over before checkpoint {final.name} was whole; it does not count")
        writing.rename(final)
        _sync(self._directory)


@contextmanager
def _swept(writing: Path | None) -> Iterator[None]:
    """Removes what came to nothing, so that it does not fill the disk; what is whole has another name by then."""
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
    """Puts all files below a directory on disk, and the directories themselves."""
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


def _wait(is_so: Callable[[], bool], deadline_s: float, complaint: str) -> None:
    while not is_so():
        if clock_s() >= deadline_s:
            raise LeaseExpired(f"{complaint} before the lease was over")
        time.sleep(POLL_S)
