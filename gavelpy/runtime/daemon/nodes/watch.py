"""Delays declaring nodes unreachable when nearly all of them become so at once.

Nodes fail one by one. If nearly all stop reporting at the same time, they share the cause: a switch, or a scheduler
that was suspended and has not read its messages. Declaring them unreachable would end their leases for no reason, so
their deadline is extended for a bounded time; when they return, the others have the usual time.

A single node, and nodes that were unreachable before, are no evidence of such an event.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.mechanism.events import Outcome
from gavelpy.runtime import lease_files
from gavelpy.runtime.daemon.leases.lease import Part, PartReport, Phase

NODES_MIN: Final = 2
SHARE_MIN: Final = 0.8  # of the nodes that are expected to report
_QUIET: Final = 0.5  # of `silent_after_s`: longer than the interval of a healthy node


class SilenceJudge:
    """Decides by the ages of the nodes' last messages. `extension_s`: the longest delay."""

    def __init__(self, silent_after_s: float, extension_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._extension_s = extension_s
        self._began_s = math.inf  # of a common event
        self._excused_until_s = -math.inf

    def is_excused(self, now_s: float) -> bool:
        """Whether no node may be declared unreachable now."""
        return now_s < self._excused_until_s

    def look(self, ages_s: Sequence[float], now_s: float) -> bool:
        """Takes the ages of all nodes that are expected to report; returns whether a common event has just begun."""
        quiet = sum(age_s >= _QUIET * self._silent_after_s for age_s in ages_s)
        overdue = any(age_s >= self._silent_after_s for age_s in ages_s)
        if quiet < NODES_MIN or quiet < SHARE_MIN * len(ages_s) or not overdue:
            self._began_s = math.inf
            return False
        is_new = math.isinf(self._began_s)
        self._began_s = min(self._began_s, now_s)
        self._excused_until_s = min(now_s + self._silent_after_s, self._began_s + self._extension_s)
        return is_new and self._extension_s > 0


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
