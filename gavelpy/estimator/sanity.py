"""Which rates of throughput tables are used: absurd ones are left out, and two tables are merged.

Absurd are wrong units, typing errors, files of a different kind.
An entry is absurd if the rate is impossible, or if it is more than a thousand times off the expectation. There are two
expectations: one from the rest of its row, the other rows and the roofline; and the model's prediction from all other
entries, from which the entry must also be off by six standard deviations. Legitimate extremes (a spread of 10 or 100)
stay. An absurd entry is left out and estimated like an unmeasured rate, until a running job reports its rate.

Where two tables have a rate of the same entry, the better provenance wins, and the newer one in a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.kinds import RATE_MAX_STEPS_PER_S, Key
from gavelpy.estimator.roofline import Roofline
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.throughput import ThroughputTable

RATE_MIN_STEPS_PER_S = 1e-9  # a step in thirty years
FAR = math.log(1000.0)  # from the expectation
FAR_SD = 6.0  # the same in standard deviations of the expectation
_SWEEPS = 10
_ROWS_MIN = 3  # least number of rows for the level of a GPU type


@dataclass(frozen=True)
class Absurd:
    """A rejected entry, and the reason."""

    key: Key
    gpu_type: str
    rate_steps_per_s: float
    reason: str
    partner: Key | None = None  # of a co-located rate

    def __str__(self) -> str:
        partner = f" with {self.partner[0]}" if self.partner is not None else ""
        where = f"{self.key[0]} on {self.key[1]} x {self.gpu_type}{partner}"
        return f"{where}: {self.rate_steps_per_s:g} steps/s is not believed: {self.reason}"


@dataclass(frozen=True, eq=False)
class Believable:
    """The table without its absurd entries, and these entries."""

    table: ThroughputTable
    absurd: tuple[Absurd, ...]


def believable(table: ThroughputTable, roofline: Roofline) -> Believable:
    """Removes absurd entries; returns the same table if there are none."""
    found: list[Absurd] = []
    rates = table.rate_steps_per_s.copy()
    for row, column in np.argwhere((rates > 0) & ~_is_possible(rates)).tolist():
        found.append(_absurd(table, row, column, _impossible(float(rates[row, column]))))
        rates[row, column] = math.nan
    expected = _expected(replace(table, rate_steps_per_s=rates), roofline)
    for row, columns in enumerate(rates > 0):
        for column in _outliers(np.flatnonzero(columns).tolist(), rates[row], expected[row]):
            ratio = rates[row, column] / math.exp(float(expected[row, column]))
            found.append(_absurd(table, row, column, _far_off(ratio)))
            rates[row, column] = math.nan
    for row, column, ratio in _outvoted(replace(table, rate_steps_per_s=rates), roofline):
        found.append(_absurd(table, row, column, _far_off(ratio)))
        rates[row, column] = math.nan
    pairs = table.pair_rate_steps_per_s.copy()
    for pair, side, column in np.argwhere(_absurd_pairs(table, rates)).tolist():
        first, second = table.pair_rows[pair, side], table.pair_rows[pair, 1 - side]
        rate, reason = float(table.pair_rate_steps_per_s[pair, side, column]), "more than 1000 times its rate alone"
        if not RATE_MIN_STEPS_PER_S <= rate <= RATE_MAX_STEPS_PER_S:
            reason = _impossible(rate)
        found.append(Absurd(table.keys[first], table.gpu_types[column], rate, reason, table.keys[second]))
        pairs[pair, :, column] = math.nan
    if not found:
        return Believable(table, ())
    return Believable(replace(table, rate_steps_per_s=rates, pair_rate_steps_per_s=pairs), tuple(found))


def located(absurd: Sequence[Absurd], file: str, lines: Mapping[tuple[Key, str, str], int]) -> tuple[str, ...]:
    """A message for each entry, with its line in the file if known."""
    found = []
    for one in absurd:
        line = lines.get((one.key, one.gpu_type, one.partner[0] if one.partner is not None else ""), 0)
        found.append(f"{file}:{line}: {one}" if line else f"{file}: {one}")
    return tuple(found)


def _expected(table: ThroughputTable, roofline: Roofline) -> Floats:
    """Expected log rates, (N, T): the roofline, plus medians of GPU types, plus medians of rows."""
    model = IsolatedModel(roofline=roofline).anchored(table)
    mean = model.mean(table.keys, table.gpu_types)
    with np.errstate(divide="ignore"):
        rest = np.where(table.rate_steps_per_s > 0, np.log(table.rate_steps_per_s) - mean, math.nan)
    row, column = np.zeros((len(mean), 1)), np.zeros((1, mean.shape[1]))
    enough = (~np.isnan(rest)).sum(axis=0) >= _ROWS_MIN
    for _ in range(_SWEEPS):
        row = _medians(rest - column, np.ones(len(rest), dtype=np.bool_))[:, None]
        column = _medians((rest - row).T, enough)[None, :]
    return np.asarray(mean + row + column)


def _medians(values: Floats, wanted: Bools) -> Floats:
    """Median of each row's known values; 0 if it has none or is not wanted."""
    ordered = np.sort(values, axis=1)  # NaN last
    known = (~np.isnan(values)).sum(axis=1)
    rows = np.flatnonzero(wanted & (known > 0))
    found = np.zeros(len(values))
    found[rows] = (ordered[rows, (known[rows] - 1) // 2] + ordered[rows, known[rows] // 2]) / 2
    return found


def _outliers(columns: Sequence[int], rates: Floats, expected: Floats) -> list[int]:
    """Columns of a row's rates that contradict the rest; both where there are two."""
    left, found = list(columns), []
    off = {column: math.log(float(rates[column])) - float(expected[column]) for column in left}
    while len(left) > 1 and max(off[c] for c in left) - min(off[c] for c in left) > FAR:
        middle = float(np.median([off[c] for c in left]))
        worst = max(left, key=lambda c: (abs(off[c] - middle), c))
        if len(left) == 2:
            found += left
            return found
        found.append(worst)
        left.remove(worst)
    return found


def _outvoted(table: ThroughputTable, roofline: Roofline) -> list[tuple[int, int, float]]:
    """Row, column and excess of rates that contradict the rest of the table, even if alone in their row.

    Compares every rate with its prediction from all others and removes the worst first, because one bad rate can make
    others look wrong. If the others carry little information, the prediction is wide and contradicts no rate.
    """
    found: list[tuple[int, int, float]] = []
    rates, model = table.rate_steps_per_s.copy(), IsolatedModel(roofline=roofline)
    if (np.abs(model.left_out(table).off) <= FAR / 2).all():
        return found  # all are near; the fitted roofline does not change that, and its fit loads scipy
    for _ in range(_SWEEPS):
        left = replace(table, rate_steps_per_s=rates)
        others = model.calibrated(left).left_out(left)
        excess = np.abs(others.off) / np.maximum(FAR, FAR_SD * others.sd)
        worst = float(excess.max(initial=0.0))
        if worst <= 1.0:
            break
        for entry in np.flatnonzero(excess > max(1.0, worst / 2.0)).tolist():
            row, column = others.entries[entry].tolist()
            found.append((row, column, math.exp(float(np.clip(others.off[entry], -700.0, 700.0)))))
            rates[row, column] = math.nan
    return found


def _absurd_pairs(table: ThroughputTable, alone: Floats) -> Bools:
    """Mask of absurd rates of pairs, (P, 2, T)."""
    rates = table.pair_rate_steps_per_s
    with np.errstate(divide="ignore", invalid="ignore"):
        is_far = (rates > 0) & (rates > math.exp(FAR) * alone[table.pair_rows])
    return np.asarray(((rates > 0) & ~_is_possible(rates)) | is_far)


def _is_possible(rates: Floats) -> Bools:
    return np.asarray((rates >= RATE_MIN_STEPS_PER_S) & (rates <= RATE_MAX_STEPS_PER_S))


def _far_off(ratio: float) -> str:
    how = f"{ratio:.2g} times" if ratio > 1 else f"1/{1 / ratio:.2g} of"
    return f"{how} the rate expected from other GPU types, other rows and the roofline"


def _impossible(rate: float) -> str:
    if rate > RATE_MAX_STEPS_PER_S:
        return f"more than {RATE_MAX_STEPS_PER_S:g}, which no job makes"
    return f"less than {RATE_MIN_STEPS_PER_S:g}, a step in thirty years"


def _absurd(table: ThroughputTable, row: int, column: int, reason: str) -> Absurd:
    return Absurd(table.keys[row], table.gpu_types[column], float(table.rate_steps_per_s[row, column]), reason)


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
