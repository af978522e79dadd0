"""A simulation of one policy on one trace: arrivals, node events, the virtual cluster and the core's timer.

At one instant, node events come first, then arrivals, events of the virtual cluster, and the wake-up. Every event also
goes to the history, and to a journal if there is one. A truncated journal can be continued: its events must be exactly
those that this trace produces, and its allocations are used instead of solving again.

A run in which all leases are preempted before their first step has stalled: see `Stall`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import encode
from gavelpy.journal.history import History
from gavelpy.mechanism.accept import check_foreign
from gavelpy.mechanism.commands import Command, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    NO_INTS,
    AllocationFailed,
    AllocationSolved,
    ConfigChanged,
    Event,
    JobCancelled,
    JobSubmitted,
    NodeJoined,
    PriceChanged,
    WakeupDue,
)
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.priority_classes import check_known
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.settings import settings_values
from gavelpy.mechanism.teams import check_entities
from gavelpy.model.apps import check_apps
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.places import PLACE_NAMES
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import is_queue
from gavelpy.policies.refusals import refuse_needs
from gavelpy.policies.team_rows import check_counts_teams
from gavelpy.simulator import metrics
from gavelpy.simulator.capacity import CapacityMeter, gpu_hours
from gavelpy.simulator.cluster import VirtualCluster
from gavelpy.simulator.co_location import CoLocation, co_location_of
from gavelpy.simulator.conditions.exogenous import ExogenousEvents, GpuFailed
from gavelpy.simulator.conditions.run import RunConditions
from gavelpy.simulator.conditions.trials import FAILED
from gavelpy.simulator.job_sizes import check_sizes, true_rates_by_size
from gavelpy.simulator.leaving import CANCELLED, OVER_MIN, LeavingJobs
from gavelpy.simulator.metric_reports import MetricReports
from gavelpy.simulator.metrics import SimulationResult, with_probes_made
from gavelpy.simulator.phases import RatePhases
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.stall import OF_JOB, Stall
from gavelpy.simulator.virtual_scheduler import NodeEvent, VirtualScheduler

if TYPE_CHECKING:
    from gavelpy.simulator.estimation import Estimation

IDLE_ANSWERS_MAX = 1000  # answers in a row while nothing runs, by a policy with `again_s`
HORIZON_S = 100 * 365.25 * 86400.0
ENDLESS = "still running after 100 years, where simulations end"
Recorded = tuple[float, Event]
Observer = Callable[[Event, float], None]
Progress = Callable[[str, int, int, float], None]  # label of the run, jobs done, all jobs, virtual time
Stop = Callable[[], bool]  # whether to end now, with partial results
INTERRUPTED = "the run was interrupted"


def never() -> bool:
    """As `Stop`: run to the end."""
    return False


class Simulation(VirtualScheduler):
    """One run of one policy. Call `run` once."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        engine: Engine,
        settings: SimulationSettings,
        *,
        seed: int = 0,
        window: tuple[int, int] | None = None,
        label: str = "",
        recorded: Iterable[Recorded] = (),
        observers: Iterable[Observer] = (),
        progress: Progress | None = None,
        stop: Stop = never,
        estimation: Estimation | None = None,
        throughputs: ThroughputTable | None = None,
        node_events: Iterable[tuple[float, NodeEvent | JobCancelled]] = (),
        over_min: int = OVER_MIN,
    ) -> None:
        check_known(trace.jobs, settings.mechanism)
        check_apps([job.app for job in trace.jobs])
        refuse_needs(engine.policy, trace.jobs)
        if settings.mechanism.teams:
            check_entities(trace.jobs, settings.mechanism)
        check_sizes(trace.jobs, engine.policy, settings.mechanism.rules)
        if settings.mechanism.limits_teams:
            check_counts_teams(engine.policy)
        super().__init__(SchedulerCore(check=check_foreign), engine)
        self.trace, self.cluster, self.settings = trace, cluster, settings
        self.seed, self.label, self.progress = seed, label or engine.policy.name, progress
        self.stop, self.partial = stop, ""
        self.measured = measured_jobs(trace, window)
        self.rng = np.random.default_rng(seed) if self.label in settings.shuffled else None
        self.history = History()
        self.recorded = deque(recorded)
        self.idle_answers = 0  # in a row, while no job had a lease
        self.stall = Stall(len(trace))
        self.leaving = LeavingJobs(self.core, trace.jobs, over_min)
        self.capacity = CapacityMeter(self)
        self.observers: list[Observer] = [self.history.apply, self.stall, self.capacity, *observers]
        self.estimation = estimation
        self.throughputs = engine.throughputs if throughputs is None else throughputs  # true rates
        self.conditions = RunConditions(settings, trace.jobs, cluster, seed, node_events)
        self.answers = self.conditions.answers
        is_by_size = estimation is not None or settings.conditions.latency.solve_per_job_s > 0
        self.in_order = is_queue(engine.policy) and not is_by_size  # nothing follows from the size of a request
        self.event_count = 0
        self._over = self._measured_over = 0  # jobs that are over; the measured ones
        self._measured_before = np.concatenate([[0], np.cumsum(self.measured)])  # (J + 1,) of the first jobs
        self.marginal_values: list[tuple[float, dict[str, float]]] = []  # of each allocation

    def run(self) -> SimulationResult:
        """Runs until all measured jobs are done, no event is left, or no job gains a step any more."""
        wall_s, cpu_s, solve_s = time.perf_counter(), time.process_time(), self.engine.cpu_s
        self._set_up()
        self._loop()
        effort = metrics.Effort(
            rounds=self.core.view().round,
            wall_s=time.perf_counter() - wall_s,
            cpu_s=time.process_time() - cpu_s,
            cpu_solve_s=self.engine.cpu_s - solve_s,
        )
        return self._result(effort)

    def _set_up(self) -> None:
        mechanism = self.settings.for_policy(self.engine.policy).mechanism
        self.handle(ConfigChanged(replace(mechanism, in_order=self.in_order)))
        for node in self.cluster.nodes:
            what = node.node_id, node.gpu_type, node.gpu_count
            place = {name: getattr(node, name) for name in PLACE_NAMES}
            self.handle(NodeJoined(*what, cpus=node.cpus, memory_gib=node.memory_gib, **place))
        for gpu_type, price in zip(self.cluster.gpu_types, self.cluster.prices.tolist(), strict=True):
            if gpu_type in self.core.view().gpu_types:
                self.handle(PriceChanged(gpu_type, price))
        jobs, view = self.trace.jobs, self.core.view()
        rates = [[rates.get(t, 0.0) for t in view.gpu_types] for rates in map(self._true_rates, range(len(jobs)))]
        leases = self.conditions.leases(self.core.pool, self.throughputs)
        self.agents = VirtualCluster(
            view.gpu_type_of,
            np.array(rates, dtype=np.float64).reshape(len(jobs), len(view.gpu_types)),
            np.array([job.steps_total for job in jobs], dtype=np.float64),
            self.settings.costs,
            steps=self.conditions.steps(leases),
            co_location=self._co_location(view.gpu_types) if self.settings.mechanism.packing else None,
            rate_by_size=true_rates_by_size(jobs, self.throughputs, view.gpu_types),
            conditions=leases,
            phases=self._phases(view.gpu_types),
            metrics=self._metric_reports(),
        )

    def _metric_reports(self) -> MetricReports | None:
        jobs, curves = self.trace.jobs, self.trace.curves
        return MetricReports(jobs, curves) if curves or any(job.app for job in jobs) else None

    def _phases(self, gpu_types: tuple[str, ...]) -> RatePhases | None:
        trace, announces = self.trace, self.estimation is None
        return RatePhases(trace.jobs, trace.phases, gpu_types, announces=announces) if trace.phases else None

    def _co_location(self, gpu_types: tuple[str, ...]) -> CoLocation:
        table = self.throughputs
        if table is None or not len(table.pair_rows):
            raise InvalidInput(
                "throughputs must hold rates of pairs for jobs to share GPUs, got "
                + ("none" if table is None else f"a table of {len(table.keys)} job types and no pair")
            )
        return co_location_of(self.trace.jobs, table, gpu_types)

    def _true_rates(self, row: int) -> dict[str, float]:
        job, table = self.trace.jobs[row], self.throughputs
        if job.id in self.trace.phases:
            return dict(self.trace.phases[job.id][0].rates_steps_per_s)
        if job.rates_steps_per_s or table is None:
            return dict(job.rates_steps_per_s)
        return dict(table.rates(job.job_type, job.gpus))

    def _loop(self) -> None:
        core, arrivals, exogenous = self.core, self.trace.arrival_s.tolist(), self.conditions.exogenous
        next_job, left, total = 0, int(self.measured.sum()), int(self.measured.sum())
        while left:
            if self.stop():
                done = f"{total - left:,} of {total:,} jobs done"
                self.partial = f"interrupted at {self.now_s:,.0f} s of virtual time with {done}"
                break
            arrival_s = arrivals[next_job] if next_job < len(arrivals) else np.inf
            event_s, own_s = exogenous.next_s, self.next_s
            now_s = max(min(arrival_s, event_s, own_s), core.now_s)
            is_refused = self.idle_answers >= IDLE_ANSWERS_MAX and arrival_s == event_s == np.inf
            if arrival_s == own_s == np.inf and exogenous.changes_nothing(core):
                break
            if now_s > HORIZON_S or self._is_stalled() or is_refused:
                break  # no job that is left can run, or they run forever, start forever, or are refused forever
            self.now_s = now_s
            if event_s <= now_s:
                self._happened(exogenous)
                left = total - self._done()
            while next_job < len(arrivals) and arrivals[next_job] <= now_s:
                self._submit(next_job)
                next_job += 1
            if self.advance():
                left = total - self._done()
                if (leave := self.leaving.due()) is not None:
                    self.handle(leave)
            if self.progress is not None:
                self.progress(self.label, total - left, total, now_s)

    def _happened(self, exogenous: ExogenousEvents) -> None:
        """Handles the events from outside that are due."""
        assert self.agents is not None, "a run has a cluster"
        while exogenous.next_s <= self.now_s:
            for event in exogenous.pop(self.core):
                if isinstance(event, GpuFailed):
                    gpus = np.flatnonzero(self.core.pool.on(event.node_id))[event.number : event.number + 1]
                    for report in self.agents.fail(gpus, self.now_s):
                        self.handle(report)
                else:
                    self.handle(event)

    def _submit(self, row: int) -> None:
        job = self.trace.jobs[row]
        if self.estimation is None and job.id in self.trace.phases:
            job = job.with_rates(self.trace.phases[job.id][0].rates_steps_per_s)  # later ones are not known yet
        exogenous, known = self.conditions.exogenous, self.trace.jobs[row]
        if exogenous.has_trial(known):
            job = replace(job, hold=True)
        self.handle(JobSubmitted(job if self.estimation is None else self.estimation.as_submitted(row, job)))
        exogenous.submitted(row, self.now_s, known)

    def _done(self) -> int:
        """Measured jobs that are over; counted when their number may have changed."""
        jobs = self.core.jobs
        arrived = jobs.ids.next_serial
        over = arrived - len(jobs.active)
        if over != self._over:
            measured, living = int(self._measured_before.item(arrived)), len(jobs.active)
            if measured < arrived:
                living = int(np.count_nonzero(self.measured[jobs.ids.of_rows(jobs.active)]))
            self._over, self._measured_over = over, measured - living
        return self._measured_over

    def _is_stalled(self) -> bool:
        return self.stall.lost > 0 and self.stall.is_reached(len(self.core.jobs.active))

    def applied(self, event: Event, commands: Sequence[Command]) -> None:
        """Jobs that the core has ended itself are over in the history, too."""
        super().applied(event, commands)
        for row, _ in self.core.unmet_jobs:
            self.history.ended_early(row, self.now_s)

    def before_wakeup(self) -> WakeupDue:
        """Rates that the estimator learned come before the wake-up."""
        if self.estimation is not None and self.agents is not None:
            learned = self.estimation.learned(self.core, self.agents, self.now_s)
            if learned is not None:
                self.handle(learned)
        return WakeupDue(NO_INTS if self.rng is None else self.rng.permutation(len(self.core.view().gpu_types)))

    def observe(self, event: Event) -> None:
        """Every event is compared with the recorded one, if there is one, and passed to the observers."""
        if self.recorded:
            self._check_recorded(event, self.now_s)
        self.event_count += 1
        for observer in self.observers:
            observer(event, self.now_s)

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        """The recorded answer if there is one, else the engine's."""
        if self.recorded and isinstance(answer := self.recorded[0][1], AllocationSolved | AllocationFailed):
            return answer
        self.idle_answers = 0 if len(self.core.jobs.leased) else self.idle_answers + 1
        solved = super().solve(question)
        if isinstance(solved, AllocationSolved) and any(value > 0 for value in self.engine.shadow_prices.values()):
            self.marginal_values.append((self.now_s, self.engine.shadow_prices))
        return solved

    def _check_recorded(self, event: Event, now_s: float) -> None:
        recorded_s, recorded = self.recorded.popleft()
        if encode(recorded, recorded_s) != encode(event, now_s):
            raise InvalidInput(
                f"journal must come from this trace, cluster, settings and seed: its event {self.event_count} is "
                f"{type(recorded).__name__} at {recorded_s:g} s, where these give {type(event).__name__} at {now_s:g} s"
            )

    def _result(self, effort: metrics.Effort) -> SimulationResult:
        history = self.history
        why = dict.fromkeys(range(history.count), INTERRUPTED) if self.partial else self._why_not_finished()
        assert self.agents is not None, "the run has a cluster"
        useful_gpu_s = self.agents.useful.until(self.agents, history.now_s)
        is_stalled = self._is_stalled()
        if is_stalled and not self.partial:
            why |= dict.fromkeys(np.flatnonzero(self.stall.lost_turns).tolist(), OF_JOB)
        return SimulationResult(
            label=self.label,
            metrics=self._metrics(effort, useful_gpu_s),
            history=history,
            measured=self.measured,
            reasons=why,
            allocation_values=self.marginal_values,
            parameters=self._parameters(),
            useful_gpu_s=useful_gpu_s,
            partial=self.partial,
            stalled=self.stall.reason(history, self.settings) if is_stalled else "",
        )

    def _why_not_finished(self) -> dict[int, str]:
        """Why jobs wait, run forever, or are over without having finished."""
        ids, waiting = self.core.jobs.ids, reasons(self.core) if len(self.core.jobs.active) else {}
        why = {ids.serial(row): reason.text for row, reason in waiting.items()}
        why |= self._ends()
        if self.core.wakeup_s > HORIZON_S:
            running = np.flatnonzero(self.core.view().job_state == JobState.RUNNING)
            why |= dict.fromkeys(ids.of_rows(running).tolist(), ENDLESS)
        return why

    def _ends(self) -> dict[int, str]:
        """Why jobs are over that have not finished."""
        why = self.leaving.ends()
        return why | {job: FAILED for job in self.conditions.trials.failed if why.get(job) == CANCELLED}

    def _metrics(self, effort: metrics.Effort, useful_gpu_s: Floats) -> metrics.RunMetrics:
        assert self.agents is not None, "a run has a cluster"
        found = with_probes_made(
            metrics.metrics(self.history, self.measured, effort, useful_gpu_s), self.engine.profiled, self.history
        )
        found = metrics.with_delays(found, self.history, self.measured, self.leaving.delays_s())
        used_gpu_s, trials = self.agents.used_gpu_s(self.history.now_s), self.conditions.trials
        trials_gpu_s = trials.gpu_s(self.history.now_s) if trials.nodes else None
        return replace(found, gpu_hours=gpu_hours(self.history, self.capacity, used_gpu_s, trials_gpu_s))

    def _parameters(self) -> dict[str, Any]:
        mechanism, costs = self.settings.for_policy(self.engine.policy).mechanism, self.settings.costs
        stored = settings_values(mechanism)
        return {
            "round_s": mechanism.round_s,
            "solve_interval_s": mechanism.solve_interval_s,
            "solve_within_round": mechanism.solve_within_round,
            "fill_within_round": mechanism.fill_within_round,
            **{name: str(stored[name]) for name in ("priority", "queue")},
            "lag_half_life_s": mechanism.lag_half_life_s,
            "solve_at_least_every_s": mechanism.solve_at_least_every_s,
            "lease_min_s": mechanism.lease_min_s,
            "start_max_s": mechanism.start_max_s,
            "move_lag_s": mechanism.move_lag_s,
            "retry_s": mechanism.retry_s,
            "retry_max_s": mechanism.retry_max_s,
            "checkpoint_s": costs.checkpoint_s,
            "restart_s": costs.restart_s,
            "migration_s": costs.migration_s,
            **({"conditions": conditions.to_json()} if (conditions := self.settings.conditions).causes else {}),
            "seed": self.seed,
            **({"packing": True} if mechanism.packing else {}),
        }


def measured_jobs(trace: Trace, window: tuple[int, int] | None) -> Bools:
    """Which jobs count, (J,): [window[0], window[1]) in order of arrival, or all."""
    measured = np.ones(len(trace), dtype=np.bool_)
    if window is not None:
        first, last = window
        if not 0 <= first < last <= len(trace):
            raise InvalidInput(f"window must be A:B with 0 <= A < B <= {len(trace)} (the jobs), got {first}:{last}")
        measured[:] = False
        measured[first:last] = True
    return measured
