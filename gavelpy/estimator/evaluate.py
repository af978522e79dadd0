"""Hold-out tests: hide measurements of a table, estimate them, and compare. Deterministic for a seed.

The baselines for pairs follow Gavel (OSDI '20), section 6: factorisation completes the few measurements of a new job,
and the most similar reference job then stands in for it. Rows of their matrices are jobs, columns (partner, GPU type).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.kinds import kind_of
from gavelpy.estimator.pairs import PairModel, measured
from gavelpy.estimator.stacking import low_rank, row_column_rank, row_plus_column
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.throughput import ThroughputTable

NORMAL_90 = 1.6448536269514722  # half the width, in standard deviations, of an interval that holds 90 %
HELD_ROWS, HELD_JOB_TYPES = 16, 6  # hidden at once, per seed
HELD_JOBS = 3  # jobs per seed; the pairs of one are hidden at a time
_COMMON_MIN = 2  # common measurements that two jobs need to be compared
_RANK, _RIDGE = 8, 0.05  # of the baseline: the best of ranks 1 to 8 and ridges 0.01 to 0.5 on Gavel's table


@dataclass(frozen=True, eq=False)
class HoldOut:
    """Hidden measurements and their estimates, n of them."""

    method: str
    truth: Floats  # (n,) steps/s, or slowdowns of co-located jobs
    estimate: Floats  # (n,)
    is_inside: Bools  # (n,) whether the truth is in the nominal 90 % interval; all false for a method without one
    label: tuple[str, ...]  # (n,) family of each
    gpu_type: tuple[str, ...]  # (n,)

    @property
    def error(self) -> Floats:
        """Relative error, (n,): |estimate / truth - 1|."""
        return np.asarray(np.abs(self.estimate / self.truth - 1.0))

    def quantile(self, share: float) -> float:
        """A quantile of the errors."""
        return float(np.quantile(self.error, share)) if len(self.error) else float("nan")

    @property
    def coverage(self) -> float:
        """Share of truths inside their 90 % intervals."""
        return float(self.is_inside.mean()) if len(self.error) else float("nan")

    def of(self, label: str) -> HoldOut:
        """The part of one family."""
        return self._part([name == label for name in self.label])

    def on(self, gpu_type: str) -> HoldOut:
        """The part of one GPU type."""
        return self._part([name == gpu_type for name in self.gpu_type])

    def _part(self, is_mine: Sequence[bool]) -> HoldOut:
        mine = np.flatnonzero(np.array(is_mine, dtype=np.bool_))
        label, gpu_type = ([names[i] for i in mine.tolist()] for names in (self.label, self.gpu_type))
        inside = self.is_inside[mine]
        return HoldOut(self.method, self.truth[mine], self.estimate[mine], inside, tuple(label), tuple(gpu_type))


def one_gpu(table: ThroughputTable) -> ThroughputTable:
    """The table's rows for jobs of one GPU."""
    rows = [row for row, (_, gpus) in enumerate(table.keys) if gpus == 1]
    place = np.full(len(table.keys), -1)
    place[rows] = np.arange(len(rows))
    pairs = (place[table.pair_rows] >= 0).all(axis=1)
    return ThroughputTable(
        tuple(table.keys[row] for row in rows),
        table.gpu_types,
        table.rate_steps_per_s[rows],
        table.provenance[rows],
        tuple(table.source[row] for row in rows),
        place[table.pair_rows[pairs]],
        table.pair_rate_steps_per_s[pairs],
    )


def isolated_from_one_type(
    table: ThroughputTable,
    model: IsolatedModel,
    seeds: Iterable[int],
    *,
    whole_job_types: bool = False,
    refit: bool = False,
) -> HoldOut:
    """Estimates jobs that ran on one GPU type on the other types.

    Hides rows (job type, GPUs); with `whole_job_types` all rows of a job type, of which the row with the fewest GPUs
    is measured on one type and estimated on the others. The roofline, if any, is calibrated on the remaining rates
    each time, as in a scheduler; `refit` fits the whole model to them.
    """
    parts = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rates, target = table.rate_steps_per_s.copy(), np.zeros(table.rate_steps_per_s.shape, dtype=np.bool_)
        for rows in _held_rows(table, rng, whole_job_types):
            first = rows[int(np.argmin([table.keys[row][1] for row in rows]))]
            column = int(rng.integers(len(table.gpu_types)))
            rates[rows] = np.nan
            rates[first, column] = table.rate_steps_per_s[first, column]
            target[first] = True
            target[first, column] = False
        target &= table.rate_steps_per_s > 0
        left = replace(table, rate_steps_per_s=rates)
        chosen = model.fitted(left) if refit else model.calibrated(left)
        blocks = chosen.given(left).blocks(table.keys, table.gpu_types)
        truth = np.log(table.rate_steps_per_s[target])
        sd = np.hypot(blocks.sd[target], chosen.scales.noise)
        places = np.argwhere(target).tolist()
        labels = [_family(table, i) for i, _ in places]
        types = [table.gpu_types[t] for _, t in places]
        parts.append(_hold_out("estimator", blocks.mean[target], truth, sd, labels, types))
    return _joined(parts)


def half_full(
    table: ThroughputTable, model: IsolatedModel, seeds: Iterable[int], *, refit: bool = True
) -> list[HoldOut]:
    """Estimates half the rows, each known on one GPU type only; the estimator's result, then the baselines'."""
    found: dict[str, list[HoldOut]] = {}
    is_known = table.rate_steps_per_s > 0
    for seed in seeds:
        rng, keep = np.random.default_rng(seed), is_known.copy()
        for row in rng.permutation(len(table.keys))[: len(table.keys) // 2].tolist():
            columns = np.flatnonzero(is_known[row])
            keep[row] = False
            if len(columns):
                keep[row, rng.choice(columns)] = True
        target = is_known & ~keep
        left = replace(table, rate_steps_per_s=np.where(target, np.nan, table.rate_steps_per_s))
        chosen = model.fitted(left) if refit else model.calibrated(left)
        blocks = chosen.given(left).blocks(table.keys, table.gpu_types)
        sd = np.hypot(blocks.sd, chosen.scales.noise)[target]
        with np.errstate(divide="ignore"):
            known = np.where(keep, np.log(table.rate_steps_per_s), np.nan)
        truth, places = np.log(table.rate_steps_per_s[target]), np.argwhere(target).tolist()
        labels, types = [_family(table, i) for i, _ in places], [table.gpu_types[t] for _, t in places]
        guesses = {"row plus column": row_plus_column(known), "row plus column, and rank 1": row_column_rank(known, 1)}
        parts = [_hold_out("estimator", blocks.mean[target], truth, sd, labels, types)]
        parts += [_hold_out(name, guess[target], truth, None, labels, types) for name, guess in guesses.items()]
        for part in parts:
            found.setdefault(part.method, []).append(part)
    if not found:
        raise InvalidInput("seeds must be one at least, got none")
    return [_joined(parts) for parts in found.values()]


def pairs_of_a_new_job(
    table: ThroughputTable, model: PairModel, seeds: Iterable[int], *, share: float = 0.2, refit: bool = False
) -> list[HoldOut]:
    """Slowdowns of a new job with `share` of its pairs measured; the estimator's result, then the baselines'.

    Follows figure 14 of Gavel (OSDI '20). A measurement is a pair on a type and gives the rates of both jobs; gangs
    are left out. All other jobs of the table are known. Jobs are held out in turn, about equally often.
    """
    if not 0.0 < share < 1.0:
        raise InvalidInput(f"share must be in (0, 1), got {share!r}")
    table = one_gpu(table)
    turns = np.random.default_rng(0).permutation(len(table.keys))
    found: dict[str, list[HoldOut]] = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for turn in range(HELD_JOBS * seed, HELD_JOBS * seed + min(HELD_JOBS, len(turns))):
            for part in _without_pairs_of(table, model, int(turns[turn % len(turns)]), rng, share, refit):
                found.setdefault(part.method, []).append(part)
    return [_joined(parts) for parts in found.values()]


def _without_pairs_of(
    table: ThroughputTable, model: PairModel, job: int, rng: np.random.Generator, share: float, refit: bool
) -> list[HoldOut]:
    truth = _slowdowns(table)
    left, hidden = _with_hidden_pairs(table, job, rng, share)
    target = hidden & ~np.isnan(truth)
    estimated = (model.fitted(left) if refit else model).given(left).slowdowns(table.keys, table.gpu_types)
    sd = np.hypot(estimated.sd, estimated.noise_sd)[target]
    labels = [_family(table, job)] * int(target.sum())
    types = [table.gpu_types[t] for t in np.nonzero(target)[2].tolist()]
    parts = [_hold_out("estimator", estimated.mean[target], truth[target], sd, labels, types)]
    for method, guess in _guesses(_slowdowns(left), job).items():
        cells = np.where(np.isnan(guess), np.nanmean(guess), guess)[target]
        parts.append(_hold_out(method, cells, truth[target], None, labels, types))
    return parts


def _guesses(slowdown: Floats, job: int) -> dict[str, Floats]:
    """The baselines' estimates, (N, N, T); valid in the rows and columns of `job`."""
    return {
        "factorisation": _both_sides(slowdown, job, lambda m, j: factorised(m, rank=_RANK, ridge=_RIDGE)[j]),
        "factorisation of both sides at once": _at_once(slowdown, job),
        "nearest reference": _both_sides(slowdown, job, nearest_reference),
        "factorisation, then nearest reference": _both_sides(slowdown, job, _completed_nearest),
    }


def _completed_nearest(values: Floats, job: int) -> Floats:
    completed = factorised(values, rank=_RANK, ridge=_RIDGE)
    reference = values.copy()
    reference[job] = completed[job]
    return nearest_reference(reference, job)


def factorised(values: Floats, *, rank: int, ridge: float) -> Floats:
    """Fills the NaN of a matrix (R, C) by probabilistic matrix factorisation with alternating least squares.

    Subtracts the mean of the known values, then column and row means. Source: Salakhutdinov and Mnih, 2007.
    """
    known = ~np.isnan(values)
    mean = float(values[known].mean()) if known.any() else 0.0
    rest = np.where(known, values - mean, 0.0)
    column = rest.sum(axis=0) / (known.sum(axis=0) + 1.0)
    rest = np.where(known, rest - column, 0.0)
    row = rest.sum(axis=1) / (known.sum(axis=1) + 1.0)
    rest = np.where(known, rest - row[:, None], 0.0)
    filled = mean + column[None, :] + row[:, None] + low_rank(rest, known, rank, ridge)
    return np.where(known, values, filled)


def nearest_reference(values: Floats, job: int) -> Floats:
    """Row of the reference job nearest to `job`, (C,); NaN where that row is unknown.

    Distance is the mean squared difference over common measurements. If no job is comparable, returns column means.
    """
    mine = values[job]
    common = ~np.isnan(values) & ~np.isnan(mine)[None, :]
    common[job] = False
    count = common.sum(axis=1)
    squares = np.where(common, values - np.where(np.isnan(mine), 0.0, mine)[None, :], 0.0) ** 2
    distance = np.where(count >= _COMMON_MIN, squares.sum(axis=1) / np.maximum(count, 1), np.inf)
    if not np.isfinite(distance).any():
        known = ~np.isnan(values)
        return np.asarray(np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
    return np.asarray(values[int(np.argmin(distance))])


def _both_sides(slowdown: Floats, job: int, row_of: Callable[[Floats, int], Floats]) -> Floats:
    N, _, T = slowdown.shape
    guess = np.full(slowdown.shape, np.nan)
    guess[:, job] = row_of(np.swapaxes(slowdown, 0, 1).reshape(N, N * T), job).reshape(N, T)
    guess[job] = row_of(slowdown.reshape(N, N * T), job).reshape(N, T)
    return guess


def _at_once(slowdown: Floats, job: int) -> Floats:
    """Factorisation with one row per job, which holds its own slowdowns and those of its partners."""
    N, _, T = slowdown.shape
    guess = np.full(slowdown.shape, np.nan)
    sides = [slowdown.reshape(N, N * T), np.swapaxes(slowdown, 0, 1).reshape(N, N * T)]
    row = factorised(np.concatenate(sides, axis=1), rank=_RANK, ridge=_RIDGE)[job]
    guess[job], guess[:, job] = row[: N * T].reshape(N, T), row[N * T :].reshape(N, T)
    return guess


def _with_hidden_pairs(
    table: ThroughputTable, job: int, rng: np.random.Generator, share: float
) -> tuple[ThroughputTable, Bools]:
    """The table without most pairs of a job, and the mask of hidden cells, (N, N, T)."""
    N, T = len(table.keys), len(table.gpu_types)
    mine = np.flatnonzero((table.pair_rows == job).any(axis=1))
    units = rng.permutation(len(mine) * T)[max(1, round(share * len(mine) * T)) :]
    pair, gpu_type = mine[units // T], units % T
    rates = table.pair_rate_steps_per_s.copy()
    rates[pair, :, gpu_type] = np.nan
    hidden = np.zeros((N, N, T), dtype=np.bool_)
    first, second = table.pair_rows[pair].T
    hidden[first, second, gpu_type] = hidden[second, first, gpu_type] = True
    return replace(table, pair_rate_steps_per_s=rates), hidden


def _slowdowns(table: ThroughputTable) -> Floats:
    """Log slowdowns, (N, N, T); NaN where unknown or where a pair does not run."""
    seen, N = measured(table), len(table.keys)
    cells = np.full((N, N, len(table.gpu_types)), np.nan)
    cells[seen.first, seen.second, seen.gpu_type] = seen.log_slowdown
    return cells


def _held_rows(table: ThroughputTable, rng: np.random.Generator, whole_job_types: bool) -> list[Ints]:
    rows = np.arange(len(table.keys))
    if not whole_job_types:
        return [np.array([row]) for row in rng.choice(rows, min(HELD_ROWS, max(len(rows) - 1, 1)), replace=False)]
    names = table.job_types()
    chosen = rng.choice(len(names), min(HELD_JOB_TYPES, max(len(names) - 1, 1)), replace=False)
    types = np.array([names.index(job_type) for job_type, _ in table.keys])
    return [np.flatnonzero(types == number) for number in chosen.tolist()]


def _family(table: ThroughputTable, row: int) -> str:
    return kind_of(table.keys[row][0]).family


def _hold_out(
    method: str, estimate: Floats, truth: Floats, sd: Floats | None, labels: Sequence[str], types: Sequence[str]
) -> HoldOut:
    difference = estimate - truth
    inside = np.abs(difference) <= NORMAL_90 * sd if sd is not None else np.zeros(len(truth), dtype=np.bool_)
    return HoldOut(method, np.exp(truth), np.exp(estimate), inside, tuple(labels), tuple(types))


def _joined(parts: Sequence[HoldOut]) -> HoldOut:
    if not parts:
        raise InvalidInput("seeds must be one at least, got none")
    return HoldOut(
        parts[0].method,
        np.concatenate([part.truth for part in parts]),
        np.concatenate([part.estimate for part in parts]),
        np.concatenate([part.is_inside for part in parts]),
        tuple(label for part in parts for label in part.label),
        tuple(name for part in parts for name in part.gpu_type),
    )
