"""The jobs of a replay: their work and true rates, as a journal shows them, with or without noise.

Rows of jobs: those of the core where the replay begins, then the jobs that were submitted later, by serial.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobSpec
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.simulator.past.learned import FEW, SPREAD, SPREAD_MAX, LearnedWorld, kind_of
from gavelpy.simulator.past.ledger import ObservedJob
from gavelpy.simulator.past.observed import ObservedJournal

JOB_SPREAD = 0.05  # of the logarithm of the rates of jobs of one type, where a journal shows none
SPREAD_MIN = 0.01
WORK_LEFT = 1e-3  # of the work of a job that had done all that it declared, and had not ended


@dataclass(frozen=True, eq=False)
class Work:
    """What is true of the jobs, (J,), whatever the policy."""

    serials: list[int]
    specs: list[JobSpec]
    steps_total: Floats
    seen: list[ObservedJob]
    learned: LearnedWorld
    observed: ObservedJournal
    estimated: list[str] = field(default_factory=list)  # kinds whose rates are estimates, for a warning

    @property
    def row_of(self) -> dict[int, int]:
        """The row of each job."""
        return {serial: row for row, serial in enumerate(self.serials)}


def work_of(observed: ObservedJournal, learned: LearnedWorld) -> Work:
    """The jobs of a replay."""
    ids = observed.core.jobs.ids
    later = [job for job in observed.ledger.jobs if job >= ids.next_serial]
    serials = [*ids.serials.tolist(), *sorted(later)]
    seen = [observed.ledger.jobs[serial] for serial in serials]
    totals = np.array([_total(one) for one in seen], dtype=np.float64)
    return Work(serials, [one.spec for one in seen], totals, seen, learned, observed)


def _total(job: ObservedJob) -> float:
    """All steps of a job: what it had done when it ended by itself, else what it or its program declared."""
    if job.end in ("finished", "failed") and job.steps > 0:
        return job.steps
    declared = job.spec.steps_total if math.isnan(job.total_announced) else job.total_announced
    return max(declared, job.steps * (1.0 + WORK_LEFT))


@dataclass(frozen=True, eq=False)
class Noise:
    """Factors of one seed: on rates, by job and GPU type, and the sample of each cost, by job. Seed 0 is without."""

    seed: int = 0

    def rates(self, serials: Sequence[int], gpu_types: Sequence[str], spread: Floats) -> Floats:
        """Factors on the rates of jobs (J, T) with these standard deviations of their logarithms."""
        if not self.seed:
            return np.ones(spread.shape)
        normal = np.array(
            [[_generator(self.seed, job, name).standard_normal() for name in gpu_types] for job in serials]
        )
        factors: Floats = np.exp(spread * normal.reshape(spread.shape))
        return factors

    def sample(self, serial: int, name: str, count: int, values: Sequence[float], usual: float) -> float:
        """One of the values, the same for each policy; without noise, or values, what is usual."""
        if not self.seed or not values:
            return usual
        return values[int(_generator(self.seed, serial, name, count).integers(len(values)))]


def _generator(seed: int, job: int, name: str, count: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, job, count, *name.encode()])


class TrueRates(NamedTuple):
    """Steps per second of the jobs of a replay."""

    gpu_types: tuple[str, ...]
    requested: Floats  # (J, T) on the requested GPUs
    by_size: dict[int, dict[int, Floats]]  # of other sizes (T,), by row and number of GPUs


def rates_of(work: Work, gpu_types: Sequence[str], noise: Noise) -> TrueRates:
    """True rates of the jobs.

    In this order: what the job itself did there; what jobs of its type did; what the scheduler believed, corrected by
    the ratio of measured to believed rates of the job or its type on other GPU types; and the estimator's guess from
    all measured rates.
    """
    known = _Known(work, gpu_types)
    J, T = len(work.serials), len(gpu_types)
    rate, spread = np.zeros((J, T)), np.zeros((J, T))
    by_size: dict[int, dict[int, Floats]] = {}
    for row, spec in enumerate(work.specs):
        rate[row], spread[row] = known.of(row, spec.gpus)
    rate *= noise.rates(work.serials, gpu_types, spread)
    for row in [row for row, spec in enumerate(work.specs) if spec.sizes]:
        factor = noise.rates([work.serials[row]], gpu_types, spread[row : row + 1])[0]
        by_size[row] = {size: known.of(row, size)[0] * factor for size in work.specs[row].sizes}
    return TrueRates(tuple(gpu_types), rate, by_size)


class _Known:
    """Looks rates up, and estimates them where nothing is known."""

    def __init__(self, work: Work, gpu_types: Sequence[str]) -> None:
        self._work, self._types, self._learned = work, tuple(gpu_types), work.learned
        self._believed_types = {name: t for t, name in enumerate(work.observed.gpu_types)}
        self._estimator: ThroughputEstimator | None = None
        self._ratio = self._ratios()
        self._claim_spread = self._spread_of_claims()

    def of(self, row: int, gpus: int) -> tuple[Floats, Floats]:
        """Rates on each type, and standard deviations of their logarithms, (T,); 0 = cannot run there."""
        serial, spec = self._work.serials[row], self._work.specs[row]
        rate, spread = np.zeros(len(self._types)), np.zeros(len(self._types))
        unknown = []
        for t, name in enumerate(self._types):
            own, learned = (serial, gpus, name), self._learned
            like = learned.rates.get(kind_of(serial, spec, gpus, name)) if spec.job_type else None
            believed = self._believed(serial, spec, gpus, name)
            if believed == 0.0 or not spec.may_run_on(name):
                continue
            if like is not None:
                rate[t], spread[t] = like, math.hypot(learned.job_spread or JOB_SPREAD, learned.lease_spread)
            elif not math.isnan(believed):
                rate[t], spread[t] = believed * self._ratio_of(serial, spec), self._claim_spread
            if own in learned.own:
                weight = learned.trust(own, spread[t]) if rate[t] > 0 else 1.0
                rate[t] = learned.own[own] ** weight * (rate[t] or 1.0) ** (1.0 - weight)
                spread[t] = learned.lease_spread
            elif not rate[t]:
                unknown.append(t)
        if unknown:
            self._estimate(spec, gpus, unknown, rate, spread)
        return rate, spread

    def _believed(self, serial: int, spec: JobSpec, gpus: int, name: str) -> float:
        """The owner's rate, else the scheduler's estimate, else NaN."""
        rates = spec.rates_on(gpus)
        if name in rates:
            return float(rates[name])
        if rates and not spec.rates_by_size:
            return 0.0 if name in self._believed_types else math.nan  # types that are new may suit the job
        if gpus != spec.gpus or name not in self._believed_types:
            return math.nan
        kept = self._work.observed.rates.get(serial)
        column = self._believed_types[name]
        return float(kept[column]) if kept is not None and column < len(kept) else math.nan

    def _ratios(self) -> dict[str, list[tuple[float, float]]]:
        """Logarithms of measured over believed rates, with the seconds of work, by job and by job type."""
        found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        row_of = self._work.row_of
        for (serial, gpus, name), rate in self._learned.own.items():
            if serial not in row_of:
                continue
            spec, seconds = self._work.specs[row_of[serial]], self._learned.seconds.get((serial, gpus, name), 0.0)
            believed = self._believed(serial, spec, gpus, name)
            if believed > 0 and seconds > 0:
                for group in {f"#{serial}", spec.job_type} - {""}:
                    found[group].append((math.log(rate / believed), seconds))
        return found

    def _ratio_of(self, serial: int, spec: JobSpec) -> float:
        """Measured over believed rates: of the job, else of its type, else 1."""
        ratios = self._ratio.get(f"#{serial}") or self._ratio.get(spec.job_type) or [(0.0, 1.0)]
        return math.exp(float(np.average([one for one, _ in ratios], weights=[weight for _, weight in ratios])))

    def _spread_of_claims(self) -> float:
        """Of measured over believed rates of all jobs: the standard deviation, weighted by the seconds of work."""
        every = [one for group, ratios in self._ratio.items() if group.startswith("#") for one in ratios]
        if len(every) < FEW:
            return SPREAD
        ratio, weight = np.array(every).T
        return float(np.clip(math.sqrt(np.average(ratio**2, weights=weight)), SPREAD_MIN, SPREAD_MAX))

    def _estimate(self, spec: JobSpec, gpus: int, unknown: Sequence[int], rate: Floats, spread: Floats) -> None:
        """Fills rates in that nothing shows."""
        names = [self._types[t] for t in unknown]
        if self._estimator is None:
            self._estimator = ThroughputEstimator(_table(self._learned.rates, self._types))
        key = spec.job_type or f"#{spec.id}", gpus
        known = {name: value for name, value in zip(self._types, rate.tolist(), strict=True) if value > 0}
        if known and key not in self._estimator.table:
            self._estimator.claim(*key, known)
        belief = self._estimator.estimates([key], names)
        rate[unknown] = belief.rates(0.5)[0]
        spread[unknown] = belief.blocks.sd[0]
        what = f"{spec.job_type or spec.id} on {', '.join(names)}"
        if what not in self._work.estimated:
            self._work.estimated.append(what)


def _table(rates: Mapping[tuple[str, int, str], float], gpu_types: tuple[str, ...]) -> ThroughputTable:
    keys = tuple(dict.fromkeys((job_type, gpus) for job_type, gpus, _ in rates))
    names = tuple(dict.fromkeys([*gpu_types, *(name for _, _, name in rates)]))
    values = np.full((len(keys), len(names)), np.nan)
    row, column = {key: i for i, key in enumerate(keys)}, {name: t for t, name in enumerate(names)}
    for (job_type, gpus, name), rate in rates.items():
        values[row[job_type, gpus], column[name]] = rate
    kinds = np.full(values.shape, int(Provenance.MEASURED), dtype=np.int64)
    return ThroughputTable(keys, names, values, kinds, ("journal",) * len(keys))
