"""Disk space of the directories in which a node and its jobs write, checked before a job fails for lack of it.

A lease starts with files in the state directory and ends with a checkpoint. Without space for either, the node accepts
no new leases; running leases continue, as there may be space again when they save.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

FILES_FREE_MIN: Final = 64
Look = Callable[[Path], os.statvfs_result]
_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shortage(directories: Mapping[str, Path], bytes_min: int, look: Look = os.statvfs) -> str:
    """Why the first of these directories, by name, cannot be written; empty = all can.

    For a directory that does not exist yet, its nearest parent is checked. The message is stable while the reason is.
    """
    problems = (_problem(name, directory, bytes_min, look) for name, directory in directories.items())
    return next((sentence for sentence in problems if sentence), "")


def _problem(name: str, directory: Path, bytes_min: int, look: Look) -> str:
    where = f"the {name} directory ({str(directory)!r})"
    try:
        there = next((place for place in (directory, *directory.parents) if place.exists()), directory)
        found = look(there)
    except OSError as error:
        return f"{where} cannot be used: {error.strerror or 'unknown error'}"
    if found.f_flag & os.ST_RDONLY:
        return f"{where} is read-only"
    if found.f_bavail * found.f_frsize < max(bytes_min, 1):
        return f"less than {in_units(bytes_min)} are free in {where}" if bytes_min else f"{where} is full"
    if found.f_files and found.f_favail < FILES_FREE_MIN:  # some file systems do not count files
        return f"less than {FILES_FREE_MIN} files can be made in {where}"
    return ""


def in_units(count: int) -> str:
    """Bytes for people: 64 MiB."""
    size, unit = next(((size, unit) for size, unit in _UNITS if count >= size), (1, "bytes"))
    return f"{count / size:.4g} {unit}"
