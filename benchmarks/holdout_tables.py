"""Tables of rates for tests of the estimator: measured ones of the reference data, and synthetic ones.

Sia's profiles (Subramanya et al., SOSP 2023) give single-GPU rates by application and local batch size on five GPU
types. Without the reference data only the synthetic tables remain.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.simulation import reference_data
from gavelpy.estimator.evaluate import one_gpu
from gavelpy.model.arrays import Floats
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.reader import read_throughputs

SYNTHETIC = ("rank 1", "rank 2", "families", "heavy noise", "outliers")
_TYPES = ("v100", "a100", "rtx 3090", "type d", "type e", "type f", "h100", "type h")
_SIA_GPUS = {"aws": "t4", "dgx-ext": "a100", "quad": "quadro rtx 6000", "rtx": "2080 ti", "azure": "azure"}
_SIA_BATCHES = 6  # per application, evenly spread over the measured ones


def measured_tables() -> dict[str, ThroughputTable]:
    """Measured tables by name; empty without the reference data."""
    data, found = reference_data().parent, {}
    if (data / "gavel" / "simulation_throughputs.json").is_file():
        gavel = _without_pairs(read_throughputs(data / "gavel" / "simulation_throughputs.json"))
        found["Gavel"], found["Gavel nameless"] = gavel, without_families(one_gpu(gavel))
    if (data / "shockwave" / "tacc_throughputs.json").is_file():
        shockwave = one_gpu(_without_pairs(read_throughputs(data / "shockwave" / "tacc_throughputs.json")))
        found["Shockwave"], found["Shockwave nameless"] = shockwave, without_families(shockwave)
    if (data / "sia" / "profiles").is_dir():
        sia = _sia(data / "sia" / "profiles")
        found["Sia"], found["Sia nameless"] = sia, without_families(sia)
    return found


def synthetic(kind: str, seed: int, jobs: int = 20) -> ThroughputTable:
    """A table of this kind (SYNTHETIC): 20 jobs on eight GPU types, three of which have figures."""
    rng = np.random.default_rng([seed, SYNTHETIC.index(kind)])
    log_rate = rng.normal(3.0, 1.5, size=(jobs, 1)) + rng.normal(0.0, 0.7, size=len(_TYPES))
    names, noise = [f"net {n}" for n in range(jobs)], 0.03
    if kind in ("rank 2", "heavy noise"):
        log_rate = log_rate + 0.35 * rng.normal(size=(jobs, 1)) * rng.normal(size=len(_TYPES))
    if kind == "families":
        family = np.arange(jobs) // 4
        log_rate = log_rate + 0.5 * rng.normal(size=(jobs // 4, len(_TYPES)))[family]
        names = [f"family {n // 4} (batch size {8 << n % 4})" for n in range(jobs)]
    if kind == "heavy noise":
        noise = 0.3
    log_rate = log_rate + rng.normal(0.0, noise, size=log_rate.shape)
    if kind == "outliers":
        is_off = rng.random(log_rate.shape) < 0.04
        log_rate = np.where(is_off, log_rate + rng.choice([-2.5, 2.5], size=log_rate.shape), log_rate)
    return table_of(names, _TYPES, np.exp(log_rate))


def table_of(names: list[str], gpu_types: tuple[str, ...], rates: Floats) -> ThroughputTable:
    """A table of single-GPU jobs; NaN where a rate is unknown."""
    keys = tuple((name, 1) for name in names)
    return ThroughputTable(keys, gpu_types, rates, np.zeros(rates.shape, dtype=np.int64), ("",) * len(keys))


def without_families(table: ThroughputTable) -> ThroughputTable:
    """The table with meaningless names."""
    return replace(table, keys=tuple((f"job {n}", gpus) for n, (_, gpus) in enumerate(table.keys)))


def _without_pairs(table: ThroughputTable) -> ThroughputTable:
    return replace(table, pair_rows=table.pair_rows[:0], pair_rate_steps_per_s=table.pair_rate_steps_per_s[:0])


def _sia(folder: Path) -> ThroughputTable:
    rates: dict[tuple[str, int], dict[str, float]] = {}
    for path in sorted(folder.glob("*-scalability-*.csv")):
        application, _, cluster = path.stem.partition("-scalability-")
        if cluster in _SIA_GPUS:
            for batch, rate in _single_gpu(path):
                rates.setdefault((application, batch), {})[_SIA_GPUS[cluster]] = rate
    kept = dict(_thinned(rates))
    types = tuple(dict.fromkeys(_SIA_GPUS.values()))
    values = np.array([[row.get(name, math.nan) for name in types] for row in kept.values()])
    used = ~np.isnan(values).all(axis=0)
    names = [f"{application} (batch size {batch})" for application, batch in kept]
    return table_of(names, tuple(name for name, is_used in zip(types, used, strict=True) if is_used), values[:, used])


def _single_gpu(path: Path) -> Iterator[tuple[int, float]]:
    """Batch sizes and steps/s of one GPU; without such a row, the step time without its synchronisation."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    alone = [row for row in rows if int(row["num_replicas"]) == 1] or rows
    found: dict[int, float] = {}
    for row in alone:
        step_s = float(row["step_time"]) - float(row["sync_time"])
        if step_s > 0:
            found.setdefault(int(row["local_bsz"]), 1.0 / step_s)
    yield from found.items()


def _thinned(
    rates: Mapping[tuple[str, int], Mapping[str, float]],
) -> Iterator[tuple[tuple[str, int], Mapping[str, float]]]:
    for application in sorted({name for name, _ in rates}):
        common = sorted(batch for name, batch in rates if name == application and len(rates[name, batch]) >= 2)
        places = np.unique(np.linspace(0, len(common) - 1, min(_SIA_BATCHES, len(common))).astype(np.int64))
        for place in places.tolist():
            yield (application, common[place]), rates[application, common[place]]
