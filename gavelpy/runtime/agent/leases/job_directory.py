"""The directory of a job that runs as its owner: STATE/jobs/00000042, which only the owner's account can enter.

The job may write anything there. So the agent, which is root, never opens a file in it for writing: it writes the file
in the lease directory, where the job cannot go, gives it to the owner and renames it into place, which follows no link.
A job that removes or replaces its copies harms itself only. What the job writes there is read without following links
and with a limit (`whole_files`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import Launch, LeaseTerms, Progress
from gavelpy.runtime.shim.isolation import TMP

PARENT_MODE: Final = 0o711  # owners pass through it to their own directories, but cannot list it
STAGED: Final = ".for-job"  # in the lease directory
_GONE: Final = ".gone-"


def make(directory: Path, launch: Launch) -> None:
    """Makes an empty directory for a job; `directory`: of the lease. Raises OSError."""
    made = launch.directory_of_job(directory)
    made.parent.mkdir(mode=PARENT_MODE, exist_ok=True)
    made.parent.chmod(PARENT_MODE)
    if made.exists():  # of an agent that died here
        _discard(made)
    made.mkdir(mode=0o700)
    os.chown(made, launch.uid, launch.gid)


def share_launch(directory: Path, launch: Launch) -> None:
    """Gives the job what LeaseIterator needs of launch.json. Raises OSError."""
    public = replace(launch, argv=(), environment={}, rank_environments=(), cgroup="", secrets={})
    _put(directory, launch, lease_files.LAUNCH_FILE, lambda staged: lease_files.write_launch(staged, public))


def share_terms(directory: Path, launch: Launch, terms: LeaseTerms) -> None:
    """Gives the job new terms of its lease. Raises OSError."""
    _put(directory, launch, lease_files.LEASE_FILE, lambda staged: lease_files.write_lease(staged, terms))


def share_progress(directory: Path, launch: Launch, local_rank: int, progress: Progress) -> None:
    """Puts a report of a job that does not write files itself next to those of other ranks. Raises OSError."""
    name = lease_files.progress_file(local_rank)
    _put(directory, launch, name, lambda staged: lease_files.write_progress(staged, local_rank, progress))


def discard(state: Path, lease: int) -> None:
    """Puts away the directory of an ended lease's job; `remove_discarded` removes it."""
    made = lease_files.lease_directory(state / lease_files.JOBS_DIRECTORY, lease)
    with suppress(OSError):  # there is none, or a later call succeeds
        _discard(made)
    own = lease_files.lease_directory(state / lease_files.LEASES_DIRECTORY, lease) / TMP
    with suppress(OSError):
        made.parent.mkdir(mode=PARENT_MODE, exist_ok=True)
        own.rename(made.with_name(f"{_GONE}{TMP}-{made.name}-{lease_files.clock_s():.6f}"))


def discard_unknown(state: Path, leases: Collection[int]) -> None:
    """Puts away the directories of all other leases: the agent died between two steps."""
    for lease in {int(entry.name) for entry in _entries(state) if entry.name.isdecimal()} - set(leases):
        discard(state, lease)


def remove_discarded(state: Path) -> None:
    """Removes what was put away. Slow: a job may have made many files."""
    for entry in _entries(state):
        if entry.name.startswith(_GONE):
            shutil.rmtree(entry, ignore_errors=True)


def _put(directory: Path, launch: Launch, name: str, write: Callable[[Path], None]) -> None:
    staged = directory / STAGED
    staged.mkdir(mode=0o700, exist_ok=True)
    write(staged)
    os.chown(staged / name, launch.uid, launch.gid)
    (staged / name).replace(launch.directory_of_job(directory) / name)


def _entries(state: Path) -> list[Path]:
    parent = state / lease_files.JOBS_DIRECTORY
    return list(parent.iterdir()) if parent.is_dir() else []


def _discard(made: Path) -> None:
    made.rename(made.with_name(f"{_GONE}{made.name}-{lease_files.clock_s():.6f}"))
