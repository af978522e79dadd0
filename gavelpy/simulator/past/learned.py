"""Rates and costs that a journal shows: steps per second by job type and GPU type, and the seconds that leases cost.

A lease takes a start, its steps at the job's rate, and a stop or an exit. Its begin (granted, and its GPUs free), its
end (revoked, or the last step) and its steps are in the journal exactly; reports of progress are late by up to a
heartbeat. A rate is the slope of the line through the reports of a job's leases, or the steps of its leases over their
time less a usual start, whichever is surer: two reports in a row show a slope badly, a short lease shows its start
badly. The start ends with the first step, which is where the line through a report of progress, with the slope of the
rate, crosses zero steps. Reports are never early, so the earliest such time of a lease counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gavelpy.mechanism.events import Outcome
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobSpec
from gavelpy.simulator.conditions.draws import SIGMA_MAX, Duration
from gavelpy.simulator.conditions.job_costs import CostsOfType, JobCosts
from gavelpy.simulator.past.lease_turns import LEAST_S, start_of, worked_by
from gavelpy.simulator.past.ledger import Ledger, ObservedLease
from gavelpy.simulator.settings import Costs

FEW = 3  # samples of a job type, below which those of all job types count
DEFAULT = Costs(checkpoint_s=2.0, restart_s=5.0, migration_s=0.0)  # where a journal shows none, as in forecasts
SPREAD = 0.2  # of the logarithm of a rate that is not measured, where a journal shows none
SPREAD_MAX = 1.0

Kind = tuple[str, int, str]  # job type, or the job itself if it has none; GPUs; GPU type


@dataclass(frozen=True)
class LeaseCosts:
    """Seconds of the leases of a job type, one sample a lease."""

    start_s: tuple[float, ...] = ()  # from the grant, once its GPUs are free, to the first step
    moved_s: tuple[float, ...] = ()  # the same, of jobs that last ran on other GPUs
    stop_s: tuple[float, ...] = ()  # from the revocation to the end, with a checkpoint
    exit_s: tuple[float, ...] = ()  # from the last step to the end

    def mean(self) -> Costs:
        """The averages; a migration costs what such starts take longer."""
        start_s = _mean(self.start_s or self.moved_s, DEFAULT.restart_s)
        moved_s = _mean(self.moved_s, start_s) if min(len(self.moved_s), len(self.start_s)) >= FEW else start_s
        return Costs(_mean(self.stop_s, DEFAULT.checkpoint_s), start_s, max(moved_s - start_s, 0.0))


@dataclass(frozen=True, eq=False)
class LearnedWorld:
    """Rates in steps/s and costs in seconds, from the leases of a journal."""

    own: Mapping[tuple[int, int, str], float]  # by job, GPUs and GPU type
    rates: Mapping[Kind, float]
    costs: Mapping[str, LeaseCosts]  # by job type
    all_costs: LeaseCosts
    by_job: Mapping[int, Sequence[ObservedLease]]  # in the order of their grants, those that had not ended by a time
    seconds: Mapping[tuple[int, int, str], float]  # of work, from which the own rates are
    errors: Mapping[tuple[int, int, str], float]  # standard deviations of the logarithms of the own rates
    lease_spread: float = 0.0  # of the logarithm of the rates of a job's leases
    job_spread: float = 0.0  # of the rates of jobs of one type
    report_s: float = 0.0  # from the grant, once the GPUs are free, to the report of a start
    lag_s: float = 0.0  # for which a program makes steps after its lease was revoked
    age_s: float = 0.0  # of the steps in a report
    shared: int = 0  # leases that count for no rate, because jobs shared GPUs

    def trust(self, own: tuple[int, int, str], spread: float) -> float:
        """Weight of a job's own rate, in [0, 1], against another that is right up to `spread` (of its logarithm)."""
        error = self.errors.get(own, 0.0)
        return spread**2 / (spread**2 + error**2) if error > 0 else 1.0

    def costs_of(self, job_type: str) -> LeaseCosts:
        """Samples of a job type, each kind from all job types where there are fewer than FEW."""
        own, everyone = self.costs.get(job_type, LeaseCosts()), self.all_costs
        starts = own if len(own.start_s) + len(own.moved_s) >= FEW else everyone
        return LeaseCosts(
            starts.start_s,
            starts.moved_s,
            own.stop_s if len(own.stop_s) >= FEW else everyone.stop_s,
            own.exit_s if len(own.exit_s) >= FEW else everyone.exit_s,
        )

    def job_costs(self) -> JobCosts:
        """The medians and spreads of the costs by job type, for simulations of other jobs; restores are in starts."""
        types = {name: self.costs_of(name) for name in self.costs if name}
        everyone = _costs_of_type(self.all_costs)
        return JobCosts(
            everyone.start, 0.0, everyone.checkpoint, everyone.migration,
            {name: _costs_of_type(samples) for name, samples in types.items()},
        )  # fmt: skip


def _costs_of_type(samples: LeaseCosts) -> CostsOfType:
    start = _lognormal(samples.start_s or samples.moved_s, DEFAULT.restart_s)
    has_both = min(len(samples.start_s), len(samples.moved_s)) >= FEW
    more_s = float(np.median(samples.moved_s) - np.median(samples.start_s)) if has_both else 0.0
    return CostsOfType(start, 0.0, _lognormal(samples.stop_s, DEFAULT.checkpoint_s), max(more_s, 0.0))


def _lognormal(samples: Sequence[float], default_s: float) -> Duration:
    """The distribution with the median of the samples and the standard deviation of their logarithms."""
    if not samples:
        return Duration(fixed_s=default_s)
    seconds = np.maximum(np.array(samples), LEAST_S)
    sigma = float(np.log(seconds).std()) if len(samples) >= FEW else 0.0
    return Duration(median_s=float(np.median(seconds)), sigma=min(sigma, SIGMA_MAX))


def kind_of(job: int, spec: JobSpec, gpus: int, gpu_type: str) -> Kind:
    """The kind of a job's lease."""
    return spec.job_type or f"#{job}", gpus, gpu_type


def learn(ledger: Ledger, since_s: float = -math.inf) -> LearnedWorld:
    """Rates and costs from all leases of a ledger; those by job from the leases that had not ended by a time."""
    granted = [one for one in ledger.leases.values() if one.job in ledger.jobs]
    leases = [one for one in granted if not math.isnan(one.started_s)]
    alone = [one for one in leases if not one.is_shared]
    lines = _lines(alone)
    rates, errors = {own: line.rate for own, line in lines.items()}, {own: line.error for own, line in lines.items()}
    start_s = {id(one): start_of(one, rates.get(_own(one), math.nan)) for one in alone}
    lag_s, age_s = _delays(alone, lines, start_s)
    usual_s, sd_s = _usual_s(alone, start_s), _sd([s for s in start_s.values() if not math.isnan(s)])
    seconds, averages = _averages(alone, usual_s, lag_s)
    for own, rate in averages.items():
        if sd_s / seconds[own] < errors.get(own, math.inf):
            rates[own], errors[own] = rate, sd_s / seconds[own]
    start_s = {id(one): start_of(one, rates.get(_own(one), math.nan)) for one in alone}
    by_kind = _by_kind(ledger, rates, seconds)
    costs = _costs(ledger, leases, start_s)
    everyone = LeaseCosts(
        *(tuple(_joined(costs.values(), name)) for name in ("start_s", "moved_s", "stop_s", "exit_s"))
    )
    ratios = _ratios_of_leases(alone, rates, start_s, lag_s)
    return LearnedWorld(
        rates, by_kind, costs, everyone, _by_job(granted, since_s), seconds, errors,
        lease_spread=_spread([ratio for own in ratios.values() if len(own) > 1 for ratio in own]),
        job_spread=_spread_of_jobs(ledger, rates, by_kind),
        report_s=float(np.median([one.started_s - one.ready_s for one in leases])) if leases else 0.0,
        lag_s=lag_s, age_s=age_s, shared=len(leases) - len(alone),
    )  # fmt: skip


def _own(lease: ObservedLease) -> tuple[int, int, str]:
    return lease.job, lease.gpus, lease.gpu_type


class _Line(NamedTuple):
    rate: float
    error: float  # standard deviation of its logarithm


def _lines(leases: Iterable[ObservedLease]) -> dict[tuple[int, int, str], _Line]:
    """Least squares through the reports of progress, by job and type: one slope, and an intercept for each lease."""
    points: defaultdict[tuple[int, int, str], list[Floats]] = defaultdict(list)
    for one in leases:
        own = [point for point in one.readings if not point[0] >= one.last_step_s]
        if one.outcome is Outcome.FINISHED and not math.isnan(one.last_step_s):
            own.append((one.last_step_s, one.steps_end))
        if len(own) > 1:
            points[_own(one)].append(np.array(own) - np.mean(own, axis=0))
    found: dict[tuple[int, int, str], tuple[float, float]] = {}
    squares, free = 0.0, 0
    for key, groups in points.items():
        at_s, steps = np.concatenate(groups).T
        spread = float(at_s @ at_s)
        rate = float(at_s @ steps) / spread if spread > LEAST_S**2 else 0.0
        if rate > 0:
            found[key] = rate, math.sqrt(spread)
            squares += float(np.square(steps / rate - at_s).sum())
            free += len(at_s) - len(groups) - 1
    late_s = math.sqrt(squares / free) if free else 0.0  # standard deviation of the age of reports
    return {key: _Line(rate, late_s / spread) for key, (rate, spread) in found.items()}


def _delays(
    leases: Sequence[ObservedLease], lines: Mapping[tuple[int, int, str], _Line], start_s: Mapping[int, float]
) -> tuple[float, float]:
    """Seconds of work after revocations, and the age of steps in reports: medians."""
    lags_s, ages_s = list[float](), list[float]()
    for one in leases:
        if len(one.readings) < FEW or _own(one) not in lines or math.isnan(start_s[id(one)]):
            continue
        rate, began_s = lines[_own(one)].rate, one.ready_s + start_s[id(one)]
        ages_s += [at_s - began_s - (steps - one.steps_before) / rate for at_s, steps in one.readings]
        if one.outcome is Outcome.STOPPED and one.revoked_s <= one.ended_s:
            worked_s = (one.steps_end - one.steps_before) / rate
            lags_s.append(min(max(worked_s - (one.revoked_s - began_s), 0.0), one.ended_s - one.revoked_s))
    return tuple(float(np.median(each)) if len(each) >= FEW else 0.0 for each in (lags_s, ages_s))  # type: ignore[return-value]  # two


def _averages(
    leases: Sequence[ObservedLease], usual_s: tuple[float, float], lag_s: float
) -> tuple[dict[tuple[int, int, str], float], dict[tuple[int, int, str], float]]:
    """Seconds of work, and steps over them, by job and type, if all leases took the usual start."""
    sums: defaultdict[tuple[int, int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one, (steps, seconds) in _work(leases, {}, usual_s, lag_s):
        sums[_own(one)][0] += steps
        sums[_own(one)][1] += seconds
    return {own: both[1] for own, both in sums.items()}, {own: both[0] / both[1] for own, both in sums.items()}


def _usual_s(leases: Sequence[ObservedLease], start_s: Mapping[int, float]) -> tuple[float, float]:
    """The median start, on the GPUs where a job ran last or its first ones, and on others."""
    known = [(one.moved, start_s[id(one)]) for one in leases if not math.isnan(start_s[id(one)])]
    every = [value for _, value in known] or [DEFAULT.restart_s]
    here, moved = ([value for has, value in known if has is kind] or every for kind in (False, True))
    return float(np.median(here)), float(np.median(moved))


def _work(
    leases: Sequence[ObservedLease], start_s: Mapping[int, float], usual_s: tuple[float, float], lag_s: float
) -> Iterator[tuple[ObservedLease, tuple[float, float]]]:
    for one in leases:
        own_s = start_s.get(id(one), math.nan)
        worked = worked_by(one, usual_s[one.moved] if math.isnan(own_s) else own_s, lag_s)
        if worked is not None:
            yield one, worked


def _by_kind(
    ledger: Ledger, rates: Mapping[tuple[int, int, str], float], seconds: Mapping[tuple[int, int, str], float]
) -> dict[Kind, float]:
    """The geometric mean over jobs, weighted by the time of their leases."""
    sums: defaultdict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (job, gpus, gpu_type), rate in rates.items():
        kind, weight = kind_of(job, ledger.jobs[job].spec, gpus, gpu_type), seconds.get((job, gpus, gpu_type), 0.0)
        sums[kind][0] += weight * math.log(rate)
        sums[kind][1] += weight
    return {kind: math.exp(total / weight) for kind, (total, weight) in sums.items() if weight > 0}


def _costs(ledger: Ledger, leases: Sequence[ObservedLease], start_s: Mapping[int, float]) -> dict[str, LeaseCosts]:
    found: defaultdict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in leases:
        samples = found[ledger.jobs[one.job].spec.job_type]
        begun_s = start_s.get(id(one), math.nan)
        if not math.isnan(begun_s):
            samples["moved_s" if one.moved else "start_s"].append(begun_s)
        if one.outcome is Outcome.STOPPED and one.revoked_s <= one.ended_s and one.readings:
            samples["stop_s"].append(one.ended_s - one.revoked_s)
        if one.outcome is Outcome.FINISHED and one.last_step_s <= one.ended_s:
            samples["exit_s"].append(one.ended_s - one.last_step_s)
    return {name: LeaseCosts(**{kind: tuple(values) for kind, values in one.items()}) for name, one in found.items()}


def _by_job(leases: Iterable[ObservedLease], since_s: float) -> dict[int, list[ObservedLease]]:
    found: defaultdict[int, list[ObservedLease]] = defaultdict(list)
    for one in sorted(leases, key=lambda one: one.granted_s):
        if not one.ended_s < since_s:
            found[one.job].append(one)
    return found


def _ratios_of_leases(
    leases: Sequence[ObservedLease],
    rates: Mapping[tuple[int, int, str], float],
    start_s: Mapping[int, float],
    lag_s: float,
) -> dict[tuple[int, int, str], list[float]]:
    """Logarithms of the rates of leases over their job's."""
    ratios: defaultdict[tuple[int, int, str], list[float]] = defaultdict(list)
    for one, (steps, seconds) in _work(leases, start_s, _usual_s(leases, start_s), lag_s):
        if _own(one) in rates and len(one.readings) > 1:
            ratios[_own(one)].append(math.log(steps / seconds / rates[_own(one)]))
    return ratios


def _spread_of_jobs(
    ledger: Ledger, rates: Mapping[tuple[int, int, str], float], by_kind: Mapping[Kind, float]
) -> float:
    """Standard deviation of the logarithms of the rates of jobs over their kind's."""
    of_kind: defaultdict[Kind, list[float]] = defaultdict(list)
    for (job, gpus, gpu_type), rate in rates.items():
        kind = kind_of(job, ledger.jobs[job].spec, gpus, gpu_type)
        of_kind[kind].append(math.log(rate / by_kind[kind]) if kind in by_kind else 0.0)
    return _spread([ratio for own in of_kind.values() if len(own) > 1 for ratio in own])


def _spread(values: Sequence[float]) -> float:
    return min(_sd(values), SPREAD_MAX)


def _sd(values: Sequence[float]) -> float:
    return float(np.std(values)) if len(values) >= FEW else 0.0


def _mean(values: Sequence[float], default: float) -> float:
    return float(np.mean(values)) if values else default


def _joined(costs: Iterable[LeaseCosts], name: str) -> Iterator[float]:
    for one in costs:
        yield from getattr(one, name)
