"""The kinks that determine prices, in numba: their equations, and those that complete them.

Numbers are in parts of each type's GPUs, and prices are those of all GPUs of a type.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.prices.corner_kernels import FREE, HELD, LEVEL, TIE, ZERO, inner, tie_row

_DEPENDENT = 1e-7  # part of a row that is orthogonal to the others
_SINGULAR = 1e-13  # of the largest number: a pivot
AS_WRITTEN, TRANSPOSED = np.bool_(False), np.bool_(True)  # numba would compile a function for each literal


@inner
def take(load, low, high, part, rising, best, left, rise):  # type: ignore[no-untyped-def]
    """Takes the GPUs of the best corners from `left`, and adds what they take more for a unit of level."""
    for k in range(len(best)):
        v = best[k]
        a, b = low[k, v], high[k, v]
        if b >= 0:
            left[b] -= load[k, b] * part[k, v]
            rise[b] += load[k, b] * rising[k, v]
        if a >= 0:
            left[a] -= load[k, a] * (1.0 - part[k, v])
            rise[a] -= load[k, a] * rising[k, v]


@inner
def completed(  # type: ignore[no-untyped-def]
    load, low, high, part, best, rise, is_level, price, kind, who, corner, kinks, basis
):
    """Adds kinks until there are T, and drops those that follow from the others. Returns their number."""
    T = len(price)
    row, kept = np.empty(T), ZERO
    if is_level:
        for t in range(T):
            row[t] = rise[t]
        if not _independent(basis, row, ZERO):
            return 0
        kept += 1
    ties = 0
    for n in range(kinks):
        tie_row(load, low, high, part, who[n], best[who[n]], corner[n], row)
        if kept < T and _independent(basis, row, kept):
            kind[ties], who[ties], corner[ties] = TIE, who[n], corner[n]
            kept += 1
            ties += 1
    kinks = ties
    if is_level:
        kind[kinks], who[kinks] = LEVEL, -1
        kinks += 1
    for wanted in (FREE, HELD):
        while kept < T:
            chosen, most = -1, _DEPENDENT
            for t in range(T):
                if wanted == FREE and price[t] > 0.0:
                    continue
                rest = 1.0
                for n in range(kept):
                    rest -= basis[n, t] ** 2
                if rest > most:
                    chosen, most = t, rest
            if chosen < 0:
                break
            for t in range(T):
                row[t] = 1.0 if t == chosen else 0.0
            _independent(basis, row, kept)
            kind[kinks], who[kinks] = wanted, chosen
            kept += 1
            kinks += 1
    return kinks


@inner
def _independent(basis, row, kept):  # type: ignore[no-untyped-def]
    """Writes the part of `row` that is orthogonal to the first rows of `basis` after them; whether there is much."""
    T = len(row)
    length = 0.0
    for t in range(T):
        length += row[t] ** 2
    if not length > 0.0:
        return False
    for t in range(T):
        basis[kept, t] = row[t] / length**0.5
    for n in range(2 * kept):
        along = 0.0
        for t in range(T):
            along += basis[kept, t] * basis[n % kept, t]
        for t in range(T):
            basis[kept, t] -= along * basis[n % kept, t]
    rest = 0.0
    for t in range(T):
        rest += basis[kept, t] ** 2
    if not rest > _DEPENDENT**2:
        return False
    for t in range(T):
        basis[kept, t] /= rest**0.5
    return True


@inner
def equations(  # type: ignore[no-untyped-def]
    load, gain, level, rise, price, low, high, part, best, kind, who, corner, system, right, scale
):
    """Writes the equations of the prices, one for each kink, and the factors by which rows were divided."""
    T = len(price)
    for n in range(T):
        row = system[n]
        scale[n] = 1.0
        if kind[n] == LEVEL:
            for t in range(T):
                row[t] = rise[t] * level
            right[n] = 1.0
        elif kind[n] == TIE:
            k = who[n]
            tie_row(load, low, high, part, k, best[k], corner[n], row)
            right[n] = 0.0
            for v, sign in ((corner[n], 1.0), (best[k], -1.0)):
                a, b = low[k, v], high[k, v]
                if b >= 0:
                    right[n] += sign * part[k, v] * gain[k, b]
                if a >= 0:
                    right[n] += sign * (1.0 - part[k, v]) * gain[k, a]
            factor = 0.0
            for t in range(T):
                factor = max(factor, abs(row[t]))
            if factor > 0.0:
                for t in range(T):
                    row[t] /= factor
                right[n] /= factor
                scale[n] = factor
        else:
            for t in range(T):
                row[t] = 1.0 if t == who[n] else 0.0
            right[n] = 0.0 if kind[n] == FREE else price[who[n]]


@inner
def solved(matrix, is_transposed, right, answer):  # type: ignore[no-untyped-def]
    """Writes the solution of a small system; whether there is one."""
    T = len(right)
    a, most = np.empty((T, T)), 0.0
    for r in range(T):
        answer[r] = right[r]
        for t in range(T):
            a[r, t] = matrix[t, r] if is_transposed else matrix[r, t]
            most = max(most, abs(a[r, t]))
    for c in range(T):
        pivot = c
        for r in range(c + 1, T):
            if abs(a[r, c]) > abs(a[pivot, c]):
                pivot = r
        if not abs(a[pivot, c]) > _SINGULAR * most:
            return False
        if pivot != c:
            for t in range(T):
                a[c, t], a[pivot, t] = a[pivot, t], a[c, t]
            answer[c], answer[pivot] = answer[pivot], answer[c]
        for r in range(c + 1, T):
            factor = a[r, c] / a[c, c]
            if factor != 0.0:
                for t in range(c, T):
                    a[r, t] -= factor * a[c, t]
                answer[r] -= factor * answer[c]
    for c in range(T - 1, -1, -1):
        for t in range(c + 1, T):
            answer[c] -= a[c, t] * answer[t]
        answer[c] /= a[c, c]
    return True
