"""The unused columns of a program with very many entries, and approximate duals to begin with.

*Approximate duals* of a level, right to a few per cent, select the entries of the first model. Entropy smooths the
dual: the GPUs that an entry uses are exp(κ x its gain per GPU), and each dual has an equation that determines it if the
others stay: a type's GPUs are all used; a job's time is at most 1; the rates of all jobs are equal. A step solves the
equation of each type and then, damped, for each class of jobs the two of its rate and its time. A larger κ is more
exact. Only the time to the answer depends on these duals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.program import Program

AT_FIRST = 1  # entries of several jobs for each class of jobs in the first model, if approximate duals select them
PROMISING_AT_FIRST, PROMISING = 24, 8  # mean number of entries per class among which the best of each are selected
CANDIDATES = 8  # most valuable entries of each class of jobs and GPU type, from which duals are computed
STEPS = 10
SHARPNESS = (8.0, 30.0)  # first and last κ, where a gain is about 1
CAUTION = 0.6  # damping of a step, because both members of a pair make one
SPREAD = 10.0  # ratio of values above which few jobs limit the level, and no approximate duals are needed
_LEAST = 0.02  # of the mean dual of a rate
_LOG_MOST = 20.0  # of the GPUs that an entry uses
_SINGULAR = 1e-6  # of a determinant


@dataclass(frozen=True, eq=False)
class ProgramDuals:
    """ProgramDuals of the constraints in units of the objective; a class counts for all its jobs."""

    rate: Floats  # (K,) per unit of rate, from levels and floors
    time: Floats  # (K,) of a job's time
    capacity: Floats  # (R T,) of all of a resource of a type: GPUs first
    per_gain: float  # per unit of the sum of values; 0 if the sum is for ties only


class Pool:
    """Entries, (class of configurations, GPU type), by whether they are in use. Those of one job always are.

    Tables of entries are (T, Q) here, so that sums run over adjacent numbers.
    """

    def __init__(self, program: Program) -> None:
        c, gpus = program.columns, program.problem.gpu_counts
        self._class_count = len(program.value)
        self._member_class = c.member_class
        self._rate = np.ascontiguousarray(c.member_rate.transpose(2, 0, 1))
        self._time = c.member_time
        self._gpus = c.gpus
        self._load = c.gpus / np.where(gpus > 0, gpus, 1.0)[:, None]
        amount = program.problem.row_capacity.reshape(-1, len(gpus), 1)[1:]
        self._other_load = c.others[:, None, :] / np.where(amount > 0, amount, 1.0)  # (R - 1, T, Q)
        self._alone = c.fits.T & c.is_alone
        self._unused = np.ascontiguousarray(c.fits.T)
        self._has_returned = np.zeros_like(self._unused)
        self._several = self._unused & ~c.is_alone
        self._gain = self._valued(program.value * program.classes.count) * program.type_worth[:, None]
        self.gain_max = float(
            np.where(self._unused, self._gain, 0.0).max(initial=0.0)
        )  # of an entry, to a sum of values

    def candidates(self, count: int) -> tuple[Ints, Ints]:
        """Entries of one job, and for each class of jobs the `count` others with the highest value per GPU by type."""
        selected = self._alone.copy()
        value = np.where(self._several, self._gain / self._gpus, -np.inf)
        for chosen, of_type in zip(selected, value, strict=True):
            chosen[self._best(of_type, count, least=0.0, promising=PROMISING_AT_FIRST)] = True
        gpu_type, group = np.nonzero(selected)
        return group, gpu_type

    def first(self, duals: ProgramDuals | None) -> tuple[Ints, Ints]:
        """Entries of the first model, in use from now on: those of one job, and AT_FIRST others per class of jobs.

        Without duals only those of one job: the most valuable pairs are seldom the ones that are needed.
        """
        selected = self._alone.copy()
        if duals is not None:
            worth = np.where(self._several, self._worth(duals) / self._gpus, -np.inf)
            best = self._best(worth.ravel(), AT_FIRST, least=-np.inf, promising=PROMISING_AT_FIRST)
            selected.ravel()[best] = True
        return self._used(np.flatnonzero(selected))

    def improving(self, duals: ProgramDuals, count: int, least: float) -> tuple[Ints, Ints]:
        """Unused entries that would gain more than `least`, in use from now on: `count` for each class of jobs."""
        return self._used(self._best(self._worth(duals).ravel(), count, least, PROMISING))

    def returned(self, group: Ints, gpu_type: Ints) -> Bools:
        """Which of these entries are unused from now on: all that have not returned before."""
        places = gpu_type * self._unused.shape[1] + group
        fresh: Bools = ~self._has_returned.ravel()[places]
        self._has_returned.ravel()[places] = True
        self._unused.ravel()[places] = fresh
        return fresh

    def keep(self, duals: ProgramDuals, least: float) -> None:
        """Drops the unused entries that would not gain more than `least`."""
        self._unused = self._worth(duals) > least

    def _valued(self, weight: Floats) -> Floats:
        """Σ over members of their class's weight x rate, (T, Q)."""
        valued: Floats = np.einsum("dq,tdq->tq", self._of_member(weight), self._rate)
        return valued

    def _of_member(self, per_class: Floats) -> Floats:
        """The value of each member's class, (D, Q); 0 without a member."""
        return np.append(per_class, 0.0)[self._member_class]  # class -1 is the last

    def _worth(self, duals: ProgramDuals) -> Floats:
        """Gain of each unused entry in the objective at share 1, (T, Q); -inf for the others."""
        worth = self._valued(duals.rate)
        if duals.per_gain:
            worth += duals.per_gain * self._gain
        worth -= np.einsum("dq,dq->q", self._of_member(duals.time), self._time)
        of_resource = duals.capacity.reshape(-1, len(worth))
        worth -= self._load * of_resource[0, :, None]
        for load, capacity in zip(self._other_load, of_resource[1:], strict=True):
            worth -= load * capacity[:, None]
        return np.where(self._unused, worth, -np.inf)

    def _best(self, worth: Floats, count: int, least: float, promising: int) -> Ints:
        """The `count` best places of flat `worth` above `least` for each class of jobs, among the most promising."""
        places = np.flatnonzero(worth > least)
        few = promising * self._class_count
        if len(places) > few:
            places = places[worth[places] >= np.partition(worth[places], -few)[-few]]
        places = places[np.argsort(-worth[places], kind="stable")]
        keep: Bools = np.zeros(len(places), dtype=np.bool_)
        short = np.int16 if self._class_count < np.iinfo(np.int16).max else np.int64  # 16 bits are sorted by radix sort
        for classes in self._member_class[:, places % self._unused.shape[1]]:
            order = np.argsort(classes.astype(short), kind="stable")
            sizes = np.bincount(classes + 1, minlength=self._class_count + 1)
            rank = np.arange(len(places)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            keep[order[(rank < count) & (classes[order] >= 0)]] = True
        return places[keep]

    def _used(self, places: Ints) -> tuple[Ints, Ints]:
        self._unused.ravel()[places] = False
        gpu_type, group = np.divmod(places, self._unused.shape[1])
        return group, gpu_type


def guessed(program: Program, pool: Pool) -> ProgramDuals | None:
    """ProgramDuals near those of the highest level, up to a common factor; None if they would not help."""
    low, high = np.quantile(program.value, (0.1, 0.9))
    if not high < SPREAD * low:
        return None
    sample = _sample(program, pool)
    K, count, kinds = len(program.value), program.classes.count, sample.gpu_type
    rate, time, price = np.ones(K), np.zeros(K), sample.first_price()
    for sharpness in np.geomspace(*SHARPNESS, STEPS):
        gain = sample.worth(rate, time) - price[kinds]
        taken = np.exp(np.minimum(sharpness * gain, _LOG_MOST))
        total = np.maximum(np.bincount(kinds, taken, len(price)), np.finfo(np.float64).tiny)
        dearer = np.maximum(np.log(total / sample.gpus) / sharpness, -price)
        taken = np.exp(np.minimum(sharpness * (gain - dearer[kinds]), _LOG_MOST))
        rate, time = _balanced(sample, taken, rate, time, sharpness)
        factor = count.sum() / (count @ rate)
        rate, time, price = rate * factor, time * factor, (price + dearer) * factor
    capacity: Floats = np.zeros(len(program.problem.row_capacity))
    capacity[sample.types] = price * sample.gpus
    return ProgramDuals(rate * count * program.value / sample.unit, time * count, capacity, per_gain=0.0)


@dataclass(frozen=True, eq=False)
class _Sample:
    """E' entries per GPU that they use, with members in D places; class K = no member."""

    types: Ints  # (T',) GPU types
    gpus: Floats  # (T',)
    gpu_type: Ints  # (E',) among those
    member_class: Ints  # (D, E')
    rate: Floats  # (D, E') of all jobs of the class, in units of value
    time: Floats  # (D, E') of all jobs of the class
    count: Floats  # (K,) jobs in each class
    unit: float

    def worth(self, rate_dual: Floats, time_dual: Floats) -> Floats:
        """Gain of the members, (E',)."""
        per_member = np.append(rate_dual, 0.0)[self.member_class] * self.rate
        per_member -= np.append(time_dual, 0.0)[self.member_class] * self.time
        worth: Floats = np.einsum("de->e", per_member)
        return worth

    def per_job(self, per_member: Floats) -> Floats:
        """Sum of members' values (D, E') by class, per job of the class, (K,)."""
        K = len(self.count)
        total: Floats = np.bincount(self.member_class.ravel(), per_member.ravel(), K + 1)[:K] / self.count
        return np.maximum(total, np.finfo(np.float64).tiny)

    def first_price(self) -> Floats:
        """The gain that a tenth of the entries of each type exceed, (T',)."""
        gain = np.einsum("de->e", self.rate)
        return np.array([np.quantile(gain[self.gpu_type == t], 0.9) for t in range(len(self.types))])


def _sample(program: Program, pool: Pool) -> _Sample:
    c = program.columns
    group, gpu_type = pool.candidates(CANDIDATES)
    types, kind = np.unique(gpu_type, return_inverse=True)
    count = program.classes.count.astype(np.float64)
    member_class = c.member_class[:, group]
    unit = float(np.median(program.value))
    many = np.append(count, 0.0)[member_class] / c.gpus[group]
    rate = c.member_rate[:, group, gpu_type] * many * np.append(program.value / unit, 0.0)[member_class]
    none: Bools = member_class < 0
    return _Sample(
        types=types,
        gpus=program.problem.gpu_counts[types],
        gpu_type=kind,
        member_class=np.where(none, len(count), member_class),
        rate=rate,
        time=c.member_time[:, group] * many,
        count=count,
        unit=unit,
    )


def _balanced(sample: _Sample, taken: Floats, rate: Floats, time: Floats, sharpness: float) -> tuple[Floats, Floats]:
    """ProgramDuals of rates and time after a step towards equal rates within the time budgets."""
    p = sample
    had, used = taken * p.rate, taken * p.time
    level, spent = p.per_job(had), p.per_job(used)
    rr, rt, tt = p.per_job(had * p.rate), p.per_job(had * p.time), p.per_job(used * p.time)
    target = (p.count @ (level / rr)) / (p.count @ (1.0 / rr))  # so that the mean of the duals stays
    missing, over = target - level, spent - 1.0
    scarce = (time > 0) | (over > 0)
    determinant = np.maximum(rr * tt - rt * rt, _SINGULAR * rr * tt) * sharpness
    up = np.where(scarce, (missing * tt + over * rt) / determinant, missing / (rr * sharpness))
    dearer = np.where(scarce, (over * rr + missing * rt) / determinant, 0.0)
    most_up, most_dearer = level / rr / sharpness, spent / tt / sharpness  # larger steps are not accurate
    rate = rate + CAUTION * np.clip(up, -most_up, most_up)
    time = time + CAUTION * np.clip(dearer, -most_dearer, most_dearer)
    return np.maximum(rate, _LEAST), np.maximum(time, 0.0)
