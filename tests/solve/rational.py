"""Linear programs in exact rationals: a simplex method without tolerances, for problems with few jobs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gavelpy.model.arrays import Floats

Row = list[Fraction]


def fractions(values: Floats) -> list[Fraction]:
    """The exact values of the doubles."""
    return [Fraction(float(value)) for value in values]


def maximum(gain: Row, rows: list[Row], limits: Row, enough: Fraction | None = None) -> Fraction:
    """max gain·x over x >= 0 with rows·x <= limits, which must be feasible and bounded. Bland's rule, so it ends.

    The search stops at any value above `enough`.
    """
    if min(limits) < 0:
        with_slack = [[*row, Fraction(-1)] for row in rows]
        lack = _Dictionary([Fraction(0)] * len(gain) + [Fraction(-1)], with_slack, limits)
        lack.pivot(min(range(len(limits)), key=lambda i: limits[i]), len(gain))
        lack.climb()
        assert lack.value == 0, "infeasible"
        lack.drop(len(gain), gain)
        lack.climb(enough)
        return lack.value
    plain = _Dictionary(gain, rows, limits)
    plain.climb(enough)
    return plain.value


class _Dictionary:
    """Chvátal's dictionaries: each basic variable, and the objective, as a combination of the others."""

    def __init__(self, gain: Row, rows: list[Row], limits: Row) -> None:
        self.others = list(range(len(gain)))
        self.basic = list(range(len(gain), len(gain) + len(rows)))
        self.rows, self.rests = [[-value for value in row] for row in rows], list(limits)
        self.gain, self.value = list(gain), Fraction(0)

    def climb(self, enough: Fraction | None = None) -> None:
        while enters := [(name, k) for k, name in enumerate(self.others) if self.gain[k] > 0]:
            if enough is not None and self.value > enough:
                return
            column = min(enters)[1]
            leaves = [
                (-rest / row[column], self.basic[i], i)
                for i, (row, rest) in enumerate(zip(self.rows, self.rests, strict=True))
                if row[column] < 0
            ]
            self.pivot(min(leaves)[2], column)

    def pivot(self, i: int, column: int) -> None:
        pivot = self.rows[i][column]
        row = [-value / pivot for value in self.rows[i]]
        row[column] = 1 / pivot
        rest = -self.rests[i] / pivot
        self.basic[i], self.others[column] = self.others[column], self.basic[i]
        for k in range(len(self.rows)):
            if k != i and self.rows[k][column]:
                self.rows[k], self.rests[k] = self._put(self.rows[k], self.rests[k], column, row, rest)
        self.gain, self.value = self._put(self.gain, self.value, column, row, rest)
        self.rows[i], self.rests[i] = row, rest

    def drop(self, name: int, gain: Row) -> None:
        """Removes the variable `name`, which is zero, and makes `gain` the objective."""
        if name in self.basic:
            i = self.basic.index(name)
            self.pivot(i, next(k for k, value in enumerate(self.rows[i]) if value))
        column = self.others.index(name)
        del self.others[column]
        for row in self.rows:
            del row[column]
        self.gain, self.value = [Fraction(0)] * len(self.others), Fraction(0)
        for variable, worth in enumerate(gain):
            if variable in self.others:
                self.gain[self.others.index(variable)] += worth
            else:
                i = self.basic.index(variable)
                self.gain = [g + worth * value for g, value in zip(self.gain, self.rows[i], strict=True)]
                self.value += worth * self.rests[i]

    @staticmethod
    def _put(into: Row, rest: Fraction, column: int, row: Row, row_rest: Fraction) -> tuple[Row, Fraction]:
        factor = into[column]
        changed = [value + factor * other for value, other in zip(into, row, strict=True)]
        changed[column] = factor * row[column]
        return changed, rest + factor * row_rest


def zeros(count: int) -> Row:
    """A row of zeros."""
    return [Fraction(0)] * count


def as_floats(values: Row) -> Floats:
    """The nearest doubles."""
    return np.array([float(value) for value in values])
