"""Logs of leases that the scheduler has forgotten: kept for a while, without the job's environment.

STATE/ended/00000042/    log/, end.json and the other files of a lease, without launch.json
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.leases.directory import ASSIGNMENT_FILE, AssignmentRecord

logger = logging.getLogger(__name__)

ENDED: Final = "ended"
DAMAGED: Final = "damaged"
FORMER: Final = "former"  # of the previous cluster


def lease_directories(parent: Path) -> list[Path]:
    """Directories of leases, oldest lease first."""
    return sorted(entry for entry in parent.iterdir() if entry.name.isdecimal() and entry.is_dir())


def read_assignment(directory: Path) -> AssignmentRecord | None:
    """The contents of assignment.json; None if it cannot be read."""
    try:
        text = lease_files.read_text_whole(directory / ASSIGNMENT_FILE)
        return msgspec.json.decode(text, type=AssignmentRecord) if text is not None else None
    except (RemoteViolation, msgspec.DecodeError) as error:
        logger.warning("file of a lease ignored: %s", error)
        return None


def scrub(directory: Path) -> None:
    """Removes the environment of an ended job, which can contain secrets, from its lease directory."""
    (directory / lease_files.LAUNCH_FILE).unlink(missing_ok=True)
    found = read_assignment(directory)
    if found is not None and found.assignment is not None:
        bare = AssignmentRecord(found.lease, found.job, None)
        lease_files.write_text_whole(directory / ASSIGNMENT_FILE, msgspec.json.encode(bare).decode())


def prune(state: Path, *, bytes_max: int, retention_s: float, now_s: float) -> int:
    """Removes leases older than the retention, and the oldest logs above `bytes_max`; returns the number of leases.

    `now_s` is Unix time. The age counts from the last change of a directory: scrubbing, when its lease is forgotten.
    """
    total, removed = 0, 0
    for directory in reversed(lease_directories(state / ENDED)):
        with suppress(OSError):  # for example a full disk: retried at the next call
            scrub(directory)  # if the agent died before it did
        total += sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())
        if total > bytes_max or _is_older(directory, now_s - retention_s):
            shutil.rmtree(directory, ignore_errors=True)
            removed += 1
    for directory in _others(state):
        if _is_older(directory, now_s - retention_s):
            shutil.rmtree(directory, ignore_errors=True)
            removed += 1
    return removed


def _others(state: Path) -> Iterator[Path]:
    """Directories of damaged leases and of the previous cluster."""
    for parent in (state / DAMAGED, state / FORMER / ENDED):
        if parent.is_dir():
            yield from parent.iterdir()


def _is_older(directory: Path, moment_s: float) -> bool:
    with suppress(FileNotFoundError):
        return directory.stat().st_mtime < moment_s
    return False
