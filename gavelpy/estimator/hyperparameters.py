"""Learns the hyper-parameters of rates alone from a table (empirical Bayes), starting from the shipped ones.

Three parts are learned in turn: the scales, at their most probable values (evidence times a log-normal prior around
the shipped scales); the likeness of GPU types, a covariance B of T types, by expectation-maximisation with an inverse
Wishart prior around the likeness by GPU specs; and the width of intervals, by leaving entries out.

    log rate = mean + level + common(t) + own(k, t) + noise        own ~ N(0, J x B)

With little evidence this is the row-plus-column mean; B adds what a factorisation of any rank would find.
Dempster, Laird and Rubin, 1977; Rasmussen and Williams (2006), sections 5.4.1 and 5.4.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import ClassVar, Final

import numpy as np
from numpy.linalg import LinAlgError

from gavelpy.estimator.kinds import Sides
from gavelpy.model.arrays import Floats, Ints

SLOPE_SD: Final = 0.1  # of a family's slopes, per doubling of batch size or GPUs
_SD_MIN = 0.5  # least corrected variance, as a share of the noise variance
_NORMAL_90 = 1.6448536269514722
_WORTH = 1.5  # weight of the prior of B, in rows per GPU type
_ROUNDS = ((15, 10), (10, 10))  # iterations for the scales, then for B
_AGAIN_STEPS = 8  # iterations of each when learning from a part of a table
_WIDTH_MIN, _WIDTH_MAX, _FEW_MAX = 0.6, 1.8, 2.5
_FAMILIES_AHEAD = 2.0  # log density per entry, over the families, by which learned scales (which saw it) must win
_ENTRIES_MIN = 10  # least number of left-out entries for learning a width
_PRIOR_SD = {  # of log scales; 0.5 where not named
    "relative_all": 1.0,
    "noise": 1.0,
}
_RELATIVE_SD = 2.0  # of a factor common to all relative terms


@dataclass(frozen=True)
class IsolatedScales:
    """Lengths in doublings, standard deviations of log rates. Defaults: fitted to Gavel's table."""

    FIXED: ClassVar = ("few",)  # not a term of the covariance

    batch_length: float = 4.0
    gpus_length: float = 1.0
    level_near: float = 1.2
    level_job: float = 0.05
    relative_all: float = 0.7
    relative_family: float = 0.25
    relative_batch: float = 0.1
    relative_near: float = 0.35
    relative_gpus: float = 0.2
    relative_job_type: float = 0.15
    noise: float = 0.07
    level: float = 1.0  # factor on the prior sd of a job's speed, `Sides.level_sd`
    few: float = 1.0  # widens the intervals of a row with one known entry or none


@dataclass(frozen=True)
class Likeness:
    """Likeness of GPU types: a covariance of their effects on jobs, learned from a table."""

    gpu_types: tuple[str, ...] = ()
    values: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Observed:
    """The entries to learn from, n of them."""

    sides: Sides  # of the table's keys
    row: Ints  # (n,)
    column: Ints  # (n,)
    residual: Floats  # (n,) log rates minus their prior means
    extra_variance: Floats  # (n,) of entries that are not measurements
    alike: Floats  # (T, T) by GPU specs
    spread: Floats  # (T,) extra variance of the common part


@dataclass(frozen=True)
class Checked:
    """Left-out entries: their mean negative log density, and widths of intervals that contain 90 %."""

    score: float
    many: float  # where the rest of the row is known
    few: float  # where one entry of the row is known, over `many`


class Source(Enum):
    """Origin of learned hyper-parameters."""

    SHIPPED = "shipped scales"
    SCALES = "learned scales"
    LIKENESS = "learned scales and likeness"


@dataclass(frozen=True, eq=False)
class Learned:
    """Hyper-parameters learned from entries."""

    scales: IsolatedScales
    likeness: Floats  # (T, T)
    source: Source
    checked: Checked


def learned(start: IsolatedScales, observed: Observed) -> Learned:
    """The best of shipped scales, learned scales, and learned scales with B, by the prediction of left-out entries.

    Learned scales get intervals that contain 90 % of the left-out entries; shipped scales are widened half as far.
    """
    problem = _Problem(start, observed)
    x, plain = problem.start, observed.alike
    shipped = problem.checked(x, plain, is_learned=False)
    x = problem.most_probable(x, plain, sum(steps for steps, _ in _ROUNDS))
    by_figures = problem.checked(x, plain, is_learned=False)
    y, likeness = x, plain
    for scale_steps, likeness_steps in _ROUNDS:
        likeness = problem.likeness(y, likeness, likeness_steps)
        y = problem.most_probable(y, likeness, scale_steps)
    by_data = problem.checked(y, likeness, is_learned=True)
    if shipped.score <= min(by_figures.score, by_data.score) + _FAMILIES_AHEAD / problem.families:
        milder = replace(shipped, many=math.sqrt(shipped.many), few=1.0)  # rows of a family are not independent
        return Learned(problem.scales(problem.start, milder), plain, Source.SHIPPED, milder)
    if by_data.score < by_figures.score:
        return Learned(problem.scales(y, by_data), likeness, Source.LIKENESS, by_data)
    return Learned(problem.scales(x, by_figures), plain, Source.SCALES, by_figures)


def learned_again(start: IsolatedScales, observed: Observed, before: Learned) -> Learned:
    """Learns from a part of the entries in fewer steps; keeps the source and the widths of `before`."""
    problem = _Problem(start, observed)
    x, likeness = problem.start, observed.alike
    if before.source is not Source.SHIPPED:
        x = problem.most_probable(x, likeness, _AGAIN_STEPS)
    if before.source is Source.LIKENESS:
        likeness = problem.likeness(x, likeness, _AGAIN_STEPS)
        x = problem.most_probable(x, likeness, _AGAIN_STEPS)
    return replace(before, scales=problem.scales(x, before.checked), likeness=likeness)


class _Problem:
    """Covariances of the entries as functions of x: log scales and the log factor of the relative terms."""

    def __init__(self, start: IsolatedScales, observed: Observed) -> None:
        self.observed = o = observed
        self.names = [
            name for name in (part.name for part in fields(IsolatedScales)) if name not in IsolatedScales.FIXED
        ]
        self.start = np.array([math.log(getattr(start, name)) for name in self.names] + [0.0])
        self.prior_sd = np.array([_PRIOR_SD.get(name, 0.5) for name in self.names] + [_RELATIVE_SD])
        rows, self.starts, self.at = np.unique(o.row, return_index=True, return_inverse=True)
        s, level_sd = o.sides, o.sides.level_sd[rows]
        family, job_type = (
            np.equal.outer(part[rows], part[rows]).astype(np.float64) for part in (s.family, s.job_type)
        )
        batch, gpus = s.log2_batch[rows], s.log2_gpus[rows]
        self.family, self.job_type = family, job_type
        self.batch, self.gpus = (np.square(np.subtract.outer(part, part)) for part in (batch, gpus))
        self.same = job_type * (self.gpus == 0)
        self.slopes = SLOPE_SD**2 * (np.outer(batch, batch) + np.outer(gpus, gpus))
        self.level = np.outer(level_sd, level_sd) * (1.0 + family)
        at = np.ix_(o.column, o.column)
        self.common, self.spread = o.alike[at], np.diag(o.spread)[at]
        self.columns = (o.column[:, None] == np.arange(len(o.alike))).astype(np.float64)
        count = np.bincount(self.at)
        self.rows = np.flatnonzero(count > 1)
        self.count, self.families = len(rows), len(np.unique(s.family[rows]))
        self.informative = float((count[self.rows] - 1).sum()) / max(len(o.alike) - 1, 1)  # rows' worth of information
        self.prior_weight = _WORTH * (len(o.alike) + 1)

    def scales(self, x: Floats, checked: Checked) -> IsolatedScales:
        """The scales with all amplitudes widened as checked; this leaves the means unchanged."""
        figures = dict(zip(self.names, np.exp(x[:-1]).tolist(), strict=True))
        for name in figures:
            if name.startswith("relative_") and name != "relative_all":
                figures[name] *= math.exp(float(x[-1]))
            if not name.endswith("_length"):
                figures[name] *= checked.many
        return IsolatedScales(**figures, few=checked.few)

    def most_probable(self, x: Floats, likeness: Floats, steps: int) -> Floats:
        """The most probable scales for a likeness of types, starting from x."""
        from scipy.optimize import minimize

        likeness_of = likeness[np.ix_(self.observed.column, self.observed.column)]

        def cost(at: Floats) -> tuple[float, Floats]:
            off = (at - self.start) / self.prior_sd
            try:
                value, slope = self._evidence(at, likeness_of)
            except LinAlgError:
                return 1e12, np.zeros_like(at)
            return value + 0.5 * float(off @ off), slope + off / self.prior_sd

        bounds = [(value - 5.0, value + 5.0) for value in self.start.tolist()]
        found = minimize(cost, x, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
        return np.asarray(found.x)

    def likeness(self, x: Floats, likeness: Floats, steps: int) -> Floats:
        """The likeness of types, starting from a guess; each step increases the posterior."""
        for _ in range(steps):
            own, weight, inverse = self._solved(x, likeness)
            moved = self.columns.T @ (((np.outer(weight, weight) - inverse) * self._wide(own)) @ self.columns)
            seen = self.count * likeness + likeness @ moved @ likeness
            likeness = (self.prior_weight * self.observed.alike + seen) / (self.prior_weight + self.count)
            likeness = (likeness + likeness.T) / 2.0
        return likeness

    def checked(self, x: Floats, likeness: Floats, *, is_learned: bool) -> Checked:
        """Leaves out single entries, then all but one of a row; corrects a learned likeness for that row."""
        own, weight, inverse = self._solved(x, likeness)
        noise = math.exp(2.0 * float(x[self.names.index("noise")]))
        scores: list[float] = []
        many: list[float] = []
        few: list[float] = []
        far: list[float] = []
        for row in self.rows.tolist():
            mine = np.flatnonzero(self.at == row)
            at = np.ix_(mine, mine)
            spread = np.linalg.inv(inverse[at])
            off = spread @ weight[mine]
            if is_learned:
                columns, scale = self.observed.column[mine], own[row, row]
                moved = (np.outer(weight[mine], weight[mine]) - inverse[at]) * scale
                owed = (
                    likeness[:, columns]
                    @ moved
                    @ likeness[columns]
                    / (self.prior_weight + max(self.informative - 1.0, 0.0))
                )
                spread = _at_least(spread - scale * owed[np.ix_(columns, columns)], _SD_MIN * noise)
            precision = np.linalg.inv(spread)
            sd = 1.0 / np.sqrt(np.diag(precision))
            z = (precision @ off) * sd
            scores += (np.log(sd) + 0.5 * np.square(z)).tolist()
            many += np.abs(z).tolist()
            for one in range(len(mine)):
                gain = spread[:, one] / spread[one, one]
                left = np.arange(len(mine)) != one
                variance = np.diag(spread) - gain * spread[one]
                variance = np.maximum(variance[left], _SD_MIN * noise)
                distant = np.square((off - gain * off[one])[left]) / variance
                few += np.sqrt(distant).tolist()
                far += (0.5 * np.log(variance) + 0.5 * distant).tolist()
        if len(many) < _ENTRIES_MIN:
            return Checked(math.inf if is_learned else 0.0, 1.0, 1.0)
        wide = [float(np.quantile(part, 0.9)) / _NORMAL_90 for part in (many, few)]
        width = min(max(wide[0], _WIDTH_MIN), _WIDTH_MAX)
        return Checked(0.5 * float(np.mean(scores) + np.mean(far)), width, min(max(wide[1] / width, 1.0), _FEW_MAX))

    def _parts(self, x: Floats) -> tuple[dict[str, float], dict[str, Floats], dict[str, Floats]]:
        """The scales, and the terms of the level and of the relative part, by scale."""
        k = dict(zip(self.names, np.exp(x[:-1]).tolist(), strict=True))
        near_batch = self.family * np.exp(-0.5 * self.batch / k["batch_length"] ** 2)
        by_gpus = np.exp(-0.5 * self.gpus / k["gpus_length"] ** 2)
        near = near_batch * by_gpus
        factor = math.exp(2.0 * float(x[-1]))
        level = {
            "level": k["level"] ** 2 * self.level,
            "level_near": k["level_near"] ** 2 * near,
            "level_job": k["level_job"] ** 2 * self.same,
        }
        kinds = {"family": self.family, "batch": near_batch, "near": near, "gpus": self.family * by_gpus}
        kinds["job_type"] = self.job_type
        relative = {f"relative_{name}": factor * k[f"relative_{name}"] ** 2 * kind for name, kind in kinds.items()}
        return k, level, relative

    def _wide(self, rows: Floats) -> Floats:
        """Expands a matrix over rows to one over entries, (n, n)."""
        return np.asarray(rows.take(self.at, axis=0).take(self.at, axis=1))

    def _by_rows(self, entries: Floats) -> Floats:
        """Sums a matrix over entries to one over rows; entries are in the order of rows."""
        return np.asarray(np.add.reduceat(np.add.reduceat(entries, self.starts, axis=0), self.starts, axis=1))

    def _covariance(self, k: dict[str, float], level: dict[str, Floats], own: Floats, likeness_of: Floats) -> Floats:
        covariance = self._wide(own)
        covariance *= likeness_of
        covariance += self._wide(np.sum(list(level.values()), axis=0) + self.slopes)
        covariance += k["relative_all"] ** 2 * self.common
        covariance += self.spread
        covariance[np.diag_indices(len(covariance))] += k["noise"] ** 2 + self.observed.extra_variance
        return np.asarray(covariance)

    def _solved(self, x: Floats, likeness: Floats) -> tuple[Floats, Floats, Floats]:
        """The rows' own covariance, the weights of the entries, and the inverse of their covariance."""
        k, level, relative = self._parts(x)
        own = np.sum(list(relative.values()), axis=0)
        column = self.observed.column
        _, inverse = _inverted(self._covariance(k, level, own, likeness[np.ix_(column, column)]))
        return own, inverse @ self.observed.residual, inverse

    def _evidence(self, x: Floats, likeness_of: Floats) -> tuple[float, Floats]:
        """Negative log evidence and its gradient."""
        k, level, relative = self._parts(x)
        own = np.sum(list(relative.values()), axis=0)
        half_log, inverse = _inverted(self._covariance(k, level, own, likeness_of))
        weight = inverse @ self.observed.residual
        value = 0.5 * float(self.observed.residual @ weight) + half_log
        entries = np.multiply.outer(-0.5 * weight, weight)
        entries += 0.5 * inverse
        common, noise = float((entries * self.common).sum()), float(np.trace(entries))
        by = self._by_rows(entries)
        entries *= likeness_of
        by_own = self._by_rows(entries)
        slope = {name: 2.0 * float((by * part).sum()) for name, part in level.items()}
        slope |= {name: 2.0 * float((by_own * part).sum()) for name, part in relative.items()}
        total = sum(slope[name] for name in relative)
        slope["relative_all"], slope["noise"] = 2.0 * k["relative_all"] ** 2 * common, 2.0 * k["noise"] ** 2 * noise
        near = by * level["level_near"] + by_own * relative["relative_near"]
        by_batch, by_gpus = near + by_own * relative["relative_batch"], near + by_own * relative["relative_gpus"]
        slope["batch_length"] = float((by_batch * self.batch).sum()) / k["batch_length"] ** 2
        slope["gpus_length"] = float((by_gpus * self.gpus).sum()) / k["gpus_length"] ** 2
        return value, np.array([slope[name] for name in self.names] + [total])


def _inverted(covariance: Floats) -> tuple[float, Floats]:
    """Half the log determinant, and the inverse."""
    from scipy.linalg import cholesky
    from scipy.linalg.lapack import dpotri

    factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
    half_log = float(np.log(np.diag(factor)).sum())
    lower, _ = dpotri(factor, lower=True, overwrite_c=True)  # the upper half stays that of the factor: zeros
    inverse = lower + lower.T
    inverse[np.diag_indices(len(inverse))] *= 0.5
    return half_log, np.asarray(inverse)


def _at_least(covariance: Floats, variance: float) -> Floats:
    """The covariance with its eigenvalues raised to at least this variance."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, variance)) @ vectors.T)


def extended(likeness: Likeness, gpu_types: tuple[str, ...], alike: Floats) -> Floats:
    """The likeness of these types, (T, T): learned values, extended by GPU specs to a valid covariance."""
    place = {name: i for i, name in enumerate(gpu_types)}
    shared = [(place[name], n) for n, name in enumerate(likeness.gpu_types) if name in place]
    if not shared:
        return alike
    here, there = (np.array(part, dtype=np.int64) for part in zip(*shared, strict=True))
    known = alike[np.ix_(here, here)]
    taught = np.array(likeness.values)[np.ix_(there, there)]
    gain = np.linalg.solve(known + 1e-6 * np.eye(len(here)), alike[here]).T  # (T, known)
    full = alike + gain @ (taught - known) @ gain.T
    return np.asarray((full + full.T) / 2.0)


def as_likeness(gpu_types: tuple[str, ...], values: Floats) -> Likeness:
    """A `Likeness` of these values."""
    return Likeness(gpu_types, tuple(tuple(row) for row in values.tolist()))
