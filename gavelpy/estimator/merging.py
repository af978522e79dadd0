"""Merges two throughput tables: the rate with the better provenance wins, and the newer one in a tie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gavelpy.estimator.online import RATE_MAX_STEPS_PER_S
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.throughput import ThroughputTable

_NOTABLE = 3.0  # factor between two rates of one entry that is reported


@dataclass(frozen=True, eq=False)
class Merged:
    """The merged table, and notes on refused and contradictory rates."""

    table: ThroughputTable
    notes: tuple[str, ...]
    taken: int  # number of plausible rates in the newcomer, alone and co-located


def merged(table: ThroughputTable, newcomer: ThroughputTable) -> Merged:
    """All keys, types and pairs of both tables. Leaves out implausibly high rates, with a note."""
    keys = tuple(dict.fromkeys([*table.keys, *newcomer.keys]))
    types = tuple(dict.fromkeys([*table.gpu_types, *newcomer.gpu_types]))
    rows = {key: row for row, key in enumerate(keys)}
    columns = {name: column for column, name in enumerate(types)}
    rates: Floats = np.full((len(keys), len(types)), math.nan)
    kinds = np.zeros(rates.shape, dtype=np.int64)
    sources: list[dict[str, None]] = [{} for _ in keys]
    pairs: dict[tuple[int, int], Floats] = {}
    notes: list[str] = []
    for part in (table, newcomer):
        row = np.array([rows[key] for key in part.keys], dtype=np.int64)
        column = np.array([columns[name] for name in part.gpu_types], dtype=np.int64)
        for i, words in enumerate(part.source):
            sources[row[i]].setdefault(words)
        _take(part, row, column, rates, kinds, notes)
        _take_pairs(part, row, column, len(types), pairs, notes)
    source = tuple("; ".join(filter(None, found)) for found in sources)
    pair_rates = np.array(list(pairs.values())).reshape(-1, 2, len(types))
    pair_rows = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return Merged(
        ThroughputTable(keys, types, rates, kinds, source, pair_rows, pair_rates), tuple(notes), _usable(newcomer)
    )


def _usable(part: ThroughputTable) -> int:
    figures = (part.rate_steps_per_s, part.pair_rate_steps_per_s)
    return sum(int((values <= RATE_MAX_STEPS_PER_S).sum()) for values in figures)


def _take(part: ThroughputTable, row: Ints, column: Ints, rates: Floats, kinds: Ints, notes: list[str]) -> None:
    for i, t in np.argwhere(~np.isnan(part.rate_steps_per_s)).tolist():
        rate, kind, at = float(part.rate_steps_per_s[i, t]), int(part.provenance[i, t]), (row[i], column[t])
        where = f"{part.keys[i][0]} on {part.keys[i][1]} x {part.gpu_types[t]}"
        if rate > RATE_MAX_STEPS_PER_S:
            notes.append(f"{where}: {rate:g} steps/s refused: more than {RATE_MAX_STEPS_PER_S:g}, which no job makes")
            continue
        before = float(rates[at])
        if not math.isnan(before) and kind > kinds[at]:
            continue
        if before > 0 and rate > 0 and max(before / rate, rate / before) > _NOTABLE:
            notes.append(f"{where}: {before:g} steps/s before, {rate:g} now")
        rates[at], kinds[at] = rate, kind


def _take_pairs(
    part: ThroughputTable, row: Ints, column: Ints, types: int, pairs: dict[tuple[int, int], Floats], notes: list[str]
) -> None:
    for (first, second), values in zip(part.pair_rows.tolist(), part.pair_rate_steps_per_s, strict=True):
        a, b = int(row[first]), int(row[second])
        absurd = values > RATE_MAX_STEPS_PER_S
        for side, t in np.argwhere(absurd).tolist():
            job_type, gpus = part.keys[(first, second)[side]]
            partner = part.keys[(second, first)[side]][0]
            notes.append(
                f"{job_type} on {gpus} x {part.gpu_types[t]} with {partner}: {values[side, t]:g} steps/s refused: "
                f"more than {RATE_MAX_STEPS_PER_S:g}, which no job makes"
            )
        kept = np.where(absurd.any(axis=0), math.nan, values)
        ordered = kept if a <= b else kept[::-1]
        known = pairs.setdefault((min(a, b), max(a, b)), np.full((2, types), math.nan))
        known[:, column] = np.where(np.isnan(ordered), known[:, column], ordered)
