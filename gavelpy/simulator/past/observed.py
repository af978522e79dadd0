"""What a journal shows of each lease and each job, by replaying its events through a core.

The core repeats its decisions, so the times of grants and revocations, which are no events, are known as well. Jobs are
named by their serials, which never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gavelpy.errors import InvalidInput
from gavelpy.journal.recording import Recording
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    Event,
    JobsArchived,
    PolicyChanged,
    SchedulerRestarted,
    ThroughputEstimated,
)
from gavelpy.mechanism.snapshot import copied, restore
from gavelpy.model.arrays import Floats, Ints
from gavelpy.simulator.past.ledger import Ledger, Used

Input = tuple[float, Event]


@dataclass(frozen=True, eq=False)
class ObservedJournal:
    """A journal between two times: what happened, and what a replay needs to know."""

    recording: Recording
    ledger: Ledger  # of everything up to `end_s`
    core: SchedulerCore  # at `start_s`, with leases that run then
    policy: PolicyChanged | None  # at `start_s`; None = the journal does not name one
    inputs: list[Input]  # exogenous events after that, with what nodes and estimates reported
    start_s: float
    end_s: float
    gpu_types: tuple[str, ...]  # at `end_s`
    rates: Mapping[int, Floats]  # (T,) that the scheduler believed at the end of each job or of the journal
    restarts: int  # of the scheduler
    solved: int  # allocations before `start_s`
    used_before: Mapping[int, Used]  # of jobs that were not over at `start_s`

    @property
    def serial_after(self) -> int:
        """Serial of the first job that was submitted after `start_s`."""
        return self.core.jobs.ids.next_serial


def observe(
    recording: Recording, since_s: float | None = None, until_s: float | None = None, policy: str = ""
) -> ObservedJournal:
    """Replays a journal up to `until_s`; the replay under other conditions begins at `since_s`.

    `policy` was in force if the journal names none, as those of `gavel simulate`.

    Raises InvalidInput if the journal has no event in this time.
    """
    first_s, last_s = recording.span_s
    start_s, end_s = first_s if since_s is None else since_s, last_s if until_s is None else until_s
    if start_s > last_s:
        raise InvalidInput(f"since must be at most {last_s:,.0f} s, where the journal ends, got {start_s:,.0f} s")
    if end_s <= max(start_s, first_s):
        raise InvalidInput(f"until must be after {max(start_s, first_s):,.0f} s, where it begins, got {end_s:,.0f} s")
    core = SchedulerCore() if recording.core is None else restore(recording.core)
    ledger, restarts, inputs, believed = Ledger(), 0, list[Input](), dict[int, Floats]()
    in_force = recording.policy or (PolicyChanged(policy, "") if policy else None)
    first = in_force
    ledger.adopt(core, core.now_s)
    start: tuple[SchedulerCore, PolicyChanged | None] | None = None
    solved, used = 0, dict[int, Used]()
    for now_s, event in recording.events:
        if now_s > end_s:
            break
        if start is None and since_s is not None and now_s > start_s:
            start, solved, used = (copied(core), in_force), len(ledger.solve_s), ledger.used(start_s)
        if isinstance(event, JobsArchived):
            believed |= _rates(core, event.jobs)
        try:
            commands = core.handle(event, now_s)
        except InvalidInput:  # it was refused then, too
            continue
        ledger.apply(core, event, now_s, commands)
        in_force = event if isinstance(event, PolicyChanged) else in_force
        restarts += isinstance(event, SchedulerRestarted)
        if (start is not None or since_s is None) and (event.exogenous or isinstance(event, _KNOWN_FROM_NODES)):
            inputs.append((now_s, event))
    if start is None:
        start = (copied(core), in_force) if since_s is not None else (_before(recording), first)
    ledger.close(core, min(end_s, last_s))
    believed |= _rates(core, core.jobs.ids.serials)
    return ObservedJournal(
        recording, ledger, *start, inputs, max(start_s, first_s), min(end_s, last_s),
        tuple(core.pool.gpu_types), believed, restarts, solved, used,
    )  # fmt: skip


_KNOWN_FROM_NODES = AgentRejoined | ThroughputEstimated


def _before(recording: Recording) -> SchedulerCore:
    return SchedulerCore() if recording.core is None else restore(recording.core)


def _rates(core: SchedulerCore, serials: Ints) -> dict[int, Floats]:
    rows = core.jobs.ids.rows(serials)
    return {
        job: core.jobs.rate[row].copy() for job, row in zip(serials.tolist(), rows.tolist(), strict=True) if row >= 0
    }
