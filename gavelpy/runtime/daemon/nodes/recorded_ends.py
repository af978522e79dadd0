"""Reads the ends of leases that shims on this host have recorded, while their agent is away.

A shim writes `end.json` last, when no process of its lease is left. A shim that has ended without this file was killed.
The agent sends its state directory when it connects; the scheduler reads it only if both run on one host and the file
permissions allow it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from gavelpy.errors import RemoteViolation
from gavelpy.mechanism.events import Outcome
from gavelpy.runtime import lease_files
from gavelpy.runtime.daemon.leases.lease import Part, PartReport, Phase

logger = logging.getLogger(__name__)


def recorded_ends(state_directory: str, parts: Iterable[tuple[int, int, Part]]) -> list[PartReport] | None:
    """Recorded ends of these (lease, job, part); None if the records cannot be read."""
    leases = Path(state_directory) / lease_files.LEASES_DIRECTORY
    if not state_directory:
        return None
    ends = []
    for lease, job, part in parts:
        directory = lease_files.lease_directory(leases, lease)
        try:
            if not directory.is_dir():
                return None
            end = lease_files.read_end(directory)
        except (OSError, RemoteViolation) as error:
            logger.warning("record of a lease cannot be read: %s", error, extra={"lease_id": lease})
            return None
        if end is not None:
            ends.append(_report(lease, job, part, end))
    return ends


def _report(lease: int, job: int, part: Part, end: lease_files.End) -> PartReport:
    """The report that the agent would send, without checkpoints that it has not reported: only it can verify them."""
    heard = part.heard or PartReport(lease, job, Phase.ENDED)
    return PartReport(
        lease,
        job,
        Phase.ENDED,
        steps_done=end.steps_done,
        steps_saved=heard.steps_saved,
        outcome=Outcome[end.outcome.name],
        exit_code=end.exit_code,
        detail="".join(c if c.isprintable() else " " for c in end.detail),
        is_by_time=heard.is_by_time,
    )
