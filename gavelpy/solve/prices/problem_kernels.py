"""What is known of a problem's jobs before any search, in numba: their table, and whether some are alike."""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit

_FREE = np.int64(-1)  # a slot without a class; numba would compile a function another time for the literal
_MULTIPLIER = np.int64(0x1E3779B97F4A7C15)  # odd, near the golden ratio
_MINUS_ZERO = np.int64(-(2**63))  # its bits


@njit(cache=True, nogil=True, error_model="numpy")
def tabled(rate, gpus, value, step, best, scaled, of_best, total):  # type: ignore[no-untyped-def]
    """Writes the table of a problem; returns whether all jobs can run, each on some type, and each type is of use.

    These are best rates (J,), rates in units of them (J, T), and values of them (J,). `total` has a sum over the
    figures of every job whose row is a multiple of `step`: see `are_distinct` in program.py.
    """
    J, T = rate.shape
    is_used = np.zeros(T, np.bool_)
    for j in range(J):
        most = 0.0
        for t in range(T):
            most = max(most, rate[j, t])
            if rate[j, t] > 0.0:
                is_used[t] = True
        if not most > 0.0:
            return False
        best[j] = most
        of_best[j] = most * value[j]
        for t in range(T):
            scaled[j, t] = rate[j, t] / most
        if j % step == 0:
            found = 0.0
            for t in range(T):
                found += np.sqrt(t + 2.0) * scaled[j, t]
            total[j // step] = found + np.sqrt(T + 2.0) * gpus[j] + np.sqrt(T + 3.0) * of_best[j]
    return is_used.all()


@njit(cache=True, nogil=True, error_model="numpy")
def are_apart(ordered, apart):  # type: ignore[no-untyped-def]
    """Whether neighbours among these numbers, in order, differ by more than the part `apart`."""
    near = 0
    for n in range(1, len(ordered)):
        near += not ordered[n] - ordered[n - 1] > apart * ordered[n]
    return near == 0


@njit(cache=True, nogil=True, error_model="numpy")
def few_are_near(ordered, equal, step, worthwhile):  # type: ignore[no-untyped-def]
    """Whether few of the different neighbours among these numbers, in order, are nearly equal: see ladder.py."""
    near, differ = 0, 0
    for n in range(1, len(ordered)):
        rise = ordered[n] - ordered[n - 1]
        if rise > equal * ordered[n]:
            differ += 1
            near += rise <= step * ordered[n]
    return near <= worthwhile * differ


@njit(cache=True, nogil=True, error_model="numpy")
def is_out_of_reach(rate, gpus, count, need, gpu_counts, steps, beyond, far, slowest):  # type: ignore[no-untyped-def]
    """Whether prices prove that the GPUs cost less than the needs (K,) do: see `_is_out_of_reach` in engine.py."""
    K, T = rate.shape
    price, spent = np.ones(T), np.empty(T)
    for step in range(steps):
        spent[:] = 0.0
        paid, owned = 0.0, 0.0
        for k in range(K):
            least, cheapest = np.inf, 0
            for t in range(T):
                if rate[k, t] > 0.0 and price[t] / rate[k, t] < least:
                    least, cheapest = price[t] / rate[k, t], t
            cost = gpus[k] * count[k] * need[k] * least
            spent[cheapest] += cost
            paid += cost
        for t in range(T):
            owned += price[t] * gpu_counts[t]
        if paid > (1.0 + beyond) * owned:
            return True
        if step > 0 and paid < far * owned:
            return False
        for t in range(T):
            price[t] *= np.sqrt(max(spent[t] / (price[t] * gpu_counts[t]), slowest))
    return False


@njit(cache=True, nogil=True, error_model="numpy")
def classes_of(words, dropped, of_job, representative, count):  # type: ignore[no-untyped-def]
    """Sets the classes of equal rows, and returns how many there are: see `classes_of` in program.py.

    `words` (J, F) are the bits of floats, and are rounded, half to even: so many `dropped` bits become zero.
    """
    J, F = words.shape
    below_half = (np.int64(1) << (dropped - 1)) - 1
    slots = 2
    while slots < 2 * J:
        slots *= 2
    taken, found = np.full(slots, _FREE), 0
    for j in range(J):
        mixed = _FREE
        for f in range(F):
            word = words[j, f]
            word = ((word + below_half + ((word >> dropped) & 1)) >> dropped) << dropped
            word = np.int64(0) if word == _MINUS_ZERO else word
            words[j, f] = word
            mixed = (mixed ^ word) * _MULTIPLIER
            mixed ^= mixed >> 29
        slot = mixed & (slots - 1)
        while taken[slot] != _FREE and not _are_equal(words, representative[taken[slot]], j):
            slot = (slot + 1) & (slots - 1)
        if taken[slot] == _FREE:
            taken[slot], representative[found], count[found] = found, j, 0
            found += 1
        of_job[j] = taken[slot]
        count[taken[slot]] += 1
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _are_equal(words, i, j):  # type: ignore[no-untyped-def]
    same = 0
    for f in range(words.shape[1]):
        same += words[i, f] == words[j, f]
    return same == words.shape[1]
