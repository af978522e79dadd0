"""Finds absurd rates in a table: wrong units, slips of the keyboard, files of something else.

An entry is absurd if no job makes such a rate, or if it is more than a thousand times off what is expected. Expected is
what the rest of its row, the other rows and the roofline say, and also what the model predicts from all other entries,
where the entry must be off by six standard deviations, too. Legitimate extremes (a spread of 10 or 100) stay. An absurd
entry is left out: it is then estimated like a rate that was not measured, until a running job reports its rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.kinds import Key
from gavelpy.estimator.online import RATE_MAX_STEPS_PER_S
from gavelpy.estimator.roofline import Roofline
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.throughput import ThroughputTable

RATE_MIN_STEPS_PER_S = 1e-9  # a step in thirty years
FAR = math.log(1000.0)  # from what is expected
FAR_SD = 6.0  # standard deviations of that expectation, where it is uncertain
_SWEEPS = 10
_ROWS_MIN = 3  # that a GPU type's own level is taken from


@dataclass(frozen=True)
class Absurd:
    """An entry that is not believed, and why."""

    key: Key
    gpu_type: str
    rate_steps_per_s: float
    reason: str
    partner: Key | None = None  # of a rate next to another job

    def __str__(self) -> str:
        beside = f" next to {self.partner[0]}" if self.partner is not None else ""
        where = f"{self.key[0]} on {self.key[1]} x {self.gpu_type}{beside}"
        return f"{where}: {self.rate_steps_per_s:g} steps/s is not believed: {self.reason}"


@dataclass(frozen=True, eq=False)
class Believable:
    """The table without its absurd entries, and those."""

    table: ThroughputTable
    absurd: tuple[Absurd, ...]


def believable(table: ThroughputTable, roofline: Roofline) -> Believable:
    """What of the table can be believed; the table itself if all can."""
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
    """A line for each entry, with its place in the file, where it is known."""
    found = []
    for one in absurd:
        line = lines.get((one.key, one.gpu_type, one.partner[0] if one.partner is not None else ""), 0)
        found.append(f"{file}:{line}: {one}" if line else f"{file}: {one}")
    return tuple(found)


def _expected(table: ThroughputTable, roofline: Roofline) -> Floats:
    """Logarithms of rates by the roofline, GPU types' medians over it and rows' medians over both, (N, T)."""
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
    """Of each row, of what is known; 0 where nothing is, or it is not wanted."""
    found = np.zeros(len(values))
    for i in np.flatnonzero(wanted & ~np.isnan(values).all(axis=1)).tolist():
        found[i] = float(np.nanmedian(values[i]))
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
    """Row, column and excess of rates that the rest of the table contradicts, also where they are alone in a row.

    Every rate is compared with what all others predict, and the worst are left out first: one of them may be what
    makes others look wrong. Where the others know little their prediction is wide, and nothing is contradicted.
    """
    found: list[tuple[int, int, float]] = []
    rates, model = table.rate_steps_per_s.copy(), IsolatedModel(roofline=roofline)
    for _ in range(_SWEEPS):
        left = replace(table, rate_steps_per_s=rates)
        posterior = model.calibrated(left).given(left)
        off, sd = posterior.left_out()
        excess = np.abs(off) / np.maximum(FAR, FAR_SD * sd)
        worst = float(excess.max(initial=0.0))
        if worst <= 1.0:
            break
        for entry in np.flatnonzero(excess > max(1.0, worst / 2.0)).tolist():
            row, column = posterior.entries[entry].tolist()
            found.append((row, column, math.exp(float(np.clip(off[entry], -700.0, 700.0)))))
            rates[row, column] = math.nan
    return found


def _absurd_pairs(table: ThroughputTable, alone: Floats) -> Bools:
    """(P, 2, T)."""
    rates = table.pair_rate_steps_per_s
    with np.errstate(divide="ignore", invalid="ignore"):
        is_far = (rates > 0) & (rates > math.exp(FAR) * alone[table.pair_rows])
    return np.asarray(((rates > 0) & ~_is_possible(rates)) | is_far)


def _is_possible(rates: Floats) -> Bools:
    return np.asarray((rates >= RATE_MIN_STEPS_PER_S) & (rates <= RATE_MAX_STEPS_PER_S))


def _far_off(ratio: float) -> str:
    how = f"{ratio:.2g} times" if ratio > 1 else f"1/{1 / ratio:.2g} of"
    return f"{how} what other GPU types, other rows and the roofline say"


def _impossible(rate: float) -> str:
    if rate > RATE_MAX_STEPS_PER_S:
        return f"more than {RATE_MAX_STEPS_PER_S:g}, which no job makes"
    return f"less than {RATE_MIN_STEPS_PER_S:g}, a step in thirty years"


def _absurd(table: ThroughputTable, row: int, column: int, reason: str) -> Absurd:
    return Absurd(table.keys[row], table.gpu_types[column], float(table.rate_steps_per_s[row, column]), reason)
