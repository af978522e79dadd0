"""Shockwave and its baselines on its 120 jobs, whose batch sizes change as they train: the table of its artifact.

The setting is its simulator's: 32 V100s, rounds of 120 s, an allocation every 1,000 s at most, 20 s for each start, and
the rules of the original Gavel, from which it was made. Some of its answers are not those of our policies, because
they depend on more than the policy's formula; the policies below give them:

- its sum of rates counts steps of the current batch size, so a job counts less when its batch grows (`CurrentSteps`);
- its makespan policy states no objective, and its solver returns an interior point (`CentralMakespan`);
- its Gandiva-Fair gives each job the same time, however many GPUs it needs (`EqualTime`).

Its own policy counts progress in whole epochs, and knows which batch sizes a job will have, not when (`ByEpochs`); the
policy `shockwave` as it is, which sees phases when they begin, is in the table, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate, policy_from, ruled
from gavelpy.policies.isolated import lone_configurations
from gavelpy.policies.shockwave import Shockwave
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.simulator.settings import Costs, SimulationSettings, preset
from gavelpy.simulator.simulate import Simulation
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.traces.reader import read_trace
from gavelpy.traces.shockwave import batch_sizes

if TYPE_CHECKING:
    from gavelpy.model.allocation import Allocation
    from gavelpy.model.arrays import Floats, Ints
    from gavelpy.model.job import Trace
    from gavelpy.policies.base import Policy
    from gavelpy.solve.solver import Solver

CLUSTER = "v100:32"
ROUND_S, SOLVE_INTERVAL_S, RESTART_S = 120.0, 1000.0, 20.0
_SAME_EPOCH = 1e-9  # of an epoch
UNFAIR = 1.05  # finish-time fairness above which its authors call a job unfairly treated
MAKESPAN, JCT, WORST, UNFAIR_JOBS = "makespan s", "average JCT s", "worst finish-time fairness", "unfair jobs %"
SEEN = "shockwave, phases seen"  # the policy as it is registered
_SHOCKWAVE = (24197.4, 9958.5, 1.7838, 5.0)
PUBLISHED: Mapping[str, tuple[float, float, float, float]] = {
    "shockwave": _SHOCKWAVE,
    SEEN: _SHOCKWAVE,
    "max_min_fairness": (33207.7, 11274.1, 2.947, 25.0),
    "max_sum_throughput": (31909.0, 9654.7, 4.9758, 25.0),
    "min_makespan": (24204.8, 19806.7, 7.7415, 74.17),
    "finish_time_fairness": (31928.7, 11302.0, 3.4376, 22.5),
    "allox": (32488.6, 9926.3, 4.9635, 27.5),
    "gandiva_fair": (32367.4, 12574.3, 1.8536, 51.67),
}
"""Makespan, average JCT, worst finish-time fairness and unfair jobs, by policy as `gavel simulate` names it.

Source: scheduler/reproduce/pickles/tacc_32gpus of github.com/uw-mad-dash/shockwave, `*_simulation.pickle`.
"""


NOT_IN_PAPER = ("bounded_lag", "bounded_lag:lag=0")  # with an answer in each round, as Shockwave


@dataclass(frozen=True)
class CurrentSteps:
    """Maximise  Σ_j r_j(x) / b_j,  the steps/s of batches as large as they are now.

    r_j(x)     steps/s of job j under shares x, in batches of its first size
    b_j        its batch size, relative to the first one
    """

    batch_scale: Mapping[str, Mapping[float, float]] = field(default_factory=dict)  # by job and its rate in a phase

    name: ClassVar[str] = "max_sum_throughput"
    summary: ClassVar[str] = "Maximise the sum of steps/s, in steps of the current batch size."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False

    @classmethod
    def of(cls, trace: Trace, gpu_type: str) -> CurrentSteps:
        """The policy for jobs with these phases."""
        return cls(
            {
                str(job): {phase.rates_steps_per_s[gpu_type]: phase.batch_scale for phase in phases}
                for job, phases in trace.phases.items()
            }
        )

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the sum."""
        rates = equal_share_rate(problem).tolist()
        scales = [
            self.batch_scale.get(job, {}).get(rate, 1.0) for job, rate in zip(problem.job_ids, rates, strict=True)
        ]
        return solve(problem, MaxSum(1.0 / np.array(scales)), solver)


@dataclass(frozen=True)
class CentralMakespan:
    """The analytic centre of  {x : r_j x_j >= steps_j / T,  Σ_j g_j x_j <= W,  0 <= x_j <= 1},  for one GPU type.

    T          a makespan up to 5 % above the least one, by the original's bisection
    r_j        steps/s of job j
    g_j, W     GPUs of job j; of the cluster

    The original states no objective for this linear program. Its solver, an interior point method, then returns a
    point close to this centre, which leaves each job some time above what it needs.
    """

    name: ClassVar[str] = "min_makespan"
    summary: ClassVar[str] = "Minimise the makespan within 5 %, with spare time for all jobs."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = True

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares at the centre."""
        rows, gpus, total = _one_type(problem)
        needed_s = (problem.steps_remaining / equal_share_rate(problem))[problem.can_run]
        makespan_s = bisected(needed_s, gpus, total)
        return _allocation(problem, rows, analytic_centre(needed_s / makespan_s, gpus, total), 1.0 / makespan_s)


@dataclass(frozen=True)
class EqualTime:
    """x_j = min(1, W / Σ_k g_k):  each of the jobs that can run gets the same time, for one GPU type."""

    name: ClassVar[str] = "gandiva_fair"
    summary: ClassVar[str] = "Give every job the same time, however many GPUs it needs."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Equal shares."""
        rows, gpus, total = _one_type(problem)
        share = min(1.0, total / max(float(gpus.sum()), 1.0))
        return _allocation(problem, rows, np.full(len(rows), share), share)


@dataclass(frozen=True)
class ByEpochs(Shockwave):
    """Shockwave with what its artifact has of jobs: progress in whole epochs, and the rates of their batch sizes."""

    epochs: Mapping[str, int] = field(default_factory=dict)  # by job
    rates_steps_per_s: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of its phases in any order, by job

    @classmethod
    def of(cls, trace: Trace, gpu_type: str) -> ByEpochs:
        """The policy for these jobs; one whose model has no epochs has 1,000."""
        epochs = {
            str(job.id): len(batch_sizes(job.job_type, "static", job.steps_total, job.gpus)) for job in trace.jobs
        }
        rates = {
            str(job): tuple(sorted({phase.rates_steps_per_s[gpu_type] for phase in phases}))
            for job, phases in trace.phases.items()
        }
        return cls(
            round_s=ROUND_S, epochs={job: count or 1000 for job, count in epochs.items()}, rates_steps_per_s=rates
        )

    def known_rates(self) -> Mapping[str, Sequence[float]]:
        """Those of all phases."""
        return self.rates_steps_per_s

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """As `Shockwave`, without the steps of the epoch in which a job is."""
        epochs = np.array([self.epochs[job] for job in problem.job_ids], dtype=np.float64)
        left = np.ceil(problem.steps_remaining / problem.steps_total * epochs - _SAME_EPOCH)
        rounded = np.maximum(left, 1.0) / np.maximum(epochs, 1.0) * problem.steps_total
        answer = super().allocate(replace(problem, steps_remaining=rounded), solver)
        return replace(answer, problem=problem)


def _one_type(problem: AllocationProblem) -> tuple[Ints, Floats, float]:
    """Configurations of jobs that can run, their GPUs, and those of the cluster."""
    if len(problem.gpu_types) != 1 or not problem.runs_alone:
        raise InvalidInput(f"gpu_types must be one, and jobs run alone, got {', '.join(problem.gpu_types)}")
    rows = lone_configurations(problem)
    return rows, problem.gpus_occupied[rows].astype(np.float64), float(problem.gpu_counts[0])


def _allocation(problem: AllocationProblem, rows: Ints, share: Floats, objective: float) -> Allocation:
    found = np.zeros(problem.fits.shape)
    found[rows, 0] = share
    return ruled(problem, found, objective)


def bisected(needed_s: Floats, gpus: Floats, total: float) -> float:
    """The makespan at which the original's bisection ends: feasible, and at most 5 % above an infeasible one."""
    least_s = max(float(needed_s.max(initial=0.0)), float(needed_s @ gpus) / total)
    low_s, high_s = 100.0, 1e6
    while high_s < least_s:
        low_s, high_s = high_s, 10.0 * high_s
    while 1.05 * low_s < high_s:
        middle_s = 0.5 * (low_s + high_s)
        low_s, high_s = (low_s, middle_s) if middle_s >= least_s else (middle_s, high_s)
    return high_s


def analytic_centre(low: Floats, gpus: Floats, total: float) -> Floats:
    """The point that maximises  Σ log(x - low) + Σ log x + Σ log(1 - x) + log(total - gpus · x),  (J,).

    Bisects on the price of a GPU, p = 1 / (total - gpus · x); for each price, on each x.
    """
    cheap, dear = 0.0, 1.0
    while not _leaves(_at_price(low, gpus, dear), gpus, total, dear):
        dear *= 4.0
    for _ in range(80):
        price = 0.5 * (cheap + dear)
        cheap, dear = (cheap, price) if _leaves(_at_price(low, gpus, price), gpus, total, price) else (price, dear)
    return _at_price(low, gpus, dear)


def _leaves(x: Floats, gpus: Floats, total: float, price: float) -> bool:
    """Whether these shares leave so many GPUs that they are worth less than the price."""
    return price * (total - float(gpus @ x)) >= 1.0


def _at_price(low: Floats, gpus: Floats, price: float) -> Floats:
    below, above = low.copy(), np.ones(len(low))
    for _ in range(55):
        x = 0.5 * (below + above)
        with np.errstate(divide="ignore"):
            rises = 1.0 / (x - low) + 1.0 / x - 1.0 / (1.0 - x) > price * gpus
        below, above = np.where(rises, x, below), np.where(rises, above, x)
    found: Floats = below
    return found


def shockwave_settings(solve_interval_s: float = SOLVE_INTERVAL_S) -> SimulationSettings:
    """The mechanism and the costs of Shockwave's simulator."""
    original = preset("gavel-osdi20")
    mechanism = replace(original.mechanism, round_s=ROUND_S, solve_interval_s=solve_interval_s)
    return replace(original, mechanism=mechanism, costs=Costs(checkpoint_s=0.0, restart_s=RESTART_S, migration_s=0.0))


def policies(trace: Trace) -> dict[str, Policy]:
    """The policies of the table by name."""
    gpu_type = CLUSTER.partition(":")[0]
    own = (ByEpochs.of(trace, gpu_type), CurrentSteps.of(trace, gpu_type), CentralMakespan(), EqualTime())
    found: dict[str, Policy] = {policy.name: policy for policy in own} | {SEEN: Shockwave(round_s=ROUND_S)}
    names = (*PUBLISHED, *NOT_IN_PAPER)
    return {name: found.get(name) or policy_from("allox:alpha=0.2" if name == "allox" else name) for name in names}


def fairness(trace: Trace, jct_s: Floats, gpu_type: str, gpus: int) -> Floats:
    """Finish-time fairness as its authors compute it: JCT / (time alone x jobs in the trace per GPU), (J,)."""
    alone_s = np.array([job.steps_total / job.rates_steps_per_s[gpu_type] for job in trace.jobs])
    found: Floats = jct_s / (alone_s * max(1.0, len(trace) / gpus))
    return found


def baselines(size: FigureSize) -> Reproduction:
    """Simulates the trace under each policy of the table."""
    if size.trace is None:
        raise InvalidInput("trace must be given: Shockwave's 120_jobs_dynamic.trace")
    trace, table = read_trace(size.trace, throughputs=size.table), size.table
    if not trace.phases:
        raise InvalidInput(f"{trace.name} must have jobs whose batch size changes, with rates in the throughput table")
    cluster = Cluster.parse(CLUSTER, gpus_per_node=1)
    rows, curves = [], []
    for i, (name, policy) in enumerate(policies(trace).items()):
        engine = Engine(policy, None, table)
        each_round = isinstance(policy, Shockwave) or name in NOT_IN_PAPER
        settings = shockwave_settings(ROUND_S if each_round else SOLVE_INTERVAL_S)
        run = Simulation(trace, cluster, engine, settings, label=name, throughputs=table, progress=size.progress)
        result = run.run()
        jct_s = result.history.finish_s[: len(trace)] - trace.arrival_s
        found = fairness(trace, jct_s, cluster.gpu_types[0], sum(cluster.gpu_counts))
        last_s = float(result.history.finish_s[: len(trace)].max())
        values = (last_s, float(jct_s.mean()), float(found.max()), 100.0 * float((found > UNFAIR).mean()))
        published = PUBLISHED.get(name, (UNKNOWN,) * 4)
        pairs = zip((MAKESPAN, JCT, WORST, UNFAIR_JOBS), published, values, strict=True)
        rows += [Row(CLUSTER, name, quantity, published, ours) for quantity, published, ours in pairs]
        share = np.arange(1, len(trace) + 1) / len(trace)
        curves.append(PlotCurve(name, np.sort(found), share, POLICY_COLOURS[i % len(POLICY_COLOURS)]))
    figure = Figure("fairness", "Finish-time fairness", Axis("JCT / fair JCT"), Axis("jobs"), tuple(curves))
    used = {"trace": trace.name, "cluster": CLUSTER, "preset": "gavel-osdi20", "restart_s": RESTART_S}
    return Reproduction(tuple(rows), (figure,), {**used, "round_s": ROUND_S, "solve_interval_s": SOLVE_INTERVAL_S})


SHOCKWAVE = PublishedFigure(
    "shockwave",
    "Shockwave and its baselines on 120 jobs with changing batch sizes",
    "Zheng et al., NSDI '23, its artifact's simulations on 32 V100s (scheduler/reproduce/pickles/tacc_32gpus)",
    "phases begin at their exact step, in its simulator one or two rounds later; answers of policies that are not "
    "unique differ: see docs/reproduction.md",
    baselines,
)
