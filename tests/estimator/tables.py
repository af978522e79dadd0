"""Small throughput tables with known laws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.throughput import Provenance, ThroughputTable

TYPES = ("old", "middle", "new")
BATCHES = (8, 16, 32, 64)
SPEED = {"old": 1.0, "middle": 3.0, "new": 6.0}
FAMILY = {"ant": 1.0, "bee": 0.8, "cow": 1.3}  # how much a family gains from a faster type


def job_type(family: str, batch: int) -> str:
    return f"{family} (batch size {batch})"


def make_table(rates: Mapping[tuple[str, int], Mapping[str, float]], types: tuple[str, ...] = TYPES) -> ThroughputTable:
    """A table of rates by key and GPU type; all others are unknown."""
    values = [[row.get(gpu_type, math.nan) for gpu_type in types] for row in rates.values()]
    array: Floats = np.array(values, dtype=np.float64).reshape(len(rates), len(types))
    kinds = np.full(array.shape, int(Provenance.MEASURED))
    return ThroughputTable(tuple(rates), types, array, kinds, ("made",) * len(rates))


def true_rate(family: str, batch: int, gpu_type: str) -> float:
    return float(1000.0 / batch * SPEED[gpu_type] ** FAMILY[family])


def lawful_rates() -> dict[tuple[str, int], dict[str, float]]:
    """Every family at every batch size on every type."""
    return {
        (job_type(family, batch), 1): {gpu_type: true_rate(family, batch, gpu_type) for gpu_type in TYPES}
        for family in FAMILY
        for batch in BATCHES
    }


def lawful_pairs() -> ThroughputTable:
    """Every pair at one batch size each, with the slowdowns of the law."""
    table = make_table(lawful_rates())
    rows = [(a, b) for a in range(len(table.keys)) for b in range(a, len(table.keys))]
    rates = [[slowdown(table, a, b), slowdown(table, b, a)] for a, b in rows]
    alone = table.rate_steps_per_s[np.array(rows)]
    pairs = np.array(rates)[:, :, None] * alone
    return ThroughputTable(
        table.keys, table.gpu_types, table.rate_steps_per_s, table.provenance, table.source, np.array(rows), pairs
    )


def slowdown(table: ThroughputTable, first: int, second: int) -> float:
    """The first job's rate co-located with the second, relative to its rate alone."""
    hunger = {"ant": 0.8, "bee": 0.5, "cow": 0.3}
    mine, other = (table.keys[row][0].split()[0] for row in (first, second))
    return 1.0 / (1.0 + hunger[mine] * hunger[other] * 2.0)


def interfering_pairs(seed: int, measured: float, rank: int = 2) -> tuple[ThroughputTable, ThroughputTable]:
    """30 jobs of distinct families with slowdowns that differ by factors of this rank; the whole table, and a part."""
    rng, N = np.random.default_rng(seed), 30
    base = make_table({(f"net{chr(97 + n // 26)}{chr(97 + n % 26)}", 1): {"gpu": 1.0} for n in range(N)}, ("gpu",))
    sensitive, pressing = rng.normal(size=(2, N, rank))
    log = -0.45 + 0.15 * rng.normal(size=(N, 1)) + 0.15 * rng.normal(size=(1, N))
    log = log + 0.12 * sensitive @ pressing.T + 0.04 * rng.normal(size=(N, N))
    rows = np.array([(a, b) for a in range(N) for b in range(a, N)])
    rates = np.exp(np.stack([log[rows[:, 0], rows[:, 1]], log[rows[:, 1], rows[:, 0]]], axis=1))[:, :, None]
    part = np.where((rng.random(len(rows)) < measured)[:, None, None], rates, math.nan)
    full = ThroughputTable(base.keys, base.gpu_types, base.rate_steps_per_s, base.provenance, base.source, rows, rates)
    return full, replace(full, pair_rate_steps_per_s=part)
