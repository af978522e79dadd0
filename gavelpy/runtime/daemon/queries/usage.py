"""GPU time under lease by owner, entity and GPU type, for a caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavelpy.model.arrays import VALUE_MAX
from gavelpy.runtime.daemon.queries.fields import number
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler


@dataclass(frozen=True)
class UsageRow:
    """GPU-seconds under lease of one owner in one entity on one GPU type."""

    owner: str
    entity: str
    gpu_type: str
    gpu_s: float


@dataclass(frozen=True)
class UsageReport:
    """Rows in order of owner, entity and type, for a period in Unix time."""

    rows: Sequence[UsageRow]
    since_s: float
    until_s: float


def usage(scheduler: Scheduler, caller: Caller, *, since_s: float = 0.0, owner: str = "") -> UsageReport:
    """GPU time since a Unix time (0 = since the journal began), of the caller; for admins of all owners, or of one.

    It counts whole hours, and whole days more than a month ago: the report has the time at which it starts. Raises
    InvalidInput.
    """
    number("since_s", since_s)
    now_s = scheduler.now_s()
    epoch_s = scheduler.wall_s(0.0)
    first_s, found = scheduler.history.usage.since(min(max(since_s - epoch_s, 0.0), VALUE_MAX), now_s)
    selected = owner or ("" if caller.is_admin else caller.name)
    rows = [
        UsageRow(holder.owner, holder.entity, holder.gpu_type, gpu_s)
        for holder, gpu_s in sorted(found.items())
        if (caller.is_admin or holder.owner == caller.name) and selected in ("", holder.owner)
    ]
    return UsageReport(rows, scheduler.wall_s(first_s), scheduler.wall_s(now_s))
