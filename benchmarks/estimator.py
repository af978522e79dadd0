"""The throughput estimator on Gavel's measured table: hold-out errors as whole curves, coverage, quality and speed.

`python -m benchmarks estimator [--seeds N] [--refit]`. Without the reference data it measures speed only.
Hyper-parameters are the shipped ones, which were fitted to the whole table; with --refit they are fitted for each seed
to the entries that are not held out (minutes).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.estimation_runs import PROFILED_S, compared
from benchmarks.packing_quality import packing_kept
from benchmarks.packing_runs import new_types, new_types_claimed, nothing_known, nothing_known_profiled
from benchmarks.simulation import reference_table
from gavelpy.estimator.completion import Completion
from gavelpy.estimator.evaluate import HoldOut, isolated_from_one_type, pairs_of_a_new_job
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.estimator.pairs import PairModel
from gavelpy.estimator.rate_filter import Reading
from gavelpy.estimator.roofline import Roofline
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.workloads import gpu_specs, job_types

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
SHARES = (0.1, 0.2, 0.4)
PACKING_SEEDS = 10
RUN_SEEDS = 6
PACKED_RUN_SEEDS = 5
TABLE_JOBS, TABLE_TYPES, TABLE_PAIRS = 500, 8, 9000


def run(options: Sequence[str] = ()) -> None:
    """Runs all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks estimator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="hold-outs drawn (default: 20)")
    parser.add_argument("--packed-runs", action="store_true", help="only the packed simulations (minutes)")
    parser.add_argument("--refit", action="store_true", help="fit hyper-parameters for each seed (minutes)")
    chosen = parser.parse_args(options)
    table = reference_table()
    if table is None:
        print("no reference data: set GAVELPY_REFERENCE_DIR; speed only")
    elif chosen.packed_runs:
        _simulated_packed(table)
        return
    else:
        _prior(table)
        _isolated(table, range(chosen.seeds), chosen.refit)
        _pairs(table, range(chosen.seeds), chosen.refit)
        _packing(table)
        _simulated(table)
        _simulated_packed(table)
    _speed()


def _prior(table: ThroughputTable) -> None:
    from scipy.stats import spearmanr  # here: tests import this module, and scipy.stats takes long

    plain = Roofline(job_types(), gpu_specs())
    ran = table.rate_steps_per_s > 0
    print(f"prior, {int(ran.sum())} measured rates that were held out" + " " * 12 + "Spearman  median error  p90")
    for name, prior in (("roofline", plain), ("roofline, calibrated on them", plain.calibrated(table))):
        found = np.exp(prior.log_rate(table.keys, table.gpu_types))[ran]
        error = np.abs(found / table.rate_steps_per_s[ran] - 1.0)
        rank = spearmanr(found, table.rate_steps_per_s[ran]).statistic
        print(f"  {name:62} {rank:8.3f}  {np.median(error):12.3f}  {np.quantile(error, 0.9):5.2f}")


def _isolated(table: ThroughputTable, seeds: range, refit: bool) -> None:
    plain, with_prior = IsolatedModel(), IsolatedModel(roofline=Roofline(job_types(), gpu_specs()))
    _head(f"rates alone from one measured GPU type, {len(seeds)} seeds")
    for whole, what in (
        (False, "a row (job type, GPUs) held out"),
        (True, "a job type held out at all numbers of GPUs"),
    ):
        found = isolated_from_one_type(table, plain, seeds, whole_job_types=whole, refit=refit)
        _line(what, found)
        prior = isolated_from_one_type(table, with_prior, seeds, whole_job_types=whole, refit=refit)
        _line("  with the roofline as its mean", prior)
        for family in sorted(set(found.label)) if whole else ():
            _line(f"  {family}", found.of(family))


def _pairs(table: ThroughputTable, seeds: range, refit: bool) -> None:
    for share in SHARES:
        _head(f"a new job's pairs, {share:.0%} of them measured, {len(seeds)} seeds")
        for found in pairs_of_a_new_job(table, PairModel(), seeds, share=share, refit=refit):
            _line(found.method, found)
            for gpu_type in table.gpu_types if found.is_inside.any() else ():
                _line(f"  on {gpu_type}", found.on(gpu_type))
            for family in sorted(set(found.label)) if found.is_inside.any() else ():
                _line(f"  {family}", found.of(family))


def _packing(table: ThroughputTable) -> None:
    kept = [packing_kept(table, seed) for seed in range(PACKING_SEEDS)]
    print(f"\npacked max-min with estimated rates over true ones, {PACKING_SEEDS} draws          mean   least draw")
    for name in ("mean", "worst", "alone"):
        values = np.array([getattr(one, name) for one in kept])
        labels = {
            "mean": "effective throughput",
            "worst": "its objective, the least job",
            "alone": "not packed, true rates",
        }
        print(f"  {labels[name]:62} {values.mean():6.3f}  {values.min():6.3f}")


def _simulated(table: ThroughputTable) -> None:
    print(
        f"\nsimulated max-min over the same with true rates, {RUN_SEEDS} traces{'':12} "
        "work, 1 h to 4 h  (least)     JCT  makespan"
    )
    for claimed, labels in ((False, "no declared rates"), (True, "declared rates are wrong by 0.3 to 3")):
        for profiled in (False, True):
            runs = [compared(table, seed, claimed=claimed, profiled=profiled) for seed in range(RUN_SEEDS)]
            work, jct, makespan = (
                np.array([getattr(run, name) for run in runs]) for name in ("work", "jct", "makespan")
            )
            name = f"{labels}, {PROFILED_S:g} GPU-s profiled an allocation" if profiled else labels
            print(f"  {name:62} {work.mean():14.3f}  {work.min():7.3f} {jct.mean():7.3f}  {makespan.mean():8.3f}")


def _simulated_packed(table: ThroughputTable) -> None:
    """The curve shows the sums over all traces, by hour; `least` is of hours 2 to 4 of one trace."""
    print(
        f"\nsimulated packed max-min over the same with true rates, {PACKED_RUN_SEEDS} traces"
        "   hour 1      2      3      4      5      6      7   2 to 4   least   not packed, true rates"
    )
    labels = {
        "8 of 26 job types new: known alone on one type, a fifth of their pairs": new_types,
        "8 of 26 job types new: nothing but claims wrong by 0.3 to 3": new_types_claimed,
        "no table at all: nothing but claims wrong by 0.3 to 3": nothing_known,
        f"  the same, {PROFILED_S:g} GPU-s profiled an allocation, pairs too": nothing_known_profiled,
    }
    for name, runs in labels.items():
        curves = [runs(table, seed) for seed in range(PACKED_RUN_SEEDS)]
        estimated, oracle, alone = (
            np.array([getattr(one, which) for one in curves]) for which in ("estimated", "oracle", "alone")
        )
        hours = "".join(f"{part:7.3f}" for part in estimated.sum(axis=0) / oracle.sum(axis=0))
        after = estimated[:, 1:4].sum(axis=1) / oracle[:, 1:4].sum(axis=1)
        every = estimated[:, 1:4].sum() / oracle[:, 1:4].sum()
        print(f"  {name:72}{hours}{every:9.3f}{after.min():8.3f}{alone.sum() / oracle.sum():12.3f}", flush=True)


def _speed() -> None:
    table, rng = _large_table(), np.random.default_rng(0)
    took = []
    for _ in range(4):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        completion = Completion(table)
        completion.estimates(table.keys, table.gpu_types)
        completion.pairs(table.keys, table.gpu_types)
        took.append((time.perf_counter() - began_s, time.process_time() - began_cpu_s))
    wall_s, cpu_s = np.median(np.array(took[1:]), axis=0)
    print(f"\na table of {TABLE_JOBS} x {TABLE_JOBS} x {TABLE_TYPES}: {wall_s:.2f} s, {cpu_s:.2f} s of CPU (goal 2 s)")
    known = ThroughputEstimator(table)
    rates = np.exp(rng.normal(0.0, 0.05, size=500)).tolist()
    known.observe(Reading("kind 0 (batch size 8)", 1, "type 0", 60.0, 60.0))
    began_s = time.perf_counter()
    for rate in rates:
        known.observe(Reading("kind 0 (batch size 8)", 1, "type 0", 60.0 * rate, 60.0))
    print(f"an online update: {(time.perf_counter() - began_s) / len(rates) * 1e3:.3f} ms (goal 1 ms)")


def _large_table() -> ThroughputTable:
    rng = np.random.default_rng(0)
    keys = tuple((f"kind {n // 5} (batch size {2 ** (n % 5 + 3)})", 1) for n in range(TABLE_JOBS))
    rates = np.exp(rng.normal(size=(TABLE_JOBS, TABLE_TYPES)))
    rates[rng.random(rates.shape) < 0.5] = np.nan
    rows = np.unique(np.sort(rng.integers(TABLE_JOBS, size=(TABLE_PAIRS, 2)), axis=1), axis=0)
    pairs = rng.uniform(0.3, 1.0, size=(len(rows), 2, TABLE_TYPES)) * rates[rows]
    types = tuple(f"type {n}" for n in range(TABLE_TYPES))
    return ThroughputTable(keys, types, rates, np.zeros(rates.shape, dtype=np.int64), ("",) * TABLE_JOBS, rows, pairs)


def _head(title: str) -> None:
    quantiles = "".join(f"{f'p{share * 100:g}':>7}" for share in QUANTILES)
    print(f"\n{title:64}     n{quantiles}  in 90 %")


def _line(name: str, found: HoldOut) -> None:
    quantiles = "".join(f"{found.quantile(share):7.3f}" for share in QUANTILES)
    inside = f"{found.coverage:8.2f}" if found.is_inside.any() else " " * 8
    print(f"  {name:62} {len(found.error):5}{quantiles}{inside}")
