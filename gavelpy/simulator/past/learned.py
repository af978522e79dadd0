"""Rates and costs that a journal shows: steps per second by job type and GPU type, and the seconds that leases cost.

A lease takes a start, its steps at the job's rate, and a stop or an exit. Its begin (granted, and its GPUs free), its
end (revoked, or the last step) and its steps are in the journal exactly; reports of progress are late by up to a
heartbeat. So rates are steps over the time between, less the start. The start ends with the first step, which is where
the line through a report of progress, with the slope of the rate, crosses zero steps. Reports are never early, so the
earliest such time of a lease counts. Both are computed in turns; the first rates are slopes between reports.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.events import Outcome
from gavelpy.model.job import JobSpec
from gavelpy.simulator.conditions.draws import SIGMA_MAX, Duration
from gavelpy.simulator.conditions.job_costs import CostsOfType, JobCosts
from gavelpy.simulator.past.observed import Ledger, ObservedLease
from gavelpy.simulator.settings import Costs

TURNS = 4  # of rates and starts
FEW = 3  # samples of a job type, below which those of all job types count
DEFAULT = Costs(checkpoint_s=2.0, restart_s=5.0, migration_s=0.0)  # where a journal shows none, as in forecasts
SPREAD = 0.2  # of the logarithm of a rate that is not measured, where a journal shows none
SPREAD_MAX = 1.0
_LEAST_S = 1e-3

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
    by_job: Mapping[int, LeaseCosts]  # in the order of its leases; `start_s` has those of moves, too
    seconds: Mapping[tuple[int, int, str], float]  # of work, from which the own rates are
    lease_spread: float = 0.0  # of the logarithm of the rates of a job's leases
    job_spread: float = 0.0  # of the rates of jobs of one type
    report_s: float = 0.0  # from the grant, once the GPUs are free, to the report of a start
    shared: int = 0  # leases that count for no rate, because jobs shared GPUs

    @property
    def start_sd_s(self) -> float:
        """Standard deviation of starts: how wrong the time of work of one lease may be."""
        starts_s = [*self.all_costs.start_s, *self.all_costs.moved_s]
        return float(np.std(starts_s)) if len(starts_s) >= FEW else 0.0

    def trust(self, own: tuple[int, int, str], spread: float) -> float:
        """Weight of a job's own rate, in [0, 1], against another that is right up to `spread` (of its logarithm).

        The inverse of their variances: a rate from few seconds of work is as wrong as the start of a lease is.
        """
        error = self.start_sd_s / max(self.seconds.get(own, 0.0), _LEAST_S)
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
    seconds = np.maximum(np.array(samples), _LEAST_S)
    sigma = float(np.log(seconds).std()) if len(samples) >= FEW else 0.0
    return Duration(median_s=float(np.median(seconds)), sigma=min(sigma, SIGMA_MAX))


def kind_of(job: int, spec: JobSpec, gpus: int, gpu_type: str) -> Kind:
    """The kind of a job's lease."""
    return spec.job_type or f"#{job}", gpus, gpu_type


def learn(ledger: Ledger, since_s: float = -math.inf) -> LearnedWorld:
    """Rates and costs from all leases of a ledger; those by job from the leases that started after a time."""
    leases = [one for one in ledger.leases.values() if one.job in ledger.jobs and not math.isnan(one.started_s)]
    alone = [one for one in leases if not one.is_shared]
    slopes = _slopes(alone)
    start_s = {id(one): _start_s(one, slopes.get(_own(one), math.nan)) for one in alone}
    rates = slopes
    for _ in range(TURNS):
        rates = _rates(alone, start_s) or slopes
        start_s = {id(one): _start_s(one, rates.get(_own(one), math.nan)) for one in alone}
    by_kind = _by_kind(ledger, rates, _seconds(alone, start_s))
    costs = _costs(ledger, leases, start_s)
    everyone = LeaseCosts(
        *(tuple(_joined(costs.values(), name)) for name in ("start_s", "moved_s", "stop_s", "exit_s"))
    )
    lease_spread, job_spread = _spreads(ledger, alone, rates, by_kind, start_s)
    seconds = _seconds(alone, start_s)
    own = {job: _in_order(one, start_s, since_s) for job, one in _by_job(leases).items()}
    report_s = float(np.median([one.started_s - one.ready_s for one in leases])) if leases else 0.0
    shared = len(leases) - len(alone)
    return LearnedWorld(rates, by_kind, costs, everyone, own, seconds, lease_spread, job_spread, report_s, shared)


def _own(lease: ObservedLease) -> tuple[int, int, str]:
    return lease.job, lease.gpus, lease.gpu_type


def _worked(lease: ObservedLease, start_s: float) -> tuple[float, float] | None:
    """Steps of a lease and the seconds that they took; None if it does not show them."""
    if lease.outcome is Outcome.FINISHED:
        until_s = lease.last_step_s if not math.isnan(lease.last_step_s) else lease.ended_s
    elif lease.outcome is Outcome.STOPPED and not math.isnan(lease.revoked_s):
        until_s = lease.revoked_s
    elif lease.readings and lease.outcome is not Outcome.STOPPED:
        until_s = lease.readings[-1][0]
    else:
        return None
    ended = lease.outcome in (Outcome.FINISHED, Outcome.STOPPED)
    steps = (lease.steps_end if ended else lease.readings[-1][1]) - lease.steps_before
    seconds = until_s - lease.ready_s - start_s
    return (steps, seconds) if steps > 0 and seconds > _LEAST_S else None


def _slopes(leases: Iterable[ObservedLease]) -> dict[tuple[int, int, str], float]:
    """Steps over seconds between the first and the last report of progress, of all leases of a job on a type."""
    sums: defaultdict[tuple[int, int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in leases:
        points = list(one.readings)
        if one.outcome is Outcome.FINISHED and not math.isnan(one.last_step_s):
            points = [point for point in points if point[0] < one.last_step_s] + [(one.last_step_s, one.steps_end)]
        if len(points) > 1 and points[-1][0] - points[0][0] > _LEAST_S:
            sums[_own(one)][0] += points[-1][1] - points[0][1]
            sums[_own(one)][1] += points[-1][0] - points[0][0]
    return {own: steps / seconds for own, (steps, seconds) in sums.items() if steps > 0}


def _start_s(lease: ObservedLease, rate: float) -> float:
    """Seconds of a lease before its first step; NaN if it does not show them."""
    if math.isnan(rate) or not lease.readings:
        return math.nan
    first_s = min(at_s - (steps - lease.steps_before) / rate for at_s, steps in lease.readings)
    return max(first_s - lease.ready_s, 0.0)


def _rates(leases: Sequence[ObservedLease], start_s: Mapping[int, float]) -> dict[tuple[int, int, str], float]:
    """Steps over the seconds of work, by job and type; leases whose start is not known take the average one."""
    usual_s = _usual_s(leases, start_s)
    sums: defaultdict[tuple[int, int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one, (steps, seconds) in _work(leases, start_s, usual_s):
        sums[_own(one)][0] += steps
        sums[_own(one)][1] += seconds
    return {own: steps / seconds for own, (steps, seconds) in sums.items()}


def _usual_s(leases: Sequence[ObservedLease], start_s: Mapping[int, float]) -> tuple[float, float]:
    """The median start, on the GPUs where a job ran last or its first ones, and on others."""
    known = [(one.moved, start_s[id(one)]) for one in leases if not math.isnan(start_s[id(one)])]
    every = [value for _, value in known] or [DEFAULT.restart_s]
    here, moved = ([value for has, value in known if has is kind] or every for kind in (False, True))
    return float(np.median(here)), float(np.median(moved))


def _work(
    leases: Sequence[ObservedLease], start_s: Mapping[int, float], usual_s: tuple[float, float]
) -> Iterator[tuple[ObservedLease, tuple[float, float]]]:
    for one in leases:
        own_s = start_s.get(id(one), math.nan)
        worked = _worked(one, usual_s[one.moved] if math.isnan(own_s) else own_s)
        if worked is not None:
            yield one, worked


def _seconds(leases: Sequence[ObservedLease], start_s: Mapping[int, float]) -> dict[tuple[int, int, str], float]:
    found: defaultdict[tuple[int, int, str], float] = defaultdict(float)
    for one, (_, seconds) in _work(leases, start_s, _usual_s(leases, start_s)):
        found[_own(one)] += seconds
    return dict(found)


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


def _by_job(leases: Iterable[ObservedLease]) -> dict[int, list[ObservedLease]]:
    found: defaultdict[int, list[ObservedLease]] = defaultdict(list)
    for one in leases:
        found[one.job].append(one)
    return found


def _in_order(leases: Iterable[ObservedLease], start_s: Mapping[int, float], since_s: float) -> LeaseCosts:
    """Costs of the leases of one job; those of which a start is not known are left out."""
    leases = sorted(leases, key=lambda one: one.started_s)
    starts_s = [start_s.get(id(one), math.nan) for one in leases if one.started_s >= since_s]
    stops_s = (
        one.ended_s - one.revoked_s for one in leases if one.outcome is Outcome.STOPPED and one.ended_s >= since_s
    )
    exits_s = (one.ended_s - one.last_step_s for one in leases if one.outcome is Outcome.FINISHED)
    known = [tuple(s for s in each if s >= 0) for each in (starts_s, stops_s, exits_s)]
    return LeaseCosts(start_s=known[0], stop_s=known[1], exit_s=known[2])


def _spreads(
    ledger: Ledger,
    leases: Sequence[ObservedLease],
    rates: Mapping[tuple[int, int, str], float],
    by_kind: Mapping[Kind, float],
    start_s: Mapping[int, float],
) -> tuple[float, float]:
    """Standard deviations of logarithms: of leases around their job's rate, and of jobs around their kind's."""
    ratios: defaultdict[tuple[int, int, str], list[float]] = defaultdict(list)
    for one, (steps, seconds) in _work(leases, start_s, _usual_s(leases, start_s)):
        if _own(one) in rates and len(one.readings) > 1:
            ratios[_own(one)].append(math.log(steps / seconds / rates[_own(one)]))
    several = [ratio for own in ratios.values() if len(own) > 1 for ratio in own]
    of_kind: defaultdict[Kind, list[float]] = defaultdict(list)
    for (job, gpus, gpu_type), rate in rates.items():
        kind = kind_of(job, ledger.jobs[job].spec, gpus, gpu_type)
        of_kind[kind].append(math.log(rate / by_kind[kind]) if kind in by_kind else 0.0)
    jobs = [ratio for own in of_kind.values() if len(own) > 1 for ratio in own]
    return _spread(several), _spread(jobs)


def _spread(values: Sequence[float]) -> float:
    return min(float(np.std(values)), SPREAD_MAX) if len(values) >= FEW else 0.0


def _mean(values: Sequence[float], default: float) -> float:
    return float(np.mean(values)) if values else default


def _joined(costs: Iterable[LeaseCosts], name: str) -> Iterator[float]:
    for one in costs:
        yield from getattr(one, name)
