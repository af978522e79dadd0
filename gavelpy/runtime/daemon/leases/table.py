"""The lease table: splits leases into parts by node, makes orders for nodes, and turns their reports into events.

In the core a lease is one object; a gang's lease has a part on each of its nodes. A lease has started when all its
parts run. It has ended when all parts have ended: a node reported it, a node died, or the lease has expired, with grace
and margin.

A granted lease waits until older leases of the same job or on the same GPUs have ended, but not for the lease of a job
that is co-located with it. A gang is prepared on all nodes before it starts on any. Orders and reports are complete
states, so lost or repeated messages do no harm.

No clock, no I/O: time is an argument, and the nodes with new orders are in `changed`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from gavelpy.mechanism.commands import RoundPlan
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    Event,
    FailureClass,
    LeaseEnded,
    Outcome,
)
from gavelpy.mechanism.lifecycle import JobState, Resumes
from gavelpy.mechanism.non_preemptible import is_preemptible
from gavelpy.model.arrays import Ints
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.leases.events import LateEnds, LeaseEvents
from gavelpy.runtime.daemon.leases.lease import (
    Lease,
    Order,
    Part,
    PartReport,
    Patience,
    Phase,
    Wish,
    has_run,
    is_adopted,
    is_done,
    lease_of,
    partner_of,
    start_of,
)

WHOLE = ""  # in place of a node: all parts of a lease


class LeaseTable:
    """All leases without an end in the journal."""

    def __init__(
        self, core: SchedulerCore, patience: Patience, count_starts: Callable[[int], int] = lambda _: 0
    ) -> None:
        self.core = core  # read only
        self.patience = patience
        self.count_starts = count_starts  # number of leases under which a job has run
        self.runs_until_s: Callable[[NodeId, float, float], float] = lambda _, promised_s, __: (
            promised_s
        )  # if unreachable
        self.leases: dict[int, Lease] = {}
        self.late = LateEnds(core)
        self.changed: set[NodeId] = set()  # nodes with new orders; the sender clears it
        self._on_node: defaultdict[NodeId, set[int]] = defaultdict(set)
        self._of_job: defaultdict[int, set[int]] = defaultdict(set)
        self._waiting: defaultdict[tuple[int, str], set[int]] = defaultdict(set)  # leases that wait for an end
        self._strays: dict[NodeId, list[int]] = {}  # ended leases that nodes still report
        self._events = LeaseEvents(self.leases)

    # Commands of the core -----------------------------------------------------------------------------------------

    def plan(self, plan: RoundPlan) -> None:
        """Extends, revokes and grants the leases of a plan."""
        for number, overlap_s in zip(plan.extend_leases.tolist(), self._overlaps_s(plan.extend_jobs), strict=True):
            self._extend(number, plan.until_s + overlap_s)
        for number in plan.revoke_leases.tolist():
            self._wish(number, Wish.STOP)
        offsets, gpus = plan.grant_gpu_offsets.tolist(), plan.grant_gpus
        overlaps_s = self._overlaps_s(plan.grant_jobs)
        granted = zip(plan.grant_jobs.tolist(), plan.grant_leases.tolist(), overlaps_s, strict=True)
        for k, (job, number, overlap_s) in enumerate(granted):
            lease = self._add(number, job, gpus[offsets[k] : offsets[k + 1]], plan.until_s + overlap_s, plan.round)
            self._hold(lease)
            if not lease.is_held:
                self._release(lease)

    def kill(self, lease: int) -> None:
        """Ends a lease at once."""
        self._wish(lease, Wish.KILL)

    def applied(self, event: LeaseEnded) -> None:
        """The core has applied the end of leases: leases that waited for it may start."""
        for number in event.leases.tolist():
            lease = self.leases.get(number)
            if lease is not None and lease.is_end_reported:
                self._remove(lease)
                self.late.ended(lease)

    def rebuild(self, slack_s: float = 0.0) -> None:
        """Restores the leases of a restarted core. `slack_s`: possible error of the clock after the restart."""
        jobs, round = self.core.jobs.by_serial, self.core.round
        self.late.rebuild()
        for job in jobs.with_stopping.tolist():
            until_s = float(jobs.stopping_until_s[job]) + self._overlaps_s(np.array([job]))[0]
            number, left = int(jobs.stopping[job]), jobs.gpus_stopping(job)
            lease = self._add(number, job, jobs.lost_leases.get(job, {}).get(number, left), until_s, round)
            lease.wish = Wish.STOP
            self._restored(lease, slack_s, is_seen=True)
            on = {self.core.pool.node_ids[row] for row in self.core.pool.node_of[left].tolist()}
            for part in [part for part in lease.parts.values() if part.node not in on]:
                self._lose(lease, part, self.core.now_s, f"node {part.node} was lost")
            self._check_end(lease)  # if none of its GPUs is left
        for job in jobs.leased.tolist():
            gpus = jobs.gpus_held(job)
            until_s = float(jobs.until_s[job]) + self._overlaps_s(np.array([job]))[0]
            lease = self._add(int(jobs.lease[job]), job, gpus, until_s, round)
            lease.is_started = bool(jobs.state[job] == JobState.RUNNING)
            lease.wish = Wish.RUN if lease.is_started else lease.wish
            self._hold(lease)
            self._restored(lease, slack_s, is_seen=lease.is_started)

    # Reports of nodes ---------------------------------------------------------------------------------------------

    def reported(
        self, node: NodeId, reports: Sequence[PartReport], now_s: float, *, is_confirmed_dead: bool = False
    ) -> None:
        """Processes a node's report of all its leases. `is_confirmed_dead`: unreported leases have no processes."""
        strays = []
        reported = set()
        for report in reports:
            lease = self.leases.get(report.lease)
            part = lease.parts.get(node) if lease is not None and lease.job == report.job else None
            if lease is None or part is None:
                if report.phase is Phase.ENDED and not self.late.reported(node, report):
                    strays.append(report.lease)
                continue
            reported.add(report.lease)
            if part.end is None:
                self._update(lease, part, report, now_s)
            elif part.is_inferred and report.phase is Phase.ENDED:  # the node's record takes precedence
                part.report = part.end = report
                part.is_inferred = False
                self._events.advance(lease, self.core.jobs.by_serial, now_s)
        self._strays[node] = strays  # the next orders contain them, to be forgotten
        for number in self._on_node[node] - reported:
            self._missing(self.leases[number], node, now_s, is_confirmed_dead)

    def recorded(self, node: NodeId, ends: Sequence[PartReport], now_s: float) -> None:
        """Processes ends of leases from the records on a node's disk."""
        for report in ends:
            lease = self.leases[report.lease]
            part = lease.parts[node]
            if part.end is None:
                self._update(lease, part, report, now_s)

    def lost(self, node: NodeId, now_s: float, why: str) -> None:
        """Ends the leases of a node where no process runs any more."""
        for number in sorted(self._on_node[node]):
            lease = self.leases[number]
            if lease.is_sent:
                self._lose(lease, lease.parts[node], now_s, why)
            else:
                self._wish(number, Wish.KILL)

    def expire(self, now_s: float, silent: Collection[NodeId]) -> None:
        """Ends expired leases on unreachable nodes, and stops gangs in which a part has finished long ago."""
        self.late.sweep()
        for node in silent:
            for number in sorted(self._on_node.get(node, ())):
                lease = self.leases[number]
                over_s = self.patience.surely_over_s(self.runs_until_s(node, lease.promised_s, now_s))
                if now_s >= over_s and lease.is_sent:
                    self._lose(lease, lease.parts[node], now_s, f"node {node} is unreachable and its lease has expired")
        for lease in [lease for lease in self.leases.values() if now_s >= lease.linger_s]:
            lease.linger_s = math.inf
            self._wish(lease.lease, Wish.STOP)

    def rejoined(self, node: NodeId) -> AgentRejoined:
        """The leases that the core keeps on a node that reconnects. Ends of leases must be drained before this."""
        here = [self.leases[number] for number in sorted(self._on_node[node])]
        held = [lease for lease in here if is_adopted(lease, lease.parts[node])]
        return AgentRejoined(
            node,
            np.array([lease.job for lease in held], dtype=np.int64),
            np.array([lease.lease for lease in held], dtype=np.int64),
            np.array([lease.steps_done for lease in held], dtype=np.float64),
        )

    # Orders to nodes ----------------------------------------------------------------------------------------------

    def orders(self, node: NodeId) -> list[Order]:
        """All leases that a node must run, stop or kill. They count as sent from now on."""
        orders = []
        for number in sorted(self._on_node[node]):
            lease = self.leases[number]
            part = lease.parts[node]
            if lease.is_held and lease.wish <= Wish.RUN:
                continue
            part.is_sent = True
            saved = float(self.core.jobs.by_serial.steps_saved[lease.job])
            is_to_start = part.phase < Phase.STARTING and lease.wish <= Wish.RUN
            start = start_of(self.core, lease, part) if is_to_start else None
            withdraw = not lease.is_started and lease.wish <= Wish.RUN and self._is_withdrawn(lease.job, node)
            orders.append(Order(number, lease.job, lease.until_s, lease.wish, saved, start, withdraw))
        return orders

    def forgotten(self, node: NodeId) -> Sequence[int]:
        """Leases that the node still reports and that have an end in the journal."""
        return self._strays.get(node, ())

    @property
    def jobs(self) -> list[int]:
        """Jobs with leases here, also with lost ones that may still end."""
        return [*self._of_job, *self.late.jobs]

    # Events for the core ------------------------------------------------------------------------------------------

    def drain(self) -> list[Event]:
        """Starts, checkpoints and ends since the last call."""
        return self._events.drain(self.late.drain(), self.core.jobs.by_serial)

    @property
    def has_events(self) -> bool:
        """Whether `drain` would return events."""
        return self._events.has_events or self.late.has_events

    def progress(self) -> list[Event]:
        """Progress and metrics of running leases since the last call."""
        return self._events.progress()

    def on_node(self, node: NodeId) -> list[Lease]:
        """Leases with a part on a node, if the part has not ended."""
        return [self.leases[number] for number in sorted(self._on_node.get(node, ()))]

    def are_on(self, node: NodeId) -> bool:
        """Whether `on_node` would return any."""
        return bool(self._on_node.get(node))

    # Helpers ------------------------------------------------------------------------------------------------------

    def _add(self, number: int, job: int, gpus: Ints, until_s: float, round: int) -> Lease:
        lease = lease_of(self.core, number, job, gpus, until_s, round)
        lease.restart_count = self.count_starts(job)
        self.leases[number] = lease
        self._of_job[job].add(number)
        for node in lease.parts:
            self._on_node[node].add(number)
        return lease

    def _overlaps_s(self, jobs: Ints) -> list[float]:
        """How long a lease of each job outlasts its round."""
        if not self.core.settings.keep_unsaved:
            return [self.patience.overlap_s] * len(jobs)
        is_at_a_loss = ~is_preemptible(self.core.jobs.by_serial, jobs)
        found: list[float] = np.where(is_at_a_loss, self.patience.unsaved_overlap_s, self.patience.overlap_s).tolist()
        return found

    def _is_withdrawn(self, job: int, node: NodeId) -> bool:
        """Whether no plan revokes a lease of a job on a node that can start none: only the node can end it safely."""
        row = self.core.pool.node_row.get(node)
        return (
            row is not None
            and bool(self.core.pool.node_unhealthy[row])
            and bool((self.core.jobs.ids.of_rows(self.core.exempt.jobs) == job).any())
        )

    def _hold(self, lease: Lease) -> None:
        """Finds the older leases that a new lease must wait for: on its GPUs, all but that of a co-located job."""
        _, beside = partner_of(self.core, lease.job, lease.lease)
        for older in self._of_job[lease.job] - {lease.lease}:
            lease.waits.add((older, WHOLE))
        for part in lease.parts.values():
            for number in self._on_node[part.node] - {lease.lease, beside}:
                if not set(part.gpus).isdisjoint(self.leases[number].parts[part.node].gpus):
                    lease.waits.add((number, part.node))
        for token in lease.waits:
            self._waiting[token].add(lease.lease)

    def _release(self, lease: Lease) -> None:
        """The lease may start: decides now for all its nodes where the job resumes."""
        jobs = self.core.jobs.by_serial
        lease.resume_lease = int(jobs.saved_lease[lease.job])
        lease.resume_steps = float(jobs.steps_saved[lease.job])
        lease.steps_saved = lease.steps_done = lease.resume_steps
        self.changed.update(lease.parts)

    def _restored(self, lease: Lease, slack_s: float, *, is_seen: bool) -> None:
        longest_s = max(self.patience.unsaved_overlap_s, self.patience.overlap_s)  # the job may have saved since
        lease.promised_s += slack_s + longest_s - self._overlaps_s(np.array([lease.job]))[0]
        for part in lease.parts.values():  # even if it waits: the wait may have ended before the restart
            part.is_sent, part.is_seen = True, is_seen
        if not lease.is_held:
            self._release(lease)

    def _extend(self, number: int, until_s: float) -> None:
        lease = self.leases.get(number)
        if lease is not None and lease.until_s != until_s:
            lease.until_s = until_s
            lease.promised_s = max(lease.promised_s, until_s)
            self.changed.update(lease.parts)

    def _wish(self, number: int, wish: Wish) -> None:
        """Stops or kills a lease; a lease that was not sent ends at once."""
        lease = self.leases.get(number)
        if lease is None or lease.wish >= wish:
            return
        lease.wish = wish
        if wish is Wish.STOP and lease.is_started:
            lease.turn.stopping(self.core.now_s)
        if lease.is_sent:
            self.changed.update(lease.parts)
            return
        for part in list(lease.parts.values()):
            self._end_part(lease, part, PartReport(number, lease.job, Phase.ENDED, outcome=Outcome.STOPPED), math.inf)

    def _update(self, lease: Lease, part: Part, report: PartReport, now_s: float) -> None:
        part.is_seen = part.is_sent = True
        part.report = report
        if lease.wish is not Wish.KILL:
            self._events.advance(lease, self.core.jobs.by_serial, now_s)
        if not lease.is_done_reported and self.core.settings.finish_grace_s and is_done(lease):
            lease.is_done_reported = True
            self._events.done.append(lease.lease)
        if report.phase is Phase.ENDED:
            self._end_part(lease, part, report, now_s)
        if lease.wish is Wish.PREPARE and lease.is_prepared:
            lease.wish = Wish.RUN
            self.changed.update(lease.parts)
        if not lease.is_started and all(p.phase >= Phase.RUNNING for p in lease.parts.values()) and has_run(lease):
            lease.has_started(now_s)
            self._events.started.append(lease.lease)
        if report.saves_at_end and lease.is_started and not lease.is_declared:
            lease.is_declared = True
            if self.core.jobs.by_serial.resumes[lease.job] == Resumes.UNKNOWN:
                self._events.declared.add(lease.lease)

    def _missing(self, lease: Lease, node: NodeId, now_s: float, is_confirmed_dead: bool) -> None:
        """A node does not report a lease."""
        part = lease.parts[node]
        if is_confirmed_dead and part.is_sent:
            self._lose(lease, part, now_s, f"node {node} lost it")
        elif part.is_seen:
            self._wish(lease.lease, Wish.KILL)  # the node has forgotten it, and answers with the end

    def _lose(self, lease: Lease, part: Part, now_s: float, why: str) -> None:
        steps = part.report.steps_done if part.report else 0.0
        report = PartReport(lease.lease, lease.job, Phase.ENDED, steps, outcome=Outcome.LOST, detail=why)
        if part.report is not None:
            report = replace(report, steps_saved=part.report.steps_saved, is_by_time=part.report.is_by_time)
        part.is_inferred = True
        self._end_part(lease, part, report, now_s)

    def _end_part(self, lease: Lease, part: Part, report: PartReport, now_s: float) -> None:
        part.report = part.end = report
        if report.outcome is Outcome.STOPPED and lease.is_started:
            self._events.stopped(lease, now_s)
        self._on_node[part.node].discard(lease.lease)
        self._satisfy((lease.lease, part.node))
        if self._check_end(lease):
            return
        if report.failure is FailureClass.TIME_LIMIT:  # the other parts reach theirs now, and save
            self._wish(lease.lease, Wish.STOP)
        elif report.outcome in (Outcome.FAILED, Outcome.LOST):
            self._wish(lease.lease, Wish.KILL)
        elif report.outcome is Outcome.STOPPED:
            self._wish(lease.lease, Wish.STOP)
        else:
            lease.linger_s = min(lease.linger_s, now_s + max(self.patience.grace_s, self.core.settings.finish_grace_s))

    def _check_end(self, lease: Lease) -> bool:
        """Whether all parts have ended; records the end once."""
        is_over = all(part.end is not None for part in lease.parts.values())
        if is_over and not lease.is_end_reported:
            lease.is_end_reported = True
            self._events.ended.append(lease.lease)
        return is_over

    def _remove(self, lease: Lease) -> None:
        del self.leases[lease.lease]
        self._of_job[lease.job].discard(lease.lease)
        if not self._of_job[lease.job]:
            del self._of_job[lease.job]
        for token in lease.waits:
            self._waiting[token].discard(lease.lease)
        self._satisfy((lease.lease, WHOLE))

    def _satisfy(self, token: tuple[int, str]) -> None:
        for number in sorted(self._waiting.pop(token, ())):
            lease = self.leases[number]
            lease.waits.discard(token)
            if not lease.is_held and lease.wish <= Wish.RUN:
                self._release(lease)
