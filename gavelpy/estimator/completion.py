"""Completes a throughput table: rates with uncertainty, the probability that a job fits into memory, and provenance.

Whether a job, or two co-located jobs, fit into GPU memory follows a logistic model of room and demand:

    log odds that i and j fit on t = room(t) - takes(i) - takes(j);    alone: room(t) + spare - takes(i)

`takes` has terms for the family, the batch size and the job itself. Coefficients have Gaussian priors; L-BFGS finds
the most probable values (the problem is convex).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.gaussian import Blocks
from gavelpy.estimator.isolated import IsolatedModel, IsolatedPosterior
from gavelpy.estimator.kinds import Key, Sides, kind_of, sides
from gavelpy.estimator.pairs import Alone, PairModel, PairPosterior, Slowdowns
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.throughput import Provenance, ThroughputTable

OBSERVATIONS_MAX = 20_000
_ROOM, _ROOM_SD = 3.0, 3.0
_SPARE, _SPARE_SD = 3.0, 1.0
_FAMILY_SD, _OWN_SD, _BATCH_SD = 1.0, 1.5, 0.5
_LOG_RATE_MAX = math.log(1e15)  # of an estimate, well inside the valid range of rates
_ROOFLINE_SAYS_NO = 0.2  # factor on the probability that a job fits if the roofline finds too little memory
_FITS = 0.5


@dataclass(frozen=True, eq=False)
class _Tried:
    first: Ints  # (n,) rows of keys
    second: Ints  # (n,) rows of keys, -1 = alone
    gpu_type: Ints  # (n,)
    ran: Floats  # (n,) 1 or 0


class MemoryModel:
    """The model of GPU memory, fitted to a table: whether jobs fit alone and together."""

    def __init__(self, table: ThroughputTable) -> None:
        self.table = table
        self._sides = sides(table.keys)
        self._families = int(self._sides.family.max(initial=-1)) + 1

    @cached_property
    def _fitted(self) -> tuple[Floats, Floats, float]:
        """See `_most_probable`; made at its first use, which loads scipy."""
        features = _features(self._sides, self._families, np.arange(len(self.table.keys)))
        return _most_probable(features, _tried(self.table), len(self.table.gpu_types))

    def alone(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """Probability that each key runs alone on each type, (N, T)."""
        from scipy.special import expit

        room, spare = self._rooms(gpu_types), self._fitted[2]
        return np.asarray(expit(room[None, :] + spare - self._needs(keys)[:, None]))

    def together(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """Probability that two keys run together, (N, N, T); 0 or 1 where the table has the pair."""
        from scipy.special import expit

        needs = self._needs(keys)
        both = needs[:, None] + needs[None, :]
        fits = np.asarray(expit(self._rooms(gpu_types)[None, None, :] - both[:, :, None]))
        self._take_tried(keys, gpu_types, fits)
        return fits

    def _take_tried(self, keys: Sequence[Key], gpu_types: Sequence[str], fits: Floats) -> None:
        place = {key: i for i, key in enumerate(keys)}
        column = {name: t for t, name in enumerate(self.table.gpu_types)}
        row = np.array([place.get(key, -1) for key in self.table.keys], dtype=np.int64)
        pairs = row[self.table.pair_rows]
        included = (pairs >= 0).all(axis=1)
        first, second = pairs[included].T
        for t, name in enumerate(gpu_types):
            if name not in column:
                continue
            rates = self.table.pair_rate_steps_per_s[included, :, column[name]]
            ran, failed = (rates > 0).any(axis=1), (rates == 0).any(axis=1)
            known = ran | failed
            fits[first[known], second[known], t] = fits[second[known], first[known], t] = ~failed[known]

    def _rooms(self, gpu_types: Sequence[str]) -> Floats:
        column = {name: i for i, name in enumerate(self.table.gpu_types)}
        room = self._fitted[0]
        middle = float(np.median(room)) if len(room) else _ROOM
        return np.array([room[column[name]] if name in column else middle for name in gpu_types])

    def _needs(self, keys: Sequence[Key]) -> Floats:
        known = len(self.table.keys)
        s = sides([*self.table.keys, *keys])
        row = {key: i for i, key in enumerate(self.table.keys)}
        rows = np.array([row.get(key, known + i) for i, key in enumerate(keys)], dtype=np.int64)
        features = _features(s, self._families, rows, known)
        return np.asarray(features @ self._fitted[1])


def _tried(table: ThroughputTable) -> _Tried:
    row, column = np.nonzero(~np.isnan(table.rate_steps_per_s))
    alone = _Tried(row, np.full(len(row), -1), column, (table.rate_steps_per_s[row, column] > 0).astype(np.float64))
    rates = table.pair_rate_steps_per_s
    known = ~np.isnan(rates).any(axis=1) & (table.rate_steps_per_s[table.pair_rows] > 0).all(axis=1)
    pair, gpu_type = np.nonzero(known)
    if len(pair) > OBSERVATIONS_MAX:
        chosen = np.linspace(0, len(pair) - 1, OBSERVATIONS_MAX).astype(np.int64)
        pair, gpu_type = pair[chosen], gpu_type[chosen]
    ran = (rates[pair, :, gpu_type] > 0).all(axis=1).astype(np.float64)
    first, second = table.pair_rows[pair].T
    return _Tried(
        np.concatenate([alone.first, first]),
        np.concatenate([alone.second, second]),
        np.concatenate([alone.gpu_type, gpu_type]),
        np.concatenate([alone.ran, ran]),
    )


def _features(s: Sides, families: int, rows: Ints, known: int | None = None) -> Floats:
    """(N, 1 + 2 families + keys): batch size, family, batch size within the family, the job; scaled by prior sds."""
    count = len(s.family) if known is None else known
    batch = (s.log2_batch[rows] - 5.0)[:, None]
    family = (s.family[rows][:, None] == np.arange(families)[None, :]).astype(np.float64)
    own = (rows[:, None] == np.arange(count)[None, :]).astype(np.float64)
    parts = [_BATCH_SD * batch, _FAMILY_SD * family, _BATCH_SD * family * batch, _OWN_SD * own]
    return np.concatenate(parts, axis=1)


def _most_probable(features: Floats, tried: _Tried, types: int) -> tuple[Floats, Floats, float]:
    """Room of each type, coefficients of the features, and the spare room of a job alone."""
    from scipy.optimize import minimize

    size = features.shape[1]
    is_alone = tried.second < 0
    sign = 2.0 * tried.ran - 1.0
    jobs = len(features)

    def cost(x: Floats) -> tuple[float, Floats]:
        from scipy.special import expit

        room, spare, weight = _ROOM + _ROOM_SD * x[:types], _SPARE + _SPARE_SD * x[types], x[types + 1 :]
        takes = features @ weight
        odds = room[tried.gpu_type] - takes[tried.first] - np.where(is_alone, -spare, takes[tried.second])
        slope = -sign * expit(-sign * odds)
        by_job = np.bincount(tried.first, slope, minlength=jobs)
        by_job = by_job + np.bincount(tried.second[~is_alone], slope[~is_alone], minlength=jobs)
        by_type = _ROOM_SD * np.bincount(tried.gpu_type, slope, minlength=types)
        gradient = np.concatenate([by_type, [_SPARE_SD * slope[is_alone].sum()], -(features.T @ by_job)])
        return float(np.logaddexp(0.0, -sign * odds).sum() + 0.5 * x @ x), gradient + x

    found = minimize(cost, np.zeros(types + 1 + size), jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
    return _ROOM + _ROOM_SD * found[:types], found[types + 1 :], float(_SPARE + _SPARE_SD * found[types])


@dataclass(frozen=True)
class EstimatorModel:
    """The fitted model: hyper-parameters, and the roofline's calibration."""

    isolated: IsolatedModel = field(default_factory=IsolatedModel)
    pairs: PairModel = field(default_factory=PairModel)

    def fitted(self, table: ThroughputTable) -> EstimatorModel:
        """The model that explains the table best (takes seconds); unchanged if the table has too little data."""
        return EstimatorModel(self.isolated.fitted(table), self.pairs.fitted(table))


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated rates alone: Gaussians on their logarithms, and the probability that a job fits."""

    keys: tuple[Key, ...]  # N
    gpu_types: tuple[str, ...]  # T
    blocks: Blocks  # of log steps/s
    fits: Floats  # (N, T) in [0, 1]
    provenance: Ints  # (N, T) values of Provenance

    def rates(self, quantile: float = 0.5) -> Floats:
        """This quantile of the rates in steps/s, (N, T); 0 where the job likely does not fit.

        Policies use the median; a low quantile (0.2) is cautious. Raises InvalidInput unless it is in (0, 1).
        """
        from scipy.special import ndtri

        if not 0.0 < quantile < 1.0:
            raise InvalidInput(f"quantile must be in (0, 1), got {quantile!r}")
        log_rate = np.clip(self.blocks.mean + ndtri(quantile) * self.blocks.sd, -_LOG_RATE_MAX, _LOG_RATE_MAX)
        return np.where(self.fits >= _FITS, np.exp(log_rate), 0.0)

    def interval(self, share: float = 0.9) -> tuple[Floats, Floats]:
        """Lower and upper bounds that contain the rate with this probability, (N, T) each, if the job fits."""
        return self.rates(0.5 - share / 2.0), self.rates(0.5 + share / 2.0)

    def table(self) -> ThroughputTable:
        """The medians as a table."""
        source = tuple("estimated" for _ in self.keys)
        return ThroughputTable(self.keys, self.gpu_types, self.rates(), self.provenance, source)


class Completion:
    """A model conditioned on a table; estimates rates and pairs for any keys and types."""

    def __init__(self, table: ThroughputTable, model: EstimatorModel | None = None) -> None:
        self.table, self.model = table, model or EstimatorModel()
        self._memory = MemoryModel(table)
        known = np.unique(np.nonzero(table.rate_steps_per_s > 0)[0]).tolist()
        self._pairs: PairPosterior | None = None
        self._families = {kind_of(table.keys[row][0]).family for row in known}

    @cached_property
    def _isolated(self) -> IsolatedPosterior:
        """The model of jobs alone, given the table; made at its first use, which loads scipy."""
        return self.model.isolated.given(self.table)

    def estimates(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Estimates:
        """Estimates for these keys on these types; neither need be in the table."""
        is_kin = np.array([kind_of(job_type).family in self._families for job_type, _ in keys], dtype=np.bool_)
        guess = np.where(is_kin, int(Provenance.ESTIMATED), int(Provenance.PRIOR))[:, None]
        known = _known(self.table, keys, gpu_types)
        provenance = np.where(known >= 0, known, guess).astype(np.int64)
        blocks = self._isolated.blocks(keys, gpu_types)
        return Estimates(tuple(keys), tuple(gpu_types), blocks, self._fits(keys, gpu_types), provenance)

    def pairs(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> tuple[Slowdowns, Floats]:
        """Slowdowns of every key with every partner, and the probability that the two fit together, (N, N, T)."""
        return self._by_pairs().slowdowns(keys, gpu_types), self._memory.together(keys, gpu_types)

    def alone_by_pairs(self, alone: Alone) -> PairPosterior:
        """Also conditions on pairs with rates alone that are only estimated; `pairs` uses the result."""
        self._pairs = self.model.pairs.given(self.table, alone)
        return self._pairs

    def _by_pairs(self) -> PairPosterior:
        if self._pairs is None:
            self._pairs = self.model.pairs.given(self.table)
        return self._pairs

    def _fits(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """Probability of fitting, (N, T): certain where the table has a rate, else by other jobs and the roofline."""
        fits = self._memory.alone(keys, gpu_types)
        fits = np.where(self.model.isolated.roofline.fits(keys, gpu_types) == 0.0, _ROOFLINE_SAYS_NO * fits, fits)
        rates = aligned(self.table, keys, gpu_types)
        return np.where(np.isnan(rates), fits, (rates > 0).astype(np.float64))


def aligned(table: ThroughputTable, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
    """The table's rates for these keys and types, (N, T); NaN where unknown."""
    row, column = _places(table, keys, gpu_types)
    padded = np.pad(table.rate_steps_per_s, ((0, 1), (0, 1)), constant_values=math.nan)
    return np.asarray(padded[np.ix_(row, column)])


def with_estimates(table: ThroughputTable, estimates: Estimates, quantile: float = 0.5) -> ThroughputTable:
    """The table with its unknown rates filled in, rounded to six digits; known rates are unchanged.

    Rounding makes the output independent of the number of threads, which changes the order of sums.
    """
    row, _ = _places(table, estimates.keys, estimates.gpu_types)
    known = aligned(table, estimates.keys, estimates.gpu_types)
    rates = np.where(np.isnan(known), _six_digits(estimates.rates(quantile)), known)
    sources = [*table.source, ""]
    is_filled: list[bool] = np.asarray(np.isnan(known).any(axis=1)).tolist()
    notes = ("estimated" if wanted else "" for wanted in is_filled)
    source = tuple("; ".join(filter(None, (sources[i], note))) for i, note in zip(row.tolist(), notes, strict=True))
    filled = ThroughputTable(estimates.keys, estimates.gpu_types, rates, estimates.provenance, source)
    if estimates.keys != table.keys or estimates.gpu_types != table.gpu_types:
        return filled
    return replace(filled, pair_rows=table.pair_rows, pair_rate_steps_per_s=table.pair_rate_steps_per_s)


def _six_digits(values: Floats) -> Floats:
    exponent = np.floor(np.log10(np.where(values > 0, values, 1.0))) - 5.0
    digits = np.round(values / 10.0 ** np.maximum(exponent, 0.0) * 10.0 ** np.maximum(-exponent, 0.0))
    return np.asarray(digits * 10.0 ** np.maximum(exponent, 0.0) / 10.0 ** np.maximum(-exponent, 0.0))


def _known(table: ThroughputTable, keys: Sequence[Key], gpu_types: Sequence[str]) -> Ints:
    """Provenance of the table's rates, (N, T); -1 where unknown."""
    row, column = _places(table, keys, gpu_types)
    kinds = np.where(np.isnan(table.rate_steps_per_s), -1, table.provenance)
    return np.asarray(np.pad(kinds, ((0, 1), (0, 1)), constant_values=-1)[np.ix_(row, column)])


def _places(table: ThroughputTable, keys: Sequence[Key], gpu_types: Sequence[str]) -> tuple[Ints, Ints]:
    """Rows and columns of the table; keys and types outside it get one past the last."""
    rows = {key: i for i, key in enumerate(table.keys)}
    columns = {name: i for i, name in enumerate(table.gpu_types)}
    row = np.array([rows.get(key, len(rows)) for key in keys], dtype=np.int64)
    return row, np.array([columns.get(name, len(columns)) for name in gpu_types], dtype=np.int64)
