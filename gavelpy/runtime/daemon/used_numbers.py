"""Which numbers of jobs and leases have left directories of checkpoints: evidence where the journal has none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from gavelpy.journal.loss_detection import Numbers

_JOB = re.compile(r"[0-9]{1,18}")
_LEASE = re.compile(r"lease-([0-9]{8,18})")


def numbers_in(root: Path) -> Numbers:
    """The first numbers that no directory under a root has: `<root>/<job>/lease-<lease>`."""
    jobs = [name for name in _names(root) if _JOB.fullmatch(name)]
    matches = (_LEASE.fullmatch(name) for job in jobs for name in _names(root / job))
    leases = (int(match[1]) for match in matches if match is not None)
    return Numbers(max((int(job) + 1 for job in jobs), default=0), max((lease + 1 for lease in leases), default=0))


def _names(folder: Path) -> Iterator[str]:
    """Folders in a folder; none where there is none, or it went meanwhile."""
    try:
        with os.scandir(folder) as found:
            yield from (entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return
