"""Estimates slowdowns of co-located jobs: a Gaussian process on the log of the co-located rate over the rate alone.

    log slowdown(i, j, t) ~ GP with covariance  kt(t, t') (a k(i, i') + b k(j, j') + c k(i, i') k(j, j'))

Job i is co-located with job j on GPU type t; k compares jobs (family, batch size, the job itself). The first term is
the sensitivity of i to any partner, the second the pressure of j on any partner, the third their interaction. Slowdowns
are in units of the type's own spread: on a fast type, where only some jobs wait for their host, partners matter more.
With many measured pairs, latent factors of jobs are added (`gavelpy/estimator/latent.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np

from gavelpy.estimator import latent
from gavelpy.estimator.gaussian import Posterior, by_evidence, conditioned
from gavelpy.estimator.kinds import Key, sides
from gavelpy.estimator.latent import PairScales, likeness, prior_variance
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.throughput import ThroughputTable

OBSERVATIONS_MAX = 2000  # conditioned on jointly; a cell's own measurement always counts
FIT_MAX = 350
_CAUTION_POWER = 4  # of the explained share of variance; a lower power leaves pairs untried with an empty table
EXACT_MAX = 4e7  # cells times observations up to which each cell's standard deviation is computed
_MEAN_SLOWDOWN = -0.55  # prior mean of the log: each of two jobs runs at 58 %
_MEAN_WORTH = 4.0  # weight of the prior mean, in observations
_SPREAD_WORTH = 20.0  # weight of the common spread, in observations, against a type's own
_MEASURED_MAX = 4  # log2 of the measurements by which cells are grouped to share a standard deviation
_REPRESENTATIVES = 4
CHECKED_MAX, _CHECKED_MIN = 400, 40  # observations that the width of intervals is learned from
_WIDTH_MIN, _WIDTH_MAX = 0.15, 1.6
_PAIRS_KNOWN = 40.0  # measured pairs of a job that halve the widening
_NORMAL_90 = 1.6448536269514722


@dataclass(frozen=True, eq=False)
class Slowdowns:
    """Gaussians on log slowdowns of N keys with N partners on T types."""

    mean: Floats  # (N, N, T) of the first, co-located with the second
    sd: Floats  # (N, N, T)
    noise_sd: Floats  # (T,) of a measurement on each type
    prior_sd: Floats  # (T,) where nothing is measured


@dataclass(frozen=True, eq=False)
class Measured:
    """Pairs that ran, n of them; each pair of the table occurs twice, once per member."""

    first: Ints  # (n,) rows of the table's keys
    second: Ints  # (n,)
    gpu_type: Ints  # (n,)
    log_slowdown: Floats  # (n,) above 0 where a job is faster co-located than alone
    alone_variance: Floats  # (n,) of the logarithm of the rate alone; 0 where it is known

    def of(self, chosen: Ints | Bools) -> Measured:
        """The chosen observations."""
        jobs = self.first[chosen], self.second[chosen], self.gpu_type[chosen]
        return Measured(*jobs, self.log_slowdown[chosen], self.alone_variance[chosen])


@dataclass(frozen=True, eq=False)
class Alone:
    """Estimated log rates alone that a table lacks; rows and columns are the table's."""

    mean: Floats  # (N, T); NaN: no estimate
    variance: Floats  # (N, T)


@dataclass(frozen=True)
class PairModel:
    """Hyper-parameters, without measurements."""

    scales: PairScales = field(default_factory=PairScales)

    def given(self, table: ThroughputTable, alone: Alone | None = None) -> PairPosterior:
        """Conditions on the table's pairs with rates > 0 and a known or estimated rate alone."""
        return PairPosterior(self, table, alone)

    def fitted(self, table: ThroughputTable) -> PairModel:
        """The model with the hyper-parameters that explain the table best; unchanged without data."""
        seen = _spread(measured(table), FIT_MAX)
        if len(seen.first) < 2 * len(astuple(self.scales)):
            return self
        s = sides(table.keys)

        def covariance(x: Floats) -> tuple[Floats, Floats]:
            scales = PairScales(*x.tolist())
            jobs = likeness(scales, s, np.arange(len(table.keys)), np.arange(len(table.keys)))
            return _covariance(scales, jobs, seen, seen), np.full(len(seen.first), scales.noise**2)

        mean = _mean(seen)
        residual = (seen.log_slowdown - mean) / _spreads(seen, mean, len(table.gpu_types))[seen.gpu_type]
        found = by_evidence(np.log(astuple(self.scales)), covariance, residual)
        return PairModel(PairScales(*np.exp(found).tolist()))


class PairPosterior:
    """The model conditioned on a table."""

    def __init__(self, model: PairModel, table: ThroughputTable, alone: Alone | None = None) -> None:
        self.model, self.table = model, table
        self.everything = measured(table, alone)
        self.seen = _spread(self.everything, OBSERVATIONS_MAX)
        exact = self.everything.of(self.everything.alone_variance == 0.0)
        self.mean = _mean(exact)
        self.spread = _spreads(exact, self.mean, len(table.gpu_types))
        rows = np.arange(len(table.keys))
        jobs = likeness(model.scales, sides(table.keys), rows, rows)
        self.factors = self._learned_factors(exact, jobs)
        self.scales = replace(model.scales, both=model.scales.both * self.factors.pairs_own)
        noise = np.full(len(self.seen.first), model.scales.noise**2)
        covariance = self._observed(jobs, self.seen)
        residual = (self.seen.log_slowdown - self.mean) / self.spread[self.seen.gpu_type]
        residual += self.factors.product(self.seen.first, self.seen.second)
        self.posterior: Posterior = conditioned(covariance, noise, residual)
        self.widths = self._checked(residual)

    def _learned_factors(self, exact: Measured, jobs: Floats) -> latent.Factors:
        residual, N = (exact.log_slowdown - self.mean) / self.spread[exact.gpu_type], len(self.table.keys)
        cells = latent.cells(exact.first, exact.second, exact.gpu_type, residual, N)
        first, second, k = cells.first, cells.second, self.model.scales
        if len(first) == 0:
            return latent.none(N)
        kinds = k.all_types**2 + cells.kinds @ cells.kinds.T
        alone, partner = jobs[np.ix_(first, first)], jobs[np.ix_(second, second)]

        def covariance_of(pairs_own: float) -> Floats:
            both = (pairs_own * k.both) ** 2 * alone * partner
            covariance = kinds * (k.first**2 * alone + k.second**2 * partner + both)
            return np.asarray(covariance + np.diag(k.noise**2 / cells.types))

        return latent.learned(cells, N, covariance_of)

    def _observed(self, jobs: Floats, seen: Measured) -> Floats:
        """Covariance of observations without noise, (n, n)."""
        covariance = _covariance(self.scales, jobs, seen, seen) + _same_alone(seen, self.spread)
        if self.factors.scale > 0.0:
            covariance += self.factors.covariance(seen.first, seen.second, seen.first, seen.second)
        return covariance

    def _checked(self, residual: Floats) -> tuple[float, float]:
        """Factors of intervals that contain 90 % of left-out pairs: one at a time, and four of five of a job."""
        every = max(1, -(-len(residual) // CHECKED_MAX))
        few = self.seen.of(np.arange(0, len(residual), every))
        rest, rows = residual[::every], np.arange(len(self.table.keys))
        if len(rest) < _CHECKED_MIN:
            return 1.0, 1.0
        jobs = likeness(self.model.scales, sides(self.table.keys), rows, rows)
        covariance = self._observed(jobs, few)
        inverse = np.linalg.inv(covariance + self.model.scales.noise**2 * np.eye(len(rest)))
        weight, off = inverse @ rest, []
        for job in np.unique(few.first).tolist():
            mine = np.flatnonzero((few.first == job) | (few.second == job))
            left = mine[np.arange(len(mine)) % 5 != 0]
            if len(left):
                spread = np.linalg.inv(inverse[np.ix_(left, left)])
                off.append(np.abs(spread @ weight[left]) / np.sqrt(np.maximum(np.diag(spread), 1e-12)))
        many = _width(np.abs(weight) / np.sqrt(np.maximum(np.diag(inverse), 1e-12)))
        return many, max(many, _width(np.concatenate(off))) if off else many

    def _widths(self, keys: Sequence[Key]) -> Floats:
        """Interval factors of cells, (N, N): the fewer pairs of either job are measured, the wider."""
        many, few = self.widths
        mine = np.bincount(self.everything.first, minlength=len(self.table.keys) + 1)[self._places(keys)]
        return np.asarray(many + (few - many) / (1.0 + np.minimum.outer(mine, mine) / _PAIRS_KNOWN))

    def slowdowns(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Slowdowns:
        """Slowdowns of every key with every partner, itself included; keys and types need not be in the table."""
        known, N, T = len(self.table.keys), len(keys), len(gpu_types)
        names = {name: i for i, name in enumerate(dict.fromkeys([*self.table.gpu_types, *gpu_types]))}
        columns = np.array([names[name] for name in gpu_types], dtype=np.int64)
        s = sides([*self.table.keys, *keys])
        jobs = likeness(self.model.scales, s, known + np.arange(N), np.arange(known))
        spread = np.concatenate([self.spread, np.ones(T)])[columns]  # a type outside the table has the common spread
        place = self._places(keys)
        mean = self._means(jobs, columns, place)
        if N * N * T * max(len(self.seen.first), 1) <= EXACT_MAX:
            first, second, t = (axis.ravel() for axis in np.indices((N, N, T)))
            variance = self._variance(jobs, first, second, columns[t], place).reshape(N, N, T)
        else:
            variance = self._grouped_variance(jobs, columns, keys, place)
        self._take_measured(keys, columns, mean, variance)
        noise_sd, prior_sd = (
            self.widths[0] * self.model.scales.noise * spread,
            math.sqrt(self._prior_variance()) * spread,
        )
        sd = np.sqrt(variance, out=variance)
        sd *= spread
        mean *= spread
        mean += self.mean
        sd *= self._widths(keys)[:, :, None]
        return Slowdowns(mean, sd, noise_sd, prior_sd)

    def alone(self) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        """Updates of unknown rates alone by the pairs, (m,) each.

        Returns rows, columns, the shift of the mean of the log rate, its variance before, its variance after.
        """
        seen = self.seen.of(self.seen.alone_variance > 0)
        cells, at = np.unique(np.column_stack([seen.first, seen.gpu_type]), axis=0, return_index=True)
        row, column = cells.T
        before = seen.alone_variance[at]
        same = (self.seen.first[:, None] == row) & (self.seen.gpu_type[:, None] == column)
        cross = np.where(same, before / self.spread[column], 0.0)
        now = before - np.square(self.posterior.explained(cross)).sum(axis=0)
        return row, column, self.posterior.mean(cross), before, now

    def _means(self, jobs: Floats, columns: Ints, place: Ints) -> Floats:
        """Posterior means relative to the common mean, (N, N, T), as weighted sums of covariances."""
        k, everywhere = self.scales, np.ones(len(self.seen.first), dtype=np.bool_)
        common = k.all_types**2 * self._sums(jobs, everywhere)
        if self.factors.scale > 0.0:
            factors = self.factors.padded(1)
            u, v = factors.sensitivity[place], factors.pressure[place]
            now = factors.corrected(self.seen.first, self.seen.second, self.posterior.weight)
            common += now[0][place] @ v.T + u @ now[1][place].T - u @ v.T
        mean = np.empty((len(jobs), len(jobs), len(columns)))
        for t, column in enumerate(columns.tolist()):
            mean[:, :, t] = common + self._sums(jobs, self.seen.gpu_type == column)
        return mean

    def _sums(self, jobs: Floats, mine: Bools) -> Floats:
        """Weighted sums of covariances over these observations, (N, N)."""
        k, seen, weight = self.scales, self.seen, self.posterior.weight[mine]
        alone, partner = jobs[:, seen.first[mine]], jobs[:, seen.second[mine]]
        together = (k.both**2 * weight * alone) @ partner.T
        together += (k.first**2 * (alone @ weight))[:, None]
        together += (k.second**2 * (partner @ weight))[None, :]
        return np.asarray(together)

    def _variance(self, jobs: Floats, first: Ints, second: Ints, column: Ints, place: Ints) -> Floats:
        """Posterior variance of m cells, (m,)."""
        k, seen, factors = self.scales, self.seen, self.factors.padded(1)
        variance = self._variances(first, second, place)
        for start in range(0, len(first), 4096):
            part = slice(start, start + 4096)
            alone, partner = jobs[first[part]][:, seen.first], jobs[second[part]][:, seen.second]
            kinds = k.all_types**2 + (column[part][:, None] == seen.gpu_type[None, :])
            cross = kinds * (k.first**2 * alone + k.second**2 * partner + k.both**2 * alone * partner)
            if factors.scale > 0.0:
                cross += factors.covariance(place[first[part]], place[second[part]], seen.first, seen.second)
            variance[part] -= np.square(self.posterior.explained(np.asarray(cross.T))).sum(axis=0)
        return np.asarray(np.maximum(variance, 0.0))

    def _variances(self, first: Ints, second: Ints, place: Ints) -> Floats:
        """Prior variance of m cells, (m,)."""
        factors = self.factors.padded(1)
        u, v = (np.square(factors.scale * of[place]).sum(axis=1) for of in (factors.sensitivity, factors.pressure))
        unknown = 1.0 / (1.0 + np.bincount(self.seen.first, minlength=len(self.table.keys) + 1)[place])
        rest = factors.prior_variance * unknown[first] * unknown[second]  # of second order
        return np.asarray(prior_variance(self.scales) + v[second] + u[first] + rest)

    def _prior_variance(self) -> float:
        return prior_variance(self.scales) + self.factors.prior_variance

    def _places(self, keys: Sequence[Key]) -> Ints:
        """Rows of keys in the table; one past the last for other keys."""
        row = {key: i for i, key in enumerate(self.table.keys)}
        return np.array([row.get(key, len(row)) for key in keys], dtype=np.int64)

    def _grouped_variance(self, jobs: Floats, columns: Ints, keys: Sequence[Key], mine: Ints) -> Floats:
        """Posterior variances for many cells, (N, N, T), shared by cells of jobs with equally many measurements.

        Each is the mean over a few cells of the group, evenly spread.
        """
        often = np.zeros((len(keys), len(columns)), dtype=np.int64)
        for t, column in enumerate(columns.tolist()):
            here = self.seen.gpu_type == column
            count = np.bincount(self.seen.first[here], minlength=len(self.table.keys) + 1)[mine]
            often[:, t] = np.minimum(np.ceil(np.log2(count + 1)), _MEASURED_MAX)
        group = often[:, None, :] * (_MEASURED_MAX + 1) + often[None, :, :]
        values = np.zeros((_MEASURED_MAX + 1) ** 2)
        flat = group.ravel()
        for number in np.flatnonzero(np.bincount(flat)).tolist():
            cells = np.flatnonzero(flat == number)
            cells = cells[np.linspace(0, len(cells) - 1, min(_REPRESENTATIVES, len(cells))).astype(np.int64)]
            at = np.unravel_index(cells, group.shape)
            values[number] = self._variance(jobs, at[0], at[1], columns[at[2]], mine).mean()
        return np.asarray(values[group])

    def _take_measured(self, keys: Sequence[Key], columns: Ints, mean: Floats, variance: Floats) -> None:
        """Conditions measured cells on their own measurement if the joint posterior leaves it out."""
        seen = self.everything
        if len(seen.first) == len(self.seen.first):
            return
        place = {key: i for i, key in enumerate(keys)}
        rows = np.array([place.get(key, -1) for key in self.table.keys], dtype=np.int64)
        types = np.full(len(self.table.gpu_types) + len(columns), -1)
        types[columns] = np.arange(len(columns))
        first, second, t = rows[seen.first], rows[seen.second], types[seen.gpu_type]
        included = (first >= 0) & (second >= 0) & (t >= 0)
        cell = first[included], second[included], t[included]
        noise = self.model.scales.noise**2 + seen.alone_variance[included] / np.square(
            self.spread[seen.gpu_type[included]]
        )
        gain = variance[cell] / (variance[cell] + noise)
        residual = (seen.log_slowdown[included] - self.mean) / self.spread[seen.gpu_type[included]]
        mean[cell] += gain * (residual - mean[cell])
        variance[cell] *= 1.0 - gain


def slowdown_quantile(slowdowns: Slowdowns, fits: Floats, quantile: float) -> Floats:
    """This quantile of slowdowns, (N, N, T): shares of a key's rate alone when co-located with another.

    A pair that does not fit, with probability 1 - fits, has slowdown 0; so has one for which that is as likely as the
    quantile. Picking the best of many noisy estimates is biased upwards (winner's curse), which a low quantile offsets.
    Without measurements there is no such bias, so caution grows with the share of variance that measurements explain.
    """
    from scipy.special import ndtri

    does_fit = fits > 1.0 - quantile
    among = np.divide(quantile - 1.0 + fits, fits, out=np.full_like(fits, 0.5), where=does_fit)  # of those that fit
    explained = 1.0 - np.square(slowdowns.sd / slowdowns.prior_sd)
    caution = ndtri(among) * slowdowns.sd * np.maximum(explained, 0.0) ** _CAUTION_POWER
    return np.where(does_fit, np.exp(slowdowns.mean + caution), 0.0)


def measured(table: ThroughputTable, alone: Alone | None = None) -> Measured:
    """The table's pairs that ran, once per member, if the rate alone is known or estimated."""
    rows, rates = table.pair_rows, table.pair_rate_steps_per_s
    known = table.rate_steps_per_s
    with np.errstate(divide="ignore", invalid="ignore"):
        log_alone, variance = np.log(known), np.zeros_like(known)
        if alone is not None:
            log_alone = np.where(np.isnan(known), alone.mean, log_alone)
            variance = np.where(np.isnan(known), alone.variance, variance)
        slowdown = np.log(rates) - log_alone[rows]
    is_known: Bools = (rates > 0) & np.isfinite(log_alone[rows])
    pair, side, gpu_type = np.nonzero(is_known)
    first, second = rows[pair, side], rows[pair, 1 - side]
    once = (first != second) | (side == 0)
    return Measured(first, second, gpu_type, slowdown[is_known], variance[rows][is_known]).of(once)


def _spread(seen: Measured, at_most: int) -> Measured:
    """At most this many observations, equally many per job: each job's k-th precedes any job's (k + 1)-th."""
    if len(seen.first) <= at_most:
        return seen
    shuffled = np.argsort((np.arange(len(seen.first)) * 0.6180339887498949) % 1.0, kind="stable")  # golden ratio
    order = shuffled[np.argsort(seen.first[shuffled], kind="stable")]
    starts = np.searchsorted(seen.first[order], seen.first[order])
    kept = np.sort(order[np.argsort(np.arange(len(order)) - starts, kind="stable")[:at_most]])
    return seen.of(kept)


def _width(distance: Floats) -> float:
    """Factor of intervals that contain 90 % of these distances, in standard deviations."""
    return min(max(float(np.quantile(distance, 0.9)) / _NORMAL_90, _WIDTH_MIN), _WIDTH_MAX)


def _mean(seen: Measured) -> float:
    total = seen.log_slowdown.sum() + _MEAN_WORTH * _MEAN_SLOWDOWN
    return float(total / (len(seen.log_slowdown) + _MEAN_WORTH))


def _spreads(seen: Measured, mean: float, types: int) -> Floats:
    """Spread of slowdowns on each type relative to the spread on all types, (T,)."""
    squares = np.square(seen.log_slowdown - mean)
    count = np.bincount(seen.gpu_type, minlength=types)
    common = float(squares.mean()) if len(squares) else 0.0
    if common <= 0.0:
        return np.ones(types)
    own = np.bincount(seen.gpu_type, squares, minlength=types) / common
    return np.asarray(np.sqrt((own + _SPREAD_WORTH) / (count + _SPREAD_WORTH)))


def _covariance(k: PairScales, jobs: Floats, a: Measured, b: Measured) -> Floats:
    alone, partner = jobs[np.ix_(a.first, b.first)], jobs[np.ix_(a.second, b.second)]
    covariance = k.both**2 * alone
    covariance += k.second**2  # second, and both, times how alike the partners are
    covariance *= partner
    alone *= k.first**2
    covariance += alone
    covariance *= np.array([k.all_types**2, k.all_types**2 + 1.0])[(a.gpu_type[:, None] == b.gpu_type).view(np.int8)]
    return np.asarray(covariance)


def _same_alone(seen: Measured, spread: Floats) -> Floats:
    """Common error of observations that share an uncertain rate alone, (n, n)."""
    variance = seen.alone_variance / np.square(spread[seen.gpu_type])
    same = (seen.first[:, None] == seen.first) & (seen.gpu_type[:, None] == seen.gpu_type)
    return np.where(same, variance[:, None], 0.0)
