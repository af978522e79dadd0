"""The history of jobs, which the core does not keep: starts, ends, notes and usage; also the agent of each node.

It is computed from the journal's events, so a restart restores it. The agent's identity distinguishes it from another
agent of the same node name after a restart. Times are the scheduler's (`now_s`).
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gavelpy.errors import JournalCorrupt
from gavelpy.mechanism import gpu_memory
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationFailed,
    AllocationSolved,
    Event,
    GpuMemoryMeasured,
    IdsReserved,
    JobAnnotated,
    JobCancelled,
    JobsArchived,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
    PolicyChanged,
    PriceChanged,
    PriorityChanged,
)
from gavelpy.mechanism.identities import GONE, Identities
from gavelpy.mechanism.lifecycle import ALIVE, JobState, NodeState
from gavelpy.mechanism.priority_classes import NORMAL, in_words
from gavelpy.mechanism.translation import to_rows
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.runtime.daemon.nodes.registry import is_keyed
from gavelpy.runtime.daemon.notices import NOTICES_MAX, Notice, notice_of_cancelled, notices_of_ended
from gavelpy.runtime.daemon.shadow_prices import ShadowPrices
from gavelpy.runtime.daemon.usage import UsageBook

logger = logging.getLogger(__name__)

NAMELESS = "-"  # the id of a job without a name
SEPARATOR = "#"  # between name and serial in a job's id in the core
HISTORY_MAX = 24  # entries of a job
OVER_MEMORY = "over its GPU memory"  # kind of an entry
_ENDED = ("finished", "stopped", "failed", "lost")


def full_id(name: str, serial: int) -> str:
    """The id of a job in the core. It is unique: names may be used again, serials are not."""
    return f"{'job-' + str(serial) if name == NAMELESS else name}{SEPARATOR}{serial}"


def name_of(job_id: str) -> str:
    """The name of a job for users."""
    return job_id.rpartition(SEPARATOR)[0] or job_id


class HistoryEntry(NamedTuple):  # faster to make than a dataclass: a restart makes one per entry
    """One entry of a job's history."""

    now_s: float
    kind: str  # submitted, started, finished, stopped, failed, lost, cancelled, held, released, requeued, noted
    lease: int = -1
    steps_done: float = 0.0
    text: str = ""

    @property
    def line(self) -> str:
        """The entry as a line of text, without the time."""
        lease = f" lease {self.lease}" if self.lease >= 0 else ""
        steps = f" at step {self.steps_done:.0f}" if self.kind in _ENDED else ""
        return f"{self.kind}{lease}{steps}{': ' if self.text else ''}{self.text}"


@dataclass(frozen=True)
class PolicyAnswer:
    """Figures of the allocation in force; empty after a restart until the first answer."""

    objective: float = 0.0
    gap: float = 0.0
    path: str = ""
    warning: str = ""  # why its certificate is weaker than promised
    failure: str = ""  # of the last request, if an older allocation is in force because of it


class JobHistory:
    """Columns and histories by serial, and serials by (owner, name)."""

    def __init__(self) -> None:
        self.ids = Identities()
        self._started_s: Floats = np.full(64, np.nan)
        self._ended_s: Floats = np.full(64, np.nan)
        self._starts: Ints = np.zeros(64, dtype=np.int64)
        self._history: list[tuple[HistoryEntry, ...]] = []  # tuples never change: a snapshot copies the list only
        self._notes: dict[int, str] = {}  # last note of each job that has one
        self._named: dict[tuple[str, str], int] = {}  # newest serial of a name
        self.agents: dict[str, str] = {}  # identity of the agent of each node that has one and is not lost
        self.lost_s: dict[str, float] = {}  # since when nodes are lost
        self.policy: PolicyChanged | None = None  # in force; None = never changed
        self.answer = PolicyAnswer()
        self.notices: deque[Notice] = deque(maxlen=NOTICES_MAX)  # oldest first
        self.usage = UsageBook()
        self.shadow_prices = ShadowPrices()

    # Queries ------------------------------------------------------------------------------------------------------

    def started_s(self, job: int) -> float:
        """When it first started; NaN = not yet."""
        return float(self._started_s[self.ids.row(job)])

    def ended_s(self, job: int) -> float:
        """When it ended; NaN = not yet."""
        return float(self._ended_s[self.ids.row(job)])

    def times(self, jobs: Ints) -> tuple[Floats, Floats, Ints]:
        """`started_s`, `ended_s` and `starts` of these jobs, (K,) each."""
        rows = self.ids.rows(jobs)
        return self._started_s[rows], self._ended_s[rows], self._starts[rows]

    def ended_since(self, jobs: Ints, since_s: float) -> Bools:
        """Whether each of these jobs ended at or after a time, (K,)."""
        ended: Bools = self._ended_s[self.ids.rows(jobs)] >= since_s  # NaN, not yet, is not
        return ended

    def ended_by(self, until_s: float) -> Ints:
        """The jobs that ended at or before a time, ascending."""
        return self.ids.of_rows(np.flatnonzero(self._ended_s[: len(self._history)] <= until_s))

    def starts(self, job: int) -> int:
        """Number of leases under which it has run."""
        return int(self._starts[self.ids.row(job)])

    def detail(self, job: int) -> str:
        """The last note on it; empty = none."""
        return self._notes.get(job, "")

    def entries(self, job: int) -> tuple[HistoryEntry, ...]:
        """The newest entries, oldest first."""
        return self._history[self.ids.row(job)]

    def newest(self, owner: str, name: str) -> int:
        """Serial of the newest job of this name; -1 = there is none."""
        return self._named.get((owner, name), -1)

    # Updates ------------------------------------------------------------------------------------------------------

    def apply(self, event: Event, now_s: float, core: SchedulerCore) -> None:
        """Records an event after the core has handled it."""
        if isinstance(event, LeaseStarted | LeaseEnded) and not self.ids.has(event.jobs).all():
            translated, _ = to_rows(self.ids, event)  # without jobs that have left
            if not isinstance(translated, LeaseStarted | LeaseEnded):
                return
            event = replace(translated, jobs=self.ids.of_rows(translated.jobs))
        match event:
            case JobSubmitted():
                self._submitted(core, now_s)
            case LeaseStarted():
                self._lease_started(event, now_s, core)
                self.usage.started(event, core, now_s)
            case LeaseEnded():
                self._lease_ended(event, now_s, core)
                self.usage.ended(event, now_s, core)
            case PriceChanged():
                self.usage.priced(event.gpu_type, event.price_usd_per_gpu_h, now_s)
            case JobsArchived():
                self._archived(event)
            case JobCancelled() if self._is_unended(event.job):
                self._ended_s[self.ids.row(event.job)] = now_s
                self._add(event.job, HistoryEntry(now_s, "cancelled"))
                self.notices.extend(notice_of_cancelled(core, event.job, now_s))
            case JobsRequeued():
                for job in self._unended(event.jobs):
                    self._add(job, HistoryEntry(now_s, "requeued"))
            case PriorityChanged():
                for job in self._unended(event.jobs):
                    self._add(job, HistoryEntry(now_s, "priority changed", text=f"to {event.priority or NORMAL}"))
            case JobsHeld() | JobsReleased():
                kind, who = ("held" if isinstance(event, JobsHeld) else "released"), "by an admin" * event.by_admin
                for job in self._unended(event.jobs):
                    self._add(job, HistoryEntry(now_s, kind, text=who))
            case JobAnnotated() if self.ids.row(event.job) != GONE:
                self._notes[event.job] = event.text
                self._add(event.job, HistoryEntry(now_s, "noted", event.lease, 0.0, event.text))
            case GpuMemoryMeasured():
                self._memory_used(event, core, now_s)
            case IdsReserved():
                self._skipped(event, now_s)
            case NodeJoined() if event.state_id:
                self.agents[event.node_id] = event.state_id
            case NodeLost() if not event.is_forgotten and is_keyed(self.agents.get(event.node_id, "")):
                pass  # the node's name stays bound to its key
            case NodeJoined() | NodeLost():
                self.agents.pop(event.node_id, None)
            case PolicyChanged():
                self.policy = event
            case AllocationSolved():
                self._solved(event, core, now_s)
            case AllocationFailed():
                self.answer = replace(self.answer, failure=event.detail)
            case _:
                pass
        if isinstance(event, NodeLost):
            self.lost_s.setdefault(event.node_id, now_s)
        elif isinstance(event, NodeJoined):
            self.lost_s.pop(event.node_id, None)
        if core.unmet_jobs:
            self._unmet(core, now_s)

    def _solved(self, event: AllocationSolved, core: SchedulerCore, now_s: float) -> None:
        self.answer = PolicyAnswer(event.objective, event.gap, event.path, event.warning)
        policy = "" if self.policy is None else self.policy.policy
        self.shadow_prices.solved(event, core.pool.gpu_types, policy, now_s)

    def _unmet(self, core: SchedulerCore, now_s: float) -> None:
        """Records jobs that were cancelled as one that they come after did not finish, or that their apps ended."""
        for job, other in core.unmet_jobs:
            jobs = core.jobs.by_serial
            if job == other:
                self._ended_early(job, now_s, jobs.apps.ended[jobs.ids.row(job)])
                continue
            name = name_of(jobs.specs[other].id)
            how = "failed" if jobs.state[other] == JobState.FAILED else "was cancelled"
            self._ended_early(job, now_s, f"it can never start: job {other} ({name}), which it comes after, {how}")

    def _ended_early(self, job: int, now_s: float, text: str) -> None:
        self._ended_s[self.ids.row(job)], self._notes[job] = now_s, text
        self._add(job, HistoryEntry(now_s, "cancelled", text=text))

    def _submitted(self, core: SchedulerCore, now_s: float) -> None:
        spec = core.jobs.specs[len(self._history)]
        self._named[spec.owner, name_of(spec.id)] = self._begun(HistoryEntry(now_s, "submitted"))

    def _memory_used(self, event: GpuMemoryMeasured, core: SchedulerCore, now_s: float) -> None:
        """Records once that a job uses more GPU memory than its owner declared."""
        for job, lease, gib in zip(event.jobs.tolist(), event.leases.tolist(), event.peak_gib.tolist(), strict=True):
            row = core.jobs.ids.row(job)
            declared = core.jobs.specs[row].gpu_memory_gib if row != GONE else 0.0
            is_told = any(entry.kind == OVER_MEMORY for entry in self.entries(job)) if row != GONE else True
            if 0 < declared < gib and not is_told:
                text = gpu_memory.in_words(declared, gib)
                logger.warning("a job uses more GPU memory than it declared", extra={"job_id": job, "detail": text})
                self._add(job, HistoryEntry(now_s, OVER_MEMORY, lease, 0.0, text))

    def _skipped(self, event: IdsReserved, now_s: float) -> None:
        for _ in range(self.ids.next_serial, event.jobs):
            job = self._begun(HistoryEntry(now_s, "noted", text=event.text))
            self._notes[job] = event.text
            self._ended_s[self.ids.row(job)] = now_s

    def _archived(self, event: JobsArchived) -> None:
        """Forgets jobs that have left, and the usage of past hours."""
        self.lost_s = {node: lost_s for node, lost_s in self.lost_s.items() if node not in event.nodes}
        gone = set(event.jobs.tolist())
        self.usage.archived(gone, event.usage_before_s)
        stays = np.ones(len(self._history), dtype=np.bool_)
        rows = self.ids.rows(event.jobs)
        stays[rows[rows != GONE]] = False
        kept = np.flatnonzero(stays)
        for name in ("_started_s", "_ended_s", "_starts"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column[kept], np.full(max(64, len(kept)), column.dtype.type(0))]))
        self._started_s[len(kept) :] = self._ended_s[len(kept) :] = np.nan
        self._history = [self._history[row] for row in kept.tolist()]
        self._notes = {job: text for job, text in self._notes.items() if job not in gone}
        self._named = {named: job for named, job in self._named.items() if job not in gone}
        self.notices = deque((notice for notice in self.notices if notice.job not in gone), maxlen=NOTICES_MAX)
        if len(event.jobs):
            self.ids.keep(kept)

    def _is_unended(self, job: int) -> bool:
        row = self.ids.row(job)
        return row != GONE and bool(np.isnan(self._ended_s[row]))

    def _unended(self, jobs: Ints) -> list[int]:
        return [job for job in jobs.tolist() if self._is_unended(job)]

    def _begun(self, happened: HistoryEntry) -> int:
        """A row for a new job; its serial."""
        if len(self._history) == len(self._starts):
            self._grow()
        self._history.append((happened,))
        return self.ids.add()

    def _lease_started(self, event: LeaseStarted, now_s: float, core: SchedulerCore) -> None:
        rows = self.ids.rows(event.jobs)
        self._starts[rows] += 1
        self._started_s[rows] = np.where(np.isnan(self._started_s[rows]), now_s, self._started_s[rows])
        is_sized = core.jobs.smallest[core.jobs.ids.rows(event.jobs)] > 0
        gpus = np.where(is_sized, np.diff(event.gpu_offsets), 0).tolist()  # shown where they vary
        for job, lease, count in zip(event.jobs.tolist(), event.leases.tolist(), gpus, strict=True):
            text = f"{count} GPU{'s' * (count > 1)}" if count else ""
            self._add(job, HistoryEntry(now_s, "started", lease, text=text))

    def _lease_ended(self, event: LeaseEnded, now_s: float, core: SchedulerCore) -> None:
        jobs, rows = core.jobs.by_serial, self.ids.rows(event.jobs)
        over = event.jobs[(jobs.state[event.jobs] > ALIVE[-1]) & np.isnan(self._ended_s[rows])]
        self._ended_s[self.ids.rows(over)] = now_s
        self.notices.extend(notices_of_ended(core, event, now_s, set(over.tolist())))
        kind = Outcome(event.outcome).name.lower()
        ended = zip(event.jobs.tolist(), event.leases.tolist(), event.steps_done.tolist(), strict=True)
        for job, lease, steps in ended:
            taker = int(jobs.taken_by[job]) if kind == "stopped" else -1
            text = f"preempted by {in_words(core.jobs, core.settings, taker)}" if taker >= 0 else ""
            self._add(job, HistoryEntry(now_s, kind, lease, steps, text))

    def _add(self, job: int, happened: HistoryEntry) -> None:
        row = self.ids.row(job)
        self._history[row] = (*self._history[row][1 - HISTORY_MAX :], happened)

    def _grow(self) -> None:
        count = len(self._starts)
        self._started_s = np.concatenate([self._started_s, np.full(count, np.nan)])
        self._ended_s = np.concatenate([self._ended_s, np.full(count, np.nan)])
        self._starts = np.concatenate([self._starts, np.zeros(count, dtype=np.int64)])

    # Snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Plain values and copies of arrays."""
        n = len(self._history)
        return {
            "started_s": self._started_s[:n].copy(),
            "ended_s": self._ended_s[:n].copy(),
            "starts": self._starts[:n].copy(),
            "history": self._history.copy(),
            "notes": {str(job): text for job, text in self._notes.items()},
            "agents": dict(self.agents),
            "lost_s": dict(self.lost_s),
            "notices": [list(notice) for notice in self.notices],
            "usage": self.usage.snapshot(),
            "shadow_prices": self.shadow_prices.snapshot(),
            "policy": None if self.policy is None else [self.policy.policy, self.policy.parameters, self.policy.blind],
        }

    @classmethod
    def restore(cls, state: dict[str, Any], core: SchedulerCore) -> JobHistory:
        """The history in a snapshot; raises JournalCorrupt."""
        history = cls()
        try:
            n = len(state["starts"])
            while len(history._starts) < n:
                history._grow()
            history._started_s[:n], history._ended_s[:n] = state["started_s"], state["ended_s"]
            history._starts[:n] = state["starts"]
            history._history = [tuple(map(HistoryEntry._make, line[-HISTORY_MAX:])) for line in state["history"]]
            history._notes = {int(job): text for job, text in state["notes"].items()}
            history.notices.extend(Notice(*notice) for notice in state.get("notices", ()))
            history.agents = dict(state.get("agents", {}))  # an earlier version had none
            lost = [
                str(node) for node, row in core.pool.node_row.items() if core.pool.node_state[row] is NodeState.LOST
            ]
            history.lost_s = dict.fromkeys(lost, core.now_s) | dict(state.get("lost_s", {}))
            history.usage = UsageBook.restore(state.get("usage"), core)
            history.shadow_prices = ShadowPrices.restore(state.get("shadow_prices"))
            history.policy = None if state["policy"] is None else PolicyChanged(*state["policy"])
        except (LookupError, TypeError, ValueError) as error:
            raise JournalCorrupt(f"job history of the snapshot is corrupt: {error!r}") from None
        if not n == len(history._history) == core.jobs.count:
            raise JournalCorrupt(f"job history of the snapshot has {n} jobs, its core {core.jobs.count}")
        history.ids.next_serial = n
        if not core.jobs.ids.is_plain:
            history.ids.restore(core.jobs.ids.serials, core.jobs.ids.next_serial)
        serials = history.ids.serials.tolist()
        history._named = {
            (spec.owner, name_of(spec.id)): job for job, spec in zip(serials, core.jobs.specs, strict=True)
        }
        return history
