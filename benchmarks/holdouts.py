"""The estimator of rates alone against simple baselines, on many hold-outs of many tables.

    python -m benchmarks holdouts [--seeds N] [--from SEED] [--tables NAME,...] [--holdouts NAME,...] [--file TABLE]

Each line gives the median over the draws of the median error and of the 90 % quantile of the error, and the share of
hidden rates inside the 90 % intervals over all draws. `over best` compares the medians with the better baseline of that
line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.holdout_tables import SYNTHETIC, measured_tables, synthetic
from gavelpy.estimator.evaluate import NORMAL_90
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.kinds import kind_of
from gavelpy.estimator.roofline import Roofline
from gavelpy.estimator.stacking import row_column_rank, row_plus_column
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.reader import read_throughputs
from gavelpy.traces.workloads import gpu_specs, job_types

METHODS = ("estimator", "row plus column", "rank 1")
NEW_JOBS, NEW_TYPE_RATES = 3, 3
_MARGIN = 1.05

Hide = Callable[[ThroughputTable, np.random.Generator], Bools]


@dataclass(frozen=True, eq=False)
class Draw:
    """One hold-out: relative errors of the hidden rates by method, and which lie inside the intervals."""

    error: Floats  # (METHODS, n)
    is_inside: Bools  # (n,)


def cells(share: float) -> Hide:
    """Hides single rates at random."""
    return lambda table, rng: (table.rate_steps_per_s > 0) & (rng.random(table.rate_steps_per_s.shape) < share)


def half_full(table: ThroughputTable, rng: np.random.Generator) -> Bools:
    """Hides all rates but one in half of the rows."""
    return _one_left(table, rng.permutation(len(table.keys))[: len(table.keys) // 2].tolist(), rng)


def new_jobs(table: ThroughputTable, rng: np.random.Generator) -> Bools:
    """Hides all rates but one in a few rows."""
    return _one_left(table, rng.permutation(len(table.keys))[:NEW_JOBS].tolist(), rng)


def new_family(table: ThroughputTable, rng: np.random.Generator) -> Bools:
    """Hides all rates but one in each row of a family."""
    families = [kind_of(job_type).family for job_type, _ in table.keys]
    chosen = rng.choice(sorted(set(families)))
    return _one_left(table, [row for row, family in enumerate(families) if family == chosen], rng)


def new_type(table: ThroughputTable, rng: np.random.Generator) -> Bools:
    """Hides all rates but three of a GPU type."""
    known, hidden = table.rate_steps_per_s > 0, np.zeros(table.rate_steps_per_s.shape, dtype=np.bool_)
    column = int(rng.choice(np.flatnonzero(known.sum(axis=0) > NEW_TYPE_RATES)))
    rows = rng.permutation(np.flatnonzero(known[:, column]))
    hidden[rows[NEW_TYPE_RATES:], column] = True
    return hidden


HOLD_OUTS: Mapping[str, Hide] = {
    **{f"cells {share}%": cells(share / 100.0) for share in (10, 30, 50, 70, 90)},
    "half full": half_full,
    "new jobs": new_jobs,
    "new family": new_family,
    "new type": new_type,
}


def run(options: Sequence[str] = ()) -> None:
    """Prints a line per hold-out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks holdouts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="draws of each hold-out (default: 20)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed (default: 0)")
    parser.add_argument("--tables", default="", help="names, with commas between (default: all)")
    parser.add_argument("--holdouts", default="", help="names, with commas between (default: all)")
    parser.add_argument("--file", type=Path, help="a table of your own; its name is that of the file")
    chosen = parser.parse_args(options)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    measured = measured_tables()
    if chosen.file is not None:
        measured[chosen.file.stem] = read_throughputs(chosen.file)
    names = chosen.tables.split(",") if chosen.tables else [*measured, *SYNTHETIC]
    print(f"{'median, p90 in %':36}{'':4}{'estimator':>14}{'row + column':>16}{'rank 1':>16}  over best   in 90 %")
    for name in names:
        for what in chosen.holdouts.split(",") if chosen.holdouts else HOLD_OUTS:
            draws = [drawn(measured.get(name) or synthetic(name, seed), HOLD_OUTS[what], seed) for seed in seeds]
            _line(f"{name}: {what}", [draw for draw in draws if draw.error.size])


def drawn(table: ThroughputTable, hide: Hide, seed: int) -> Draw:
    """One hold-out of a table; the estimator learns from the remaining rates."""
    hidden = hide(table, np.random.default_rng(seed))
    left = replace(table, rate_steps_per_s=np.where(hidden, np.nan, table.rate_steps_per_s))
    model = IsolatedModel(roofline=Roofline(job_types(), gpu_specs())).fitted(left)
    blocks = model.given(left).blocks(left.keys, left.gpu_types)
    with np.errstate(divide="ignore"):
        known = np.where(left.rate_steps_per_s > 0, np.log(left.rate_steps_per_s), np.nan)
    estimates = (blocks.mean, row_plus_column(known), row_column_rank(known, 1))
    off = np.array([estimate[hidden] for estimate in estimates]) - np.log(table.rate_steps_per_s[hidden])
    sd = np.hypot(blocks.sd, model.scales.noise)[hidden]
    return Draw(np.abs(np.expm1(off)), np.abs(off[0]) <= NORMAL_90 * sd)


def _line(name: str, draws: Sequence[Draw]) -> None:
    medians, tails = (
        np.median([np.quantile(draw.error, share, axis=1) for draw in draws], axis=0) * 100.0 for share in (0.5, 0.9)
    )
    figures = "".join(f"{one:8.1f}{other:8.1f}" for one, other in zip(medians, tails, strict=True))
    over = medians[0] / medians[1:].min()
    inside = np.concatenate([draw.is_inside for draw in draws]).mean()
    print(f"  {name:36}{figures}{over:10.2f}{'*' if over > _MARGIN else ' '}{inside:9.2f}", flush=True)


def _one_left(table: ThroughputTable, rows: Sequence[int], rng: np.random.Generator) -> Bools:
    hidden = np.zeros(table.rate_steps_per_s.shape, dtype=np.bool_)
    for row in rows:
        columns = np.flatnonzero(table.rate_steps_per_s[row] > 0)
        hidden[row, rng.permutation(columns)[1:]] = True
    return hidden
