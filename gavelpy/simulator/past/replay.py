"""Simulates a recorded world again: the exogenous events of a journal, under its own or another policy and cluster.

The replay begins with the state of the recorded scheduler, whose leases continue. Orders of users and operators, nodes
and prices come at their recorded times. Starts, progress and ends come from a virtual cluster with the rates, costs and
work that the journal shows. A job that failed in the journal fails when it has done as much work; a job that was
cancelled is cancelled at the same time, if it has not ended before.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.mechanism.commands import Command, EstimateThroughput, SolveAllocation
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationFailed,
    AllocationSolved,
    ConfigChanged,
    Event,
    IdsReserved,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeUnreachable,
    Outcome,
    PolicyChanged,
    SavingDeclared,
    SchedulerRestarted,
    ThroughputEstimated,
    TotalAnnounced,
)
from gavelpy.mechanism.identities import GONE
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.mechanism.snapshot import copied
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobSpec
from gavelpy.model.problem import BlindView
from gavelpy.policies.base import Policy, planned_over_rounds
from gavelpy.policies.refusals import refuse_needs, refuse_sizes
from gavelpy.policies.team_rows import check_counts_teams
from gavelpy.simulator.past.change import Change, changed_nodes, gpu_types_of, policy_of, settings_under
from gavelpy.simulator.past.ledger import Ledger
from gavelpy.simulator.past.work import Noise, Work, rates_of
from gavelpy.simulator.past.world import PastCluster
from gavelpy.simulator.stall import OF_JOB, Stall
from gavelpy.simulator.virtual_scheduler import VirtualScheduler

HORIZON_S = 10 * 365.25 * 86_400.0  # after the last event
INSTANT_S = 1e-4  # reports that come so soon after an answer or a timer came with it, and count first
IDLE_ANSWERS_MAX = 1_000  # in a row, while no job has a lease


@dataclass(frozen=True, eq=False)
class Replayed:
    """What happened in a replay."""

    label: str
    ledger: Ledger  # by row
    work: Work
    end_s: float
    gpu_s_offered: float  # capacity from the start to the last end
    refused: int = 0  # orders that no longer applied
    stalled: str = ""
    failures: tuple[str, ...] = ()  # of allocations


class Replay(VirtualScheduler):
    """One run. Call `run` once."""

    def __init__(
        self, work: Work, change: Change, noise: Noise, progress: Callable[[int, float], None] | None = None
    ) -> None:
        observed = work.observed
        core = copied(observed.core)
        core.jobs.specs = list(core.jobs.specs)
        core.jobs.ids.in_rows = True
        self._policy_event, self._change = observed.policy, change
        policy = policy_of(self._first_policy(work), change)
        super().__init__(core, Engine(policy), max(observed.start_s, core.now_s))
        self.work, self.progress = work, progress
        self.ledger = Ledger()
        self._count, self._serial_after = core.jobs.count, observed.serial_after
        self._row_of = work.row_of
        self._nodes = nodes = changed_nodes(observed, change)
        later = [(s, one) for s, event in observed.inputs if (one := nodes.event(event)) is not None]
        self.inputs = deque(later)
        self._types = gpu_types_of(observed, nodes.first, later)
        self._new_types = [name for name in self._types if name not in observed.gpu_types]
        self.rates = rates_of(work, self._types, noise)
        self._told = rates_of(work, self._types, Noise()).requested if noise.seed else self.rates.requested
        self.cluster = PastCluster(core.pool.type_of.copy(), work, self.rates, noise)
        self._fails = {row for row, one in enumerate(work.seen) if one.end == "failed"}
        self._offered_s, self._offered_since_s, self._idle_answers = 0.0, self.now_s, 0
        self._refused, self._failures, self._unreachable = 0, list[str](), set[str]()
        self._stall = Stall(len(work.serials))
        solve_s = observed.ledger.solve_s
        self._solve_s = deque(solve_s[observed.solved :])
        self._usual_solve_s = float(np.median(solve_s)) if solve_s else 0.0
        self._timers, self._usual_late_s = observed.ledger.timers, observed.ledger.timers.usual_s
        self._declarations: list[tuple[float, int, int]] = []  # that a program saves: time, job and lease
        self._answer: tuple[float, AllocationSolved | AllocationFailed] | None = None  # that comes at this time
        self._begin(policy)

    def _first_policy(self, work: Work) -> PolicyChanged | None:
        """The policy at the start, else the first one that the journal names."""
        named = (event for _, event in work.observed.inputs if isinstance(event, PolicyChanged))
        return work.observed.policy or next(named, None)

    def _begin(self, policy: Policy) -> None:
        core = self.core
        for row in range(core.jobs.count):
            core.jobs.specs[row] = self._with_new_types(row, core.jobs.specs[row])
        self._check(policy)
        self.ledger.adopt(core, self.now_s)
        self.agents = self.cluster
        if core.jobs.count:
            self.cluster.adopt(core.jobs, self.now_s)
            self._continue()
        self.handle(SchedulerRestarted(core.incarnation + 1))  # cancels requests that are in flight
        if core.jobs.count or core.pool.node_ids:
            self.handle(ConfigChanged(settings_under(core.settings, policy, self._change)))
        self._plan(policy, core.settings.round_s, core.settings.move_lag_s)
        for event in self._nodes.first:
            self.handle(event)

    def _continue(self) -> None:
        """Jobs that run when the replay begins have made the steps between two reports that they had made then."""
        observed, jobs = self.work.observed, self.core.jobs
        usual_s = self.work.learned.all_costs.mean().restart_s
        rows = [row for row in jobs.leased.tolist() if jobs.state[row] == JobState.RUNNING]
        leases = [observed.ledger.leases.get(int(jobs.lease[row])) for row in rows]
        known = [(row, lease) for row, lease in zip(rows, leases, strict=True) if lease is not None]
        if known:
            steps = [lease.steps_at(self.now_s, usual_s) for _, lease in known]
            self.cluster.made(np.array([row for row, _ in known]), np.array(steps, dtype=np.float64))

    def _check(self, policy: Policy) -> None:
        specs = self.work.specs
        refuse_needs(policy, specs)
        refuse_sizes(policy, specs)
        if any(team.quota or team.guaranteed for team in self._change.teams or ()):
            check_counts_teams(policy)

    def _plan(self, policy: Policy, round_s: float, move_lag_s: float) -> None:
        """The policy with slack for rounds, starts and lags if it plans with them."""
        turn_s = self.work.learned.all_costs.mean().turn_s
        self.engine.policy = planned_over_rounds(policy, round_s, turn_s, move_lag_s)

    # Time ---------------------------------------------------------------------------------------------------------

    def run(self) -> Replayed:
        """Runs until all jobs are over, or none of them can continue."""
        end_s, stalled = self.work.observed.end_s, ""
        while self.inputs or len(self.core.jobs.active):
            next_s = max(min(self.inputs[0][0] if self.inputs else math.inf, self.next_s), self.core.now_s)
            if math.isinf(next_s) or next_s > end_s + HORIZON_S or self._idle_answers > IDLE_ANSWERS_MAX:
                stalled = "no job that is left can run"
                break
            if self._stall.is_reached(len(self.core.jobs.active)):
                stalled = OF_JOB
                break
            self.now_s = next_s
            while self.inputs and self.inputs[0][0] <= next_s:
                self._input(self.inputs.popleft()[1])
            self.advance()
            if self.progress is not None:
                self.progress(self.core.jobs.count - len(self.core.jobs.active), self.now_s)
        self._count_offered()
        self.ledger.close(self.core, self.now_s)
        return Replayed(
            self._change.label, self.ledger, self.work, self.now_s, self._offered_s, self._refused, stalled,
            tuple(self._failures),
        )  # fmt: skip

    def handle(self, event: Event) -> None:
        """As VirtualScheduler, with what the programs of jobs report when they start, and failures of jobs."""
        if isinstance(event, LeaseEnded) and event.outcome is Outcome.FINISHED and self._fails:
            failed = [row for row in event.jobs.tolist() if row in self._fails]
            if failed:
                self._fail(event, failed[0])
                return
        if isinstance(event, NodeJoined):
            self._count_offered()
        super().handle(event)
        if isinstance(event, LeaseStarted):
            self._declare(event)

    def _fail(self, event: LeaseEnded, row: int) -> None:
        """The job has done what it had done when it failed: it is over, and what comes after it with success is not."""
        assert len(event.jobs) == 1, "jobs finish one by one"
        super().handle(JobCancelled(row))
        super().handle(replace(event, outcome=Outcome.STOPPED))

    def _declare(self, event: LeaseStarted) -> None:
        """Programs declare that they save, and announce their totals, as they did in the journal."""
        rows, leases = event.jobs, event.leases
        for row, lease in zip(rows.tolist(), leases.tolist(), strict=True):
            in_s = self.work.seen[row].declared_in_s
            if not math.isnan(in_s):
                heappush(self._declarations, (self.now_s + in_s, row, lease))
        totals = np.array([self.work.seen[row].total_announced for row in rows.tolist()])
        known = ~np.isnan(totals)
        if known.any():
            super().handle(TotalAnnounced(rows[known], leases[known], totals[known]))

    def observe(self, event: Event) -> None:
        """Answers that failed are kept for a warning."""
        self._stall(event, self.now_s)
        if isinstance(event, AllocationFailed) and event.detail not in self._failures:
            self._failures.append(event.detail)

    def applied(self, event: Event, commands: Sequence[Command]) -> None:
        """The ledger follows."""
        self.ledger.apply(self.core, event, self.now_s, commands)

    # Inputs -------------------------------------------------------------------------------------------------------

    def _input(self, event: Event) -> None:
        found = self._translated(event)
        if found is None:
            return
        try:
            self.handle(found)
        except InvalidInput:  # a job that it names is over by now, or a node of it is absent
            if isinstance(event, JobSubmitted):
                raise
            self._refused += 1

    def _translated(self, event: Event) -> Event | None:
        """The event with rows in place of serials, and as this replay has it; None = it does not happen here."""
        match event:
            case JobSubmitted():
                return JobSubmitted(self._with_new_types(self.core.jobs.count, event.spec))
            case JobCancelled():
                row = self._row_of.get(event.job, GONE)
                return JobCancelled(row) if row != GONE and self.core.jobs.state[row] <= LAST_ALIVE else None
            case ConfigChanged():
                return ConfigChanged(settings_under(event.settings, self._policy_in_force(), self._change))
            case PolicyChanged():
                return self._other_policy(event)
            case AgentRejoined():
                return self._rejoined(event)
            case NodeUnreachable():
                self._unreachable.add(event.node_id)
                return event
            case NodeJoined():
                self._unreachable.discard(event.node_id)
                return event
            case IdsReserved():
                rows = self._count + event.jobs - self._serial_after
                return IdsReserved(rows, max(self.core.leases.next_lease, event.leases), event.text)
            case ThroughputEstimated():
                return self._estimated(event)
            case _:
                return self._in_rows(event)

    def _in_rows(self, event: Event) -> Event | None:
        serials = getattr(event, "jobs", None)
        if not isinstance(serials, np.ndarray):
            return event
        rows = np.array([self._row_of.get(job, GONE) for job in serials.tolist()], dtype=np.int64)
        found = replace(event, jobs=rows[rows != GONE])
        return found if (rows != GONE).any() else None

    def _policy_in_force(self) -> Policy:
        return (
            policy_of(self._policy_event, self._change)
            if self._policy_event or self._change.policy
            else self.engine.policy
        )

    def _other_policy(self, event: PolicyChanged) -> PolicyChanged | None:
        self._policy_event = event
        if self._change.policy:
            return None
        policy = policy_of(event, self._change)
        self._check(policy)
        self.engine.blind = BlindView(event.blind) if event.blind else None
        self._plan(policy, self.core.settings.round_s, self.core.settings.move_lag_s)
        return event

    def _rejoined(self, event: AgentRejoined) -> AgentRejoined | None:
        """A node that was unreachable reports the leases that run there in this replay."""
        if event.node_id not in self._unreachable:
            return None
        self._unreachable.discard(event.node_id)
        jobs, here = self.core.jobs, self.core.pool.on(event.node_id)
        running = np.flatnonzero(jobs.state[: jobs.count] == JobState.RUNNING)
        rows, leases = self.cluster.held_on(here, running, self.now_s)
        progress = self.cluster.progress(self.now_s)
        steps = dict(zip(progress.jobs.tolist(), progress.steps_done.tolist(), strict=True)) if progress else {}
        saved = np.maximum(jobs.steps_saved[rows], self.cluster.steps_saved[rows])
        done = np.array([steps.get(row, at) for row, at in zip(rows.tolist(), saved.tolist(), strict=True)])
        return AgentRejoined(event.node_id, rows, leases, done)

    def _estimated(self, event: ThroughputEstimated) -> ThroughputEstimated | None:
        """What the scheduler learned of jobs that are not over; rates on new types are true."""
        found = self._in_rows(event)
        if found is None:
            return None
        assert isinstance(found, ThroughputEstimated)
        is_known = np.array([job in self._row_of for job in event.jobs.tolist()])
        alive = self.core.jobs.state[found.jobs] <= LAST_ALIVE
        if not alive.any() or (event.sizes.size and len(alive) != len(is_known)):
            return None
        rows, rates = found.jobs[alive], event.rates_steps_per_s[is_known][alive]
        sizes = event.sizes[is_known][alive] if len(event.sizes) else event.sizes
        return ThroughputEstimated(rows, self._widened(rows, rates), sizes)

    def _widened(self, rows: Ints, rates: Floats) -> Floats:
        """Rates by the types of the journal, as rates by the types of this core."""
        names, here = self.work.observed.gpu_types, self.core.pool.gpu_types
        column = {name: t for t, name in enumerate(names[: rates.shape[1]])}
        own = [rates[:, column[name]] if name in column else self._told[rows, self._types.index(name)] for name in here]
        return np.column_stack(own)

    def _with_new_types(self, row: int, spec: JobSpec) -> JobSpec:
        """The job as its owner would have submitted it in a cluster with types that the journal does not have."""
        if not self._new_types or not spec.rates_steps_per_s:
            return spec
        rates = self._told[row]
        told = {name: float(rates[self._types.index(name)]) for name in self._new_types if spec.may_run_on(name)}
        return replace(spec, rates_steps_per_s={**told, **spec.rates_steps_per_s})

    # Requests -----------------------------------------------------------------------------------------------------

    def solve_later(self, question: SolveAllocation) -> None:
        """Solves, and keeps the answer for when it comes: allocations take as long as in the journal, one by one."""
        self._idle_answers = 0 if len(self.core.jobs.leased) or self.inputs else self._idle_answers + 1
        taken_s = self._solve_s.popleft() if self._solve_s else self._usual_solve_s
        self._answer = self.now_s + taken_s, self.solve(question)

    def _execute(self, command: Command) -> None:
        if isinstance(command, SolveAllocation):
            self.solve_later(command)
        else:
            super()._execute(command)

    @property
    def next_s(self) -> float:
        """As VirtualScheduler, or when an answer or a declaration comes."""
        answer_s = math.inf if self._answer is None else self._answer[0]
        return min(super().next_s, answer_s, self._declarations[0][0] if self._declarations else math.inf)

    @property
    def wakeup_s(self) -> float:
        """As VirtualScheduler; a timer is as late as the one of the journal, or as late as is usual there."""
        due_s = self.ledger.timers.due_s
        late_s = self._timers.late_s(due_s)
        return due_s + (self._usual_late_s if late_s is None else late_s)

    def advance(self) -> bool:
        """As VirtualScheduler, after an answer and declarations that have come."""
        if self.wakeup_s <= self.now_s or (self._answer is not None and self._answer[0] <= self.now_s):
            until_s = self.now_s + INSTANT_S
            while self.cluster.next_s <= until_s:
                self.now_s = max(self.now_s, self.cluster.next_s)
                for event in self.cluster.pop():
                    self.handle(event)
        if self._answer is not None and self._answer[0] <= self.now_s:
            _, answer = self._answer
            self._answer = None
            self.handle(answer)
        while self._declarations and self._declarations[0][0] <= self.now_s:
            _, row, lease = heappop(self._declarations)
            if self.core.jobs.lease[row] == lease:
                super().handle(SavingDeclared(np.array([row]), np.array([lease])))
        return super().advance()

    def estimate(self, request: EstimateThroughput) -> ThroughputEstimated:
        """The estimate that the scheduler made first, else the rates as they are."""
        first = {row: self.work.seen[row].estimates for row in request.jobs.tolist()}
        rates = np.zeros((len(request.jobs), len(self.core.pool.gpu_types)))
        for k, (row, gpus) in enumerate(zip(request.jobs.tolist(), request.gpus.tolist(), strict=True)):
            recorded = [rates for _, size, rates in first[row] if size in (0, gpus)]
            own = np.array([row])
            if recorded:
                rates[k] = self._widened(own, recorded[0][None, :])[0]
            else:
                told = self.rates.by_size.get(row, {}).get(gpus, self._told[row])
                rates[k] = [told[self._types.index(name)] for name in self.core.pool.gpu_types]
        sizes = request.gpus if request.several else np.zeros(0, dtype=np.int64)
        return ThroughputEstimated(request.jobs, rates, sizes)

    def _count_offered(self) -> None:
        """Adds the GPU time that the cluster offered since the last change of it."""
        count = int(np.count_nonzero(self.core.pool.present))
        self._offered_s += count * (self.now_s - self._offered_since_s)
        self._offered_since_s = self.now_s
