"""The simulation loop: arrivals, the virtual cluster and the core's timer, merged in virtual time.

At one instant: first arrivals, then what the cluster tells, then the wakeup, if one is due. Everything the core is
told also goes to the history, and to a journal if one is wanted. A journal that was cut off can be continued: the
recorded events must then be exactly those that this trace produces, and recorded answers of the policy are taken
instead of solving.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import encode
from gavelpy.journal.history import History
from gavelpy.mechanism.commands import (
    Command,
    EstimateThroughput,
    KillLease,
    QueryAgent,
    Report,
    RoundPlan,
    SolveAllocation,
)
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    NO_INTS,
    AllocationFailed,
    AllocationSolved,
    ConfigChanged,
    Event,
    JobSubmitted,
    NodeJoined,
    PriceChanged,
    WakeupDue,
)
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import reasons
from gavelpy.model.arrays import Bools
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import varies_with_time
from gavelpy.simulator import metrics
from gavelpy.simulator.cluster import VirtualCluster
from gavelpy.simulator.company import Company, company_of
from gavelpy.simulator.estimation import Estimation
from gavelpy.simulator.profiled import with_probes_made
from gavelpy.simulator.result import SimulationResult
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.stall import OF_JOB, Stall

HORIZON_S = 100 * 365.25 * 86400.0
ENDLESS = "still running after 100 years, where simulations end"

Recorded = tuple[float, Event]
Observer = Callable[[Event, float], None]
Progress = Callable[[str, int, int], None]  # label of the run, jobs done, jobs in all


class Simulation:
    """One run of one policy. `run` once."""

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
        estimation: Estimation | None = None,
        throughputs: ThroughputTable | None = None,
    ) -> None:
        self.trace, self.cluster, self.engine, self.settings = trace, cluster, engine, settings
        self.seed, self.label, self.progress = seed, label or engine.policy.name, progress
        self.measured = measured_jobs(trace, window)
        self.rng = np.random.default_rng(seed) if self.label in settings.shuffled else None
        self.core = SchedulerCore()
        self.history = History()
        self.recorded = deque(recorded)
        self.stall = Stall(len(trace))
        self.observers: list[Observer] = [self.history.apply, self.stall, *observers]
        self.reports: list[str] = []
        self.estimation = estimation
        self.throughputs = engine.throughputs if throughputs is None else throughputs  # the true ones
        self.agents: VirtualCluster
        self.event_count = 0

    def run(self) -> SimulationResult:
        """Runs to the last measured job, or until nothing can happen or no job gains a step any more."""
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
        policy, mechanism = self.engine.policy, self.settings.mechanism
        every_s = mechanism.solve_at_least_every_s if varies_with_time(policy) else 0.0
        mechanism = replace(mechanism, fill_leftover=policy.fills_leftover, solve_at_least_every_s=every_s)
        self._tell(ConfigChanged(mechanism), 0.0)
        for server in self.cluster.servers:
            self._tell(NodeJoined(server.node_id, server.gpu_type, server.gpu_count), 0.0)
        for gpu_type, price in zip(self.cluster.gpu_types, self.cluster.prices.tolist(), strict=True):
            if gpu_type in self.core.view().gpu_types:
                self._tell(PriceChanged(gpu_type, price), 0.0)
        jobs, view = self.trace.jobs, self.core.view()
        rates = [[rates.get(t, 0.0) for t in view.gpu_types] for rates in map(self._true_rates, range(len(jobs)))]
        self.agents = VirtualCluster(
            view.gpu_type_of,
            np.array(rates, dtype=np.float64).reshape(len(jobs), len(view.gpu_types)),
            np.array([job.steps_total for job in jobs], dtype=np.float64),
            self.settings.costs,
            whole_steps=self.settings.mechanism.whole_steps,
            company=self._company(view.gpu_types) if self.settings.mechanism.packing else None,
        )

    def _company(self, gpu_types: tuple[str, ...]) -> Company:
        table = self.throughputs
        if table is None or not len(table.pair_rows):
            raise InvalidInput(
                "throughputs must hold rates of pairs for jobs to share GPUs, got "
                + ("none" if table is None else f"a table of {len(table.keys)} job types and no pair")
            )
        return company_of(self.trace, table, gpu_types)

    def _true_rates(self, row: int) -> dict[str, float]:
        job, table = self.trace.jobs[row], self.throughputs
        if job.rates_steps_per_s or table is None:
            return dict(job.rates_steps_per_s)
        return dict(table.rates(job.job_type, job.gpus))

    def _loop(self) -> None:
        core, agents, arrivals = self.core, self.agents, self.trace.arrival_s.tolist()
        next_job, left, total = 0, int(self.measured.sum()), int(self.measured.sum())
        while left:
            arrival_s = arrivals[next_job] if next_job < len(arrivals) else np.inf
            now_s = max(min(arrival_s, agents.next_s, core.wakeup_s), core.now_s)
            if now_s > HORIZON_S or self._is_stalled():
                break  # no job that is left can run, or they run forever, or start forever
            while next_job < len(arrivals) and arrivals[next_job] <= now_s:
                self._submit(next_job, now_s)
                next_job += 1
            if agents.next_s <= now_s:
                self._hear(now_s)
                left = total - self._done()
            if core.wakeup_s <= now_s:
                self._wake(now_s)
            if self.progress is not None:
                self.progress(self.label, total - left, total)

    def _submit(self, row: int, now_s: float) -> None:
        job = self.trace.jobs[row]
        self._tell(JobSubmitted(job if self.estimation is None else self.estimation.as_submitted(row, job)), now_s)

    def _hear(self, now_s: float) -> None:
        while self.agents.next_s <= now_s:
            event = self.agents.pop()
            if event is not None:
                self._tell(event, now_s)

    def _done(self) -> int:
        is_over = self.core.view().is_over
        return int(np.count_nonzero(is_over & self.measured[: len(is_over)]))

    def _is_stalled(self) -> bool:
        return self.stall.lost > 0 and self.stall.is_reached(int(np.count_nonzero(~self.core.view().is_over)))

    def _wake(self, now_s: float) -> None:
        if self.core.needs_progress(now_s):
            progress = self.agents.progress(now_s)
            if progress is not None:
                self._tell(progress, now_s)
        if self.estimation is not None:
            learned = self.estimation.learned(self.core, self.agents, now_s)
            if learned is not None:
                self._tell(learned, now_s)
        order = NO_INTS if self.rng is None else self.rng.permutation(len(self.core.view().gpu_types))
        self._tell(WakeupDue(order), now_s)

    def _tell(self, event: Event, now_s: float) -> None:
        """One event: to the journal first, then applied, then acted upon."""
        if self.recorded:
            self._check_recorded(event, now_s)
        self.event_count += 1
        for observer in self.observers:
            observer(event, now_s)
        for command in self.core.handle(event, now_s):
            self._execute(command, now_s)

    def _execute(self, command: Command, now_s: float) -> None:
        match command:
            case SolveAllocation():
                self._tell(self._answer(command), now_s)
            case RoundPlan():
                self.agents.apply(command, now_s)
            case EstimateThroughput():
                self._tell(self.engine.estimate(command), now_s)
            case KillLease():
                self.agents.kill(command, now_s)
            case Report():
                self.reports.append(f"{command.topic}: {command.text}")
            case QueryAgent():
                raise AssertionError("a simulated scheduler does not restart")
            case _:
                assert_never(command)

    def _answer(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        if self.recorded and isinstance(answer := self.recorded[0][1], AllocationSolved | AllocationFailed):
            return answer
        return self.engine.solve(question)

    def _check_recorded(self, event: Event, now_s: float) -> None:
        recorded_s, recorded = self.recorded.popleft()
        if encode(recorded, recorded_s) != encode(event, now_s):
            raise InvalidInput(
                f"journal must come from this trace, cluster, settings and seed: its event {self.event_count} is "
                f"{type(recorded).__name__} at {recorded_s:g} s, where these give {type(event).__name__} at {now_s:g} s"
            )

    def _result(self, effort: metrics.Effort) -> SimulationResult:
        history = self.history
        running = np.flatnonzero(self.core.view().job_state == JobState.RUNNING).tolist()
        why = {row: reason.text for row, reason in reasons(self.core).items()}
        if self.core.wakeup_s > HORIZON_S:
            why |= dict.fromkeys(running, ENDLESS)
        is_stalled = self._is_stalled()
        if is_stalled:
            why |= dict.fromkeys(np.flatnonzero(self.stall.lost_turns).tolist(), OF_JOB)
        jobs = metrics.jobs_frame(history, self.measured, why)
        return SimulationResult(
            label=self.label,
            metrics=with_probes_made(metrics.metrics(history, jobs, effort), self.engine.profiled, history),
            jobs=jobs,
            leases=metrics.leases_frame(history),
            sharing=metrics.sharing_frame(history),
            shares=metrics.shares_frame(history),
            utilization=metrics.utilization_frame(history),
            parameters=self._parameters(),
            stalled=self.stall.reason(history, self.settings) if is_stalled else "",
        )

    def _parameters(self) -> dict[str, Any]:
        mechanism, costs = self.settings.mechanism, self.settings.costs
        return {
            "round_s": mechanism.round_s,
            "solve_interval_s": mechanism.solve_interval_s,
            "solve_within_round": mechanism.solve_within_round,
            "fill_within_round": mechanism.fill_within_round,
            "priority": str(mechanism.priority),
            "queue": str(mechanism.queue),
            "lag_half_life_s": mechanism.lag_half_life_s,
            "solve_at_least_every_s": mechanism.solve_at_least_every_s,
            "lease_min_s": mechanism.lease_min_s,
            "start_max_s": mechanism.start_max_s,
            "retry_s": mechanism.retry_s,
            "retry_max_s": mechanism.retry_max_s,
            "checkpoint_s": costs.checkpoint_s,
            "restart_s": costs.restart_s,
            "migration_s": costs.migration_s,
            "seed": self.seed,
            **({"packing": True} if mechanism.packing else {}),
        }


def measured_jobs(trace: Trace, window: tuple[int, int] | None) -> Bools:
    """Which jobs count, (J,): those in [window[0], window[1]) by order of arrival, or all."""
    measured = np.ones(len(trace), dtype=np.bool_)
    if window is not None:
        first, last = window
        if not 0 <= first < last <= len(trace):
            raise InvalidInput(f"window must be A:B with 0 <= A < B <= {len(trace)} (the jobs), got {first}:{last}")
        measured[:] = False
        measured[first:last] = True
    return measured
