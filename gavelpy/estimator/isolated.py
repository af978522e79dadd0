"""Estimates rates of jobs that run alone: a Gaussian process on log rates with side information.

    log rate(k, t) = mean(k, t) + level(k) + relative(k, t) + noise

`level` is the speed of a job on all types (family, batch size, GPUs, the job itself). `relative` is the effect of one
type: terms common to all jobs, to a family, to a job type, and to neighbours in batch size and GPUs. One measured type
fixes the level, and similar jobs fix the rest. The mean is the roofline's where GPU specs and step costs are known.
GPU types with similar specs have similar effects: an H200 is an H100 with other memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gavelpy.estimator.gaussian import UNKNOWN_VARIANCE, Blocks, Posterior, conditioned, updated
from gavelpy.estimator.hyperparameters import (
    SLOPE_SD,
    IsolatedScales,
    Learned,
    Likeness,
    Observed,
    as_likeness,
    extended,
    learned,
    learned_again,
)
from gavelpy.estimator.kinds import Key, Sides, kind_of, sides
from gavelpy.estimator.roofline import Roofline
from gavelpy.estimator.stacking import RATES_MIN, Errors, Mixture, folds, mixture, simple_estimates, situations
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.throughput import Provenance, ThroughputTable

OBSERVATIONS_MAX = 700  # conditioned on jointly; a row's own entries always count
FIT_MAX = 300  # entries that hyper-parameters are learned from
FOLD_MAX = 120  # the same in a fold of the cross-validation
LEARN_MIN = 30  # entries; with fewer the shipped hyper-parameters are better
_LEVEL_SD = 2.0  # of any job, and of a family: a factor of seven either way
_BATCH_SLOPE, _GPUS_SLOPE = -0.5, 0.6  # of log rate per doubling, without a roofline
_TYPICAL_BATCH = 32
_GPU_LENGTH = 1.0  # doublings of peak rates and bandwidth over which GPU types are similar
_EXTRA_SD = {Provenance.MEASURED: 0.0, Provenance.PUBLISHED: 0.25, Provenance.ESTIMATED: 0.5, Provenance.PRIOR: 0.8}


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Log rates against their predictions from all others."""

    entries: Ints  # (n, 2) row and column
    off: Floats  # (n,) deviation from the prediction
    sd: Floats  # (n,) standard deviation of the prediction


@dataclass(frozen=True)
class IsolatedModel:
    """Hyper-parameters and prior mean, without measurements."""

    scales: IsolatedScales = field(default_factory=IsolatedScales)
    roofline: Roofline = field(default_factory=Roofline)
    likeness: Likeness = field(default_factory=Likeness)  # as learned; empty: by the specs of GPU types
    anchors: tuple[str, ...] = ()  # types with specs that types without are compared with; empty: all
    mixture: Mixture = field(default_factory=Mixture)  # with simple estimates, by cross-validation

    def given(self, table: ThroughputTable) -> IsolatedPosterior:
        """The model conditioned on the table's positive rates."""
        return IsolatedPosterior(self.anchored(table), table)

    def covariance(self, table: ThroughputTable, entries: Ints) -> tuple[Floats, Floats]:
        """Covariance of these entries, (n, n), and the variance of their noise, (n,)."""
        s, row, column = self.sides(table.keys), entries[:, 0], entries[:, 1]
        covariance = _covariance(self.scales, s, self.between(table.gpu_types), row, column)
        return covariance, self.scales.noise**2 + _extra_variance(table, entries)

    def left_out(self, table: ThroughputTable) -> LeftOut:
        """The table's log rates against their predictions from all others.

        Source: Rasmussen and Williams (2006), equations 5.12. It is computed without scipy, because commands check
        their input with it: scipy takes longer to load than they take otherwise.
        """
        anchored, entries = self.anchored(table), _entries(table, OBSERVATIONS_MAX)
        covariance, noise = anchored.covariance(table, entries)
        inverse = np.linalg.inv(covariance + np.diag(noise))
        precision = np.diagonal(inverse)
        return LeftOut(entries, inverse @ anchored.residual(table, entries) / precision, 1.0 / np.sqrt(precision))

    def calibrated(self, table: ThroughputTable) -> IsolatedModel:
        """The model with the roofline that fits the table best (takes milliseconds); hyper-parameters are unchanged."""
        return replace(self, roofline=self.roofline.calibrated(table))

    def fitted(self, table: ThroughputTable) -> IsolatedModel:
        """The model with hyper-parameters and roofline fitted to the table (a second at most).

        With fewer than LEARN_MIN rates only the roofline is calibrated.
        """
        model = self.calibrated(table).anchored(table)
        found = None
        if len(_entries(table, LEARN_MIN)) >= LEARN_MIN and len(table.gpu_types) > 1:
            found = learned(model.scales, model._observed(table, FIT_MAX))
        return replace(model._with(table, found), mixture=mixture(list(model._cross_validated(table, found))))

    def _with(self, table: ThroughputTable, found: Learned | None) -> IsolatedModel:
        if found is None:
            return self
        return replace(self, scales=found.scales, likeness=as_likeness(table.gpu_types, found.likeness))

    def _observed(self, table: ThroughputTable, at_most: int) -> Observed:
        entries = _entries(table, at_most)
        return Observed(
            self.sides(table.keys),
            entries[:, 0],
            entries[:, 1],
            self.residual(table, entries),
            _extra_variance(table, entries),
            self.alike(table.gpu_types),
            self.spread(table.gpu_types),
        )

    def _cross_validated(self, table: ThroughputTable, found: Learned | None) -> Iterator[Errors]:
        """Errors of hidden rates, with the model learned again from the remaining rates of each fold.

        Standard deviations are those of the model learned from the whole table: the widths apply to its intervals.
        """
        known, whole = _trusted(table), self._with(table, found)
        if known.sum() < RATES_MIN:
            return
        for hidden in folds(known):
            rest = replace(table, rate_steps_per_s=np.where(hidden, math.nan, table.rate_steps_per_s))
            left = known & ~hidden
            situation = situations(left)[hidden]
            if not (situation >= 0).any():
                continue
            again = None if found is None else learned_again(self.scales, self._observed(rest, FOLD_MAX), found)
            mean = self._with(table, again).given(rest).blocks(rest.keys, rest.gpu_types).mean
            sd = whole.given(rest).blocks(rest.keys, rest.gpu_types).sd
            estimate = np.concatenate([mean[:, :, None], simple_estimates(_log_rates(rest, left))], axis=-1)
            error = estimate[hidden] - np.log(table.rate_steps_per_s[hidden])[:, None]
            yield Errors(error, np.hypot(sd, whole.scales.noise)[hidden], situation)

    def anchored(self, table: ThroughputTable) -> IsolatedModel:
        """The model that treats a GPU type without specs, until it is measured, like the types of the table."""
        return replace(self, anchors=tuple(name for name in table.gpu_types if name in self.roofline.gpus))

    def mean(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """Prior mean of log rates, (N, T); each entry depends on its own key and type only."""
        s = sides(keys)
        slopes = _BATCH_SLOPE * s.log2_batch + _GPUS_SLOPE * s.log2_gpus
        plain = slopes[:, None] + self._typical(gpu_types)[None, :]
        if not self.roofline.gpus:
            return np.asarray(plain)
        known = self.roofline.log_rate(keys, gpu_types)
        everywhere = self.roofline.log_rate(keys, self._anchors).mean(axis=1, keepdims=True)
        on_all = np.where(np.isnan(known), everywhere, known)
        return np.where(np.isnan(everywhere), plain, on_all)

    def spread(self, gpu_types: Sequence[str]) -> Floats:
        """Variance of the speed of types without specs around the anchors, (T,); 0 for types with specs."""
        if len(self.anchors) < 2:
            return np.zeros(len(gpu_types))
        variance = float(np.var(self._typical(self.anchors), ddof=1))
        return np.array([0.0 if name in self.roofline.gpus else variance for name in gpu_types], dtype=np.float64)

    @property
    def _anchors(self) -> tuple[str, ...]:
        return self.anchors or tuple(self.roofline.gpus)

    def sides(self, keys: Sequence[Key]) -> Sides:
        """Side information of keys; families with known step costs have a smaller prior sd of the level."""
        knows = bool(self.roofline.gpus)
        has = np.array(
            [knows and kind_of(job_type).family in self.roofline.jobs for job_type, _ in keys], dtype=np.bool_
        )
        return sides(keys, np.where(has, self.roofline.calibration.sd / math.sqrt(2.0), _LEVEL_SD))

    def alike(self, gpu_types: Sequence[str]) -> Floats:
        """Correlation of the effects of GPU types by their specs, (T, T); 0 between types without specs."""
        gpus = [self.roofline.gpus.get(name) for name in gpu_types]
        figures = np.array(
            [
                (math.nan,) * 3 if gpu is None else (gpu.single_tflops, gpu.half_tflops, gpu.bandwidth_gb_per_s)
                for gpu in gpus
            ],
            dtype=np.float64,
        ).reshape(-1, 3)
        doublings = np.log2(figures)[:, None, :] - np.log2(figures)[None, :, :]
        alike = np.exp(-0.5 * np.square(doublings / _GPU_LENGTH).sum(axis=2))
        is_same = np.array([[one == other for other in gpu_types] for one in gpu_types], dtype=np.bool_)
        return np.where(is_same.reshape(alike.shape), 1.0, np.nan_to_num(alike))

    def between(self, gpu_types: tuple[str, ...]) -> Between:
        """Prior covariances between GPU types, and the learned likeness."""
        alike = self.alike(gpu_types)
        common = self.scales.relative_all**2 * alike + np.diag(self.spread(gpu_types))
        return Between(common, extended(self.likeness, gpu_types, alike))

    def _typical(self, gpu_types: Sequence[str]) -> Floats:
        """Mean log speed of each type over families with step costs, relative to the anchors, (T,); 0 without specs."""
        if not self.roofline.jobs or not self.roofline.gpus:
            return np.zeros(len(gpu_types))
        keys = [(f"{family} (batch size {_TYPICAL_BATCH})", 1) for family in self.roofline.jobs]
        names = tuple(self.roofline.gpus)
        speed = self.roofline.log_rate(keys, names).mean(axis=0)
        middle = speed[[names.index(name) for name in self._anchors]].mean()
        around = dict(zip(names, (speed - middle).tolist(), strict=True))
        return np.array([around.get(name, 0.0) for name in gpu_types], dtype=np.float64)

    def residual(self, table: ThroughputTable, entries: Ints) -> Floats:
        """Log rates of these entries minus their prior means, (n,)."""
        row, column = entries[:, 0], entries[:, 1]
        return np.asarray(
            np.log(table.rate_steps_per_s[row, column]) - self.mean(table.keys, table.gpu_types)[row, column]
        )


class IsolatedPosterior:
    """The model conditioned on a table."""

    def __init__(self, model: IsolatedModel, table: ThroughputTable) -> None:
        self.model, self.table = model, table
        self.entries = _entries(table, OBSERVATIONS_MAX)
        self._row = {key: row for row, key in enumerate(table.keys)}
        row, column = self.entries[:, 0], self.entries[:, 1]
        covariance, noise = model.covariance(table, self.entries)
        self.posterior: Posterior = conditioned(covariance, noise, model.residual(table, self.entries))
        self._is_in = np.zeros(table.rate_steps_per_s.shape, dtype=np.bool_)
        self._is_in[row, column] = True

    def blocks(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Blocks:
        """Posterior of these keys on these types; neither need be in the table."""
        N, T = len(keys), len(gpu_types)
        names = {name: i for i, name in enumerate(dict.fromkeys([*self.table.gpu_types, *gpu_types]))}
        s = self.model.sides([*self.table.keys, *keys])
        rows = len(self.table.keys) + np.arange(N)
        columns = np.array([names[name] for name in gpu_types], dtype=np.int64)
        scales, types = self.model.scales, self.model.between(tuple(names))
        level, relative = _parts(scales, s, self.entries[:, 0], rows)
        at = np.ix_(self.entries[:, 1], columns)
        cross = relative[:, :, None] * types.own[at][:, None, :]
        cross += level[:, :, None]
        cross += types.common[at][:, None, :]
        cross = cross.reshape(-1, N * T)
        explained = self.posterior.explained(cross).reshape(-1, N, T)
        by_key = np.ascontiguousarray(np.moveaxis(explained, 1, 0))  # (N, n, T)
        at = np.ix_(columns, columns)
        covariance = _own_covariance(scales, s, Between(types.common[at], types.own[at]), rows)
        covariance -= np.matmul(np.swapaxes(by_key, 1, 2), by_key)
        mean = self.model.mean(keys, gpu_types) + self.posterior.mean(cross).reshape(N, T)
        blocks = self._widened(keys, self._with_own(keys, gpu_types, Blocks(mean, covariance)))
        return self._stacked(keys, gpu_types, blocks)

    def _stacked(self, keys: Sequence[Key], gpu_types: Sequence[str], blocks: Blocks) -> Blocks:
        """The blocks with the means and widths of the mixture, where the table has the key and the type."""
        if self.model.mixture == Mixture() or not self.table.keys:
            return blocks
        column = {name: i for i, name in enumerate(self.table.gpu_types)}
        at = np.ix_([self._row.get(key, -1) for key in keys], [column.get(name, -1) for name in gpu_types])
        situation = np.pad(self._situation, ((0, 1), (0, 1)), constant_values=-1)[at]
        weights = np.array([*self.model.mixture.weights, (1.0, 0.0, 0.0, 0.0)])[situation]
        width = np.array([*self.model.mixture.widths, 1.0])[situation]
        simple = np.pad(self._simple, ((0, 1), (0, 1), (0, 0)))[at]
        mean = weights[:, :, 0] * blocks.mean + (weights[:, :, 1:] * simple).sum(axis=-1)
        covariance = blocks.covariance * width[:, :, None] * width[:, None, :]
        more = np.maximum(np.square(width) - 1.0, 0.0) * self.model.scales.noise**2
        return Blocks(mean, covariance + more[:, :, None] * np.eye(blocks.mean.shape[1]))

    @cached_property
    def _simple(self) -> Floats:
        """Simple estimates of the table's entries, (N, T, 3)."""
        return simple_estimates(_log_rates(self.table, _trusted(self.table)))

    @cached_property
    def _situation(self) -> Ints:
        """Of the table's entries, (N, T); -1 where the table has a rate."""
        return np.where(self.table.rate_steps_per_s > 0, -1, situations(_trusted(self.table)))

    def _widened(self, keys: Sequence[Key], blocks: Blocks) -> Blocks:
        """Widens intervals as left-out entries require: the fewer entries of a row are known, the wider."""
        more = self.model.scales.few - 1.0
        if more <= 0.0:
            return blocks
        known = np.append((self.table.rate_steps_per_s > 0).sum(axis=1), 0)
        count = known[[self._row.get(key, -1) for key in keys]]
        factor = np.square(1.0 + more / np.maximum(count, 1))[:, None, None]
        noise = self.model.scales.noise**2 * np.eye(blocks.mean.shape[1])
        return Blocks(blocks.mean, blocks.covariance * factor + (factor - 1.0) * noise)

    def _with_own(self, keys: Sequence[Key], gpu_types: Sequence[str], blocks: Blocks) -> Blocks:
        """Conditions the blocks on the keys' own entries that the joint posterior leaves out."""
        if not self._row:
            return blocks
        seen, noise = blocks.mean.copy(), np.full(blocks.mean.shape, UNKNOWN_VARIANCE)
        column = {name: i for i, name in enumerate(self.table.gpu_types)}
        mine = np.array([self._row.get(key, -1) for key in keys], dtype=np.int64)
        for t, name in enumerate(gpu_types):
            if name not in column:
                continue
            c = column[name]
            rates = np.where(mine >= 0, self.table.rate_steps_per_s[mine, c], math.nan)
            left_out = (rates > 0) & ~self._is_in[mine, c]
            seen[left_out, t] = np.log(rates[left_out])
            kinds = self.table.provenance[mine[left_out], c]
            noise[left_out, t] = self.model.scales.noise**2 + _extra_of(kinds) ** 2
        changed = (noise < UNKNOWN_VARIANCE).any(axis=1)
        if not changed.any():
            return blocks
        mean, covariance = blocks.mean.copy(), blocks.covariance.copy()
        own = noise[changed][:, :, None] * np.eye(len(gpu_types))
        mean[changed], covariance[changed] = updated(mean[changed], covariance[changed], seen[changed], own)
        return Blocks(mean, covariance)


def _entries(table: ThroughputTable, at_most: int) -> Ints:
    """Row and column of the positive rates, (n, 2); if more than `at_most`, an even selection."""
    entries = np.argwhere(table.rate_steps_per_s > 0)
    if len(entries) > at_most:
        entries = entries[np.linspace(0, len(entries) - 1, at_most).astype(np.int64)]
    return entries.astype(np.int64)


def _trusted(table: ThroughputTable) -> Bools:
    """Entries that are measured or published, (N, T)."""
    return np.asarray((table.rate_steps_per_s > 0) & (table.provenance <= Provenance.PUBLISHED))


def _log_rates(table: ThroughputTable, known: Bools) -> Floats:
    """Logarithms of these entries, NaN elsewhere, (N, T)."""
    return np.log(np.where(known, table.rate_steps_per_s, math.nan))


def _extra_variance(table: ThroughputTable, entries: Ints) -> Floats:
    return _extra_of(table.provenance[entries[:, 0], entries[:, 1]]) ** 2


def _extra_of(kinds: Ints) -> Floats:
    return np.array([_EXTRA_SD[kind] for kind in Provenance])[kinds]


@dataclass(frozen=True, eq=False)
class Between:
    """Covariances between GPU types."""

    common: Floats  # (T, T) of a type's effect on all jobs
    own: Floats  # (T, T) of its effect on one job; multiplied by the likeness of two jobs


def _covariance(k: IsolatedScales, s: Sides, types: Between, row: Ints, column: Ints) -> Floats:
    """Covariance between entries (row, column)."""
    level, relative = _parts(k, s, row, row)
    at = np.ix_(column, column)
    relative *= types.own[at]
    relative += types.common[at]
    return np.asarray(np.add(level, relative, out=level))


def _own_covariance(k: IsolatedScales, s: Sides, types: Between, rows: Ints) -> Floats:
    """Covariance of each row with itself on all types, (N, T, T)."""
    slopes = SLOPE_SD**2 * (s.log2_batch[rows] ** 2 + s.log2_gpus[rows] ** 2)
    level = 2.0 * np.square(k.level * s.level_sd[rows]) + slopes + k.level_near**2 + k.level_job**2
    relative = k.relative_family**2 + k.relative_batch**2
    relative += k.relative_near**2 + k.relative_gpus**2 + k.relative_job_type**2
    return np.asarray(level[:, None, None] + relative * types.own[None] + types.common[None])


def _parts(k: IsolatedScales, s: Sides, row: Ints, other: Ints) -> tuple[Floats, Floats]:
    """Covariance of the level, which is common to all types, and of the effect of one type on a job."""
    family = s.family[row][:, None] == s.family[other][None, :]
    job_type = s.job_type[row][:, None] == s.job_type[other][None, :]
    batch, gpus = s.log2_batch[row], s.log2_gpus[row]
    other_batch, other_gpus = s.log2_batch[other], s.log2_gpus[other]
    near_batch = family * np.exp(-0.5 * ((batch[:, None] - other_batch[None, :]) / k.batch_length) ** 2)
    near_gpus = family * np.exp(-0.5 * ((gpus[:, None] - other_gpus[None, :]) / k.gpus_length) ** 2)
    near = near_batch * near_gpus
    is_same = job_type & (gpus[:, None] == other_gpus[None, :])
    slopes = SLOPE_SD**2 * (np.outer(batch, other_batch) + np.outer(gpus, other_gpus))
    level = (
        k.level**2 * np.outer(s.level_sd[row], s.level_sd[other]) * (1.0 + family)
        + slopes
        + k.level_near**2 * near
        + k.level_job**2 * is_same
    )
    relative = k.relative_family**2 * family + k.relative_batch**2 * near_batch
    relative = relative + k.relative_near**2 * near + k.relative_gpus**2 * near_gpus
    return np.asarray(level), np.asarray(relative + k.relative_job_type**2 * job_type)
