"""Ends of leases that a node of this machine has recorded, read while its agent is away.

A shim writes `end.json` last of all, when no process of its lease is left. So a shim that is gone has either written it
or was killed, and only the file tells which. The agent names its state directory when it connects; the scheduler reads
there only if both are on one machine, and only where the agent's user lets it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from gavelpy.errors import RemoteViolation
from gavelpy.mechanism.events import Outcome
from gavelpy.runtime import lease_files
from gavelpy.runtime.daemon.lease_values import Part, PartReport, Phase

logger = logging.getLogger(__name__)


def recorded_ends(state_directory: str, parts: Iterable[tuple[int, int, Part]]) -> list[PartReport] | None:
    """What the shims of these parts, given with lease and job, have recorded; None where that cannot be read."""
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
    """As the agent would report it, without checkpoints that it has not reported: only it can tell whose they are."""
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
