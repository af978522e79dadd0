"""GPU time, cost, waiting and preemptions by owner, entity and GPU type, for a caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavelpy.journal.archive_reader import USAGE_COLUMNS
from gavelpy.model.arrays import VALUE_MAX
from gavelpy.runtime.daemon.queries.fields import number
from gavelpy.runtime.daemon.usage import Holder
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState


@dataclass(frozen=True)
class UsageRow:
    """Sums of one owner in one entity on one GPU type."""

    owner: str
    entity: str
    gpu_type: str
    gpu_s: float  # under lease
    cost_usd: float = 0.0
    waited_s: float = 0.0  # of the leases that started
    leases: int = 0  # that started
    preemptions: int = 0


@dataclass(frozen=True)
class UsageReport:
    """Rows in order of owner, entity and type, for a period in Unix time."""

    rows: Sequence[UsageRow]
    since_s: float
    until_s: float


async def usage(scheduler: SchedulerState, caller: Caller, *, since_s: float = 0.0, owner: str = "") -> UsageReport:
    """The sums since a Unix time (0 = since the journal began), of the caller; for admins of all owners, or of one.

    They count whole hours, and whole days more than a month ago if nothing is archived: the report has the time at
    which it starts. Those of past hours are summed by the database. Raises InvalidInput.
    """
    number("since_s", since_s)
    selected = owner or ("" if caller.is_admin else caller.name)
    if not (caller.is_admin or selected == caller.name):
        selected = "\0"  # no owner: names do not leak
    while True:
        generation = scheduler.history.usage.generation
        now_s, epoch_s = scheduler.now_s(), scheduler.wall_s(0.0)
        wanted_s = min(max(since_s - epoch_s, 0.0), VALUE_MAX)
        first_s, here = scheduler.history.usage.sums_since(wanted_s, now_s)
        first, whose = first_s, selected or None
        past = await scheduler.past.read(lambda reader: reader.usage(first, USAGE_COLUMNS, whose))  # noqa: B023
        if generation == scheduler.history.usage.generation:  # nothing has left meanwhile
            break
    found = {holder: list(sums) for holder, sums in here.items() if selected in ("", holder.owner)}
    for key, sums in past.items():
        total = found.setdefault(Holder(*key), [0.0] * len(sums))
        total[:] = [one + other for one, other in zip(total, sums, strict=True)]
    rows = [
        UsageRow(*holder, sums[0], sums[1], sums[2], round(sums[3]), round(sums[4]))
        for holder, sums in sorted(found.items())
    ]
    return UsageReport(rows, epoch_s + first_s, epoch_s + now_s)
