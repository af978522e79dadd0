"""Small tables of throughputs, made by a rule that the tests know."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    """A table of rates by key and GPU type; what is not named is unknown."""
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
    """Every pair at one batch size each; two that share get on as well as the law says."""
    table = make_table(lawful_rates())
    rows = [(a, b) for a in range(len(table.keys)) for b in range(a, len(table.keys))]
    rates = [[slowdown(table, a, b), slowdown(table, b, a)] for a, b in rows]
    alone = table.rate_steps_per_s[np.array(rows)]
    pairs = np.array(rates)[:, :, None] * alone
    return ThroughputTable(
        table.keys, table.gpu_types, table.rate_steps_per_s, table.provenance, table.source, np.array(rows), pairs
    )


def slowdown(table: ThroughputTable, first: int, second: int) -> float:
    """What is left of the first's rate beside the second."""
    hunger = {"ant": 0.8, "bee": 0.5, "cow": 0.3}
    mine, other = (table.keys[row][0].split()[0] for row in (first, second))
    return 1.0 / (1.0 + hunger[mine] * hunger[other] * 2.0)
