"""Which notifications events cause, as facts that a replay of the journal gives again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import LeaseEnded, Outcome
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.notify import NotifyKind

NOTICES_MAX = 5_000  # that a restart can still send
_FAILURES = (Outcome.FAILED, Outcome.UNRUNNABLE, Outcome.LOST)


class Notice(NamedTuple):
    """One fact that an owner requested to be notified of."""

    now_s: float
    kind: str
    job: int
    lease: int = -1

    @property
    def id(self) -> str:
        """The same for the same fact, also after a restart."""
        return f"{self.job}-{self.lease}-{self.kind}"


def notice_of_cancelled(core: SchedulerCore, job: int, now_s: float) -> list[Notice]:
    """The notice of a job that was cancelled, if its owner requested it."""
    return [Notice(now_s, NotifyKind.END, job)] if NotifyKind.END in core.jobs.by_serial.specs[job].notify.kinds else []


def notices_of_ended(core: SchedulerCore, event: LeaseEnded, now_s: float, over: Collection[int]) -> Iterator[Notice]:
    """The notices of leases that ended. `over`: the jobs that ended with them."""
    for job, lease in zip(event.jobs.tolist(), event.leases.tolist(), strict=True):
        kinds, state = core.jobs.by_serial.specs[job].notify.kinds, core.jobs.by_serial.state[job]
        if kinds and (kind := _kind(core, event.outcome, job, job in over)) in kinds:
            yield Notice(now_s, kind, job, lease)
        elif kinds and job in over and state == JobState.FAILED and NotifyKind.FAILURE in kinds:
            yield Notice(now_s, NotifyKind.FAILURE, job, lease)


def _kind(core: SchedulerCore, outcome: int, job: int, is_over: bool) -> str:
    """What the end of a lease means for its job; empty = nothing, because the job was over before."""
    if is_over:
        return NotifyKind.END
    if core.jobs.by_serial.state[job] != JobState.WAITING:
        return ""
    return NotifyKind.FAILURE if outcome in _FAILURES else NotifyKind.PREEMPTION
