"""Newton's steps on the dual function in numba: what newton.py does, in one call, without margins of jobs.

A step is a sweep over all jobs, a system of T + 1 equations, and the choice of a length. numpy takes some 50
microseconds for the latter two, as long as the sweep takes for a thousand jobs.
"""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit
from gavelpy.solve.prices.corner_kernels import inner
from gavelpy.solve.prices.curve_kernels import level_of, ratio_near
from gavelpy.solve.prices.numba_kernels import _hull

_ROUNDING = 1e-11  # relative, of sums
_SINGULAR = 1e-13  # of the largest number of a system: a pivot
_SPECK = 1e-9  # of the highest price: a type that costs no more is free unless it is scarce
_TINY = 1e-10  # of the highest price: what a negligible one becomes
_ALIKE = 30.0  # times a negligible price: others up to this become specks with it
_LOW = 0.1  # of the highest price: a price that may leap to zero
_FIRST, _BACK = 0.01, 0.3  # of the highest price, and of the price before it fell: where prices return to
_SCARCE = 1e-6  # of the value of free types: excess demand at which they are scarce
_HALF = 0.5
_NEAR = 0.2  # of a price: a step that is shorter is the last, for bent needs


@njit(cache=True, nogil=True, error_model="numpy")
def descend(  # type: ignore[no-untyped-def]
    rate, gain, gpus, count, base, slope, first, second, third, gpu_counts, by_lines, leveled, close, settings,
    steps_max, level, width, price,
):  # fmt: skip
    """Moves `price` (T,) to the best point of some steps; returns its excess, the least bound, and its level.

    Needs (K,) are `base` at level 0, and rise with `slope` (K,) up to 1; or, if there are three more arrays (K,), those
    of `tangents_of`, and both are overwritten. `settings`: constants of newton.py.
    """
    T = len(price)
    price_floor, idle_fall, idle_steps, leap_max, shortest, shorter, short, longer, wide, stiffness = settings[:10]
    rounding, narrowest, negligible = settings[10:]
    used, drift, curvature, over = np.empty(T), np.empty(T), np.empty((T, T)), np.empty(T)
    active, step, system, right = np.empty(T, np.bool_), np.zeros(T), np.empty((T + 1, T + 1)), np.empty(T + 1)
    plain, plain_rise, leaps, last, may_leap = np.zeros(T), 0.0, np.zeros(T, np.bool_), np.full(T, _FIRST), True
    at, best, best_level, best_excess = price.copy(), price.copy(), level, np.inf
    from_price, from_level, from_bound, rise, along = price.copy(), level, np.inf, 0.0, 0.0
    least, idle, leap, bound, steepness = np.inf, 0, leap_max, np.inf, np.empty(len(gpus))
    is_bent = len(third) > 0
    for _ in range(steps_max):
        if is_bent:
            tangents_of(first, second, third, by_lines, level, base, slope)
        reward = _demanded(rate, gain, gpus, count, base, slope, level, at, width, used, drift, curvature, steepness)
        over[:] = used - gpu_counts
        bound = _bound(level if leveled else reward, leveled, drift, curvature, over, at, steepness)
        if is_bent and np.isfinite(bound):
            bound = _root(rate, gpus, count, first, second, third, by_lines, at, gpu_counts, steepness, level)
            over += drift * (bound - level)
            level = bound
        if not np.isfinite(bound):
            break
        excess = _excess(over, close, at, active)
        if excess < best_excess:
            best[:] = at
            best_level, best_excess = level, excess
        idle = idle + 1 if bound > least - idle_fall * abs(bound) else 0
        least = min(least, bound)
        if (excess < 1.0 and not is_bent) or idle > idle_steps:
            break
        if bound <= from_bound + rounding * abs(bound) or excess < 1.0:
            rise, plain_rise, along, may_leap = _based(
                curvature, used, drift, at, over, gpu_counts, active, leveled, may_leap, stiffness, price_floor, system,
                right, step, plain, leaps, last,
            )  # fmt: skip
            if excess < 1.0 and max(plain.max(), -plain.min()) < _NEAR:
                break
            from_price[:] = at
            from_level, from_bound = level, bound
            leap = min(longer * leap, leap_max)
        elif leaps.any():
            step[:] = plain
            rise, may_leap, leap = plain_rise, False, leap_max
            leaps[:] = False
        else:
            falls = (over * at * step).sum()
            part = min(max(along / (along - falls), shortest), short) if along > falls else shorter
            leap = part * min(_length(step, leaps, rise, from_level), leap)
        length = _length(step, leaps, rise, from_level)
        taken = min(length, leap)
        part = taken / length if length > 0.0 else 0.0
        _move(price_floor, negligible, from_price, part, step, leaps, over, at)
        level = from_level + part * rise
        width = min(max(min(width, 2.0 * taken), narrowest), wide)
    price[:] = np.where(best > _SPECK * best.max(), best, price_floor * best.max())
    return best_excess, least, best_level


@inner
def _based(  # type: ignore[no-untyped-def]
    curvature, used, drift, price, over, gpu_counts, active, leveled, may_leap, stiffness, price_floor, system, right,
    step, plain, leaps, last,
):  # fmt: skip
    """Writes a step, and Newton's step, `plain`; returns those of the level, and how fast the bound falls.

    Also returns whether prices may leap to zero from now on; see `_based` in newton.py.
    """
    leaps[:] = False
    rise = plain_rise = _step(
        curvature, used, drift, price, over, active, leaps, leveled, stiffness, system, right, step
    )
    plain[:] = step
    along = (over * price * plain).sum()
    if may_leap:
        rise = _fall(
            curvature, used, drift, price, over, active, leaps, leveled, stiffness, system, right, step, rise,
            price_floor, last,
        )  # fmt: skip
    if _return(price, over, gpu_counts, last, leaps, step):
        plain[:] = _HALF * step
        return 0.0, 0.0, along, False
    return rise, plain_rise, along, may_leap


@inner
def tangents_of(first, second, third, by_lines, level, base, slope):  # type: ignore[no-untyped-def]
    """Writes the tangents of the needs at a level: those of `Lines`, or those of `Bends` for the ratio -level."""
    for i in range(len(third)):
        if by_lines:
            rises = first[i] + second[i] * level < third[i]
            base[i], slope[i] = (first[i], second[i]) if rises else (third[i], 0.0)
            continue
        left = -level * first[i] - second[i]
        if left * third[i] <= 1.0:
            base[i], slope[i] = third[i], 0.0
        else:
            slope[i] = first[i] / (left * left)
            base[i] = 1.0 / left - slope[i] * level


@inner
def _root(  # type: ignore[no-untyped-def]
    rate, gpus, count, first, second, third, by_lines, price, gpu_counts, steepness, level
):
    """The highest level at which needs with these marginal costs, (K,), are worth what there is; overwrites these."""
    budget = 0.0
    for t in range(len(price)):
        budget += price[t] * gpu_counts[t]
    for i in range(len(third)):
        most = 0.0
        for t in range(len(price)):
            if rate[i, t] > 0.0:
                most = max(most, steepness[i] * rate[i, t] - gpus[i] * price[t])
        budget += count[i] * most
        steepness[i] *= count[i]
    if by_lines:
        return level_of(first, second, third, steepness, budget * (1.0 + _ROUNDING), level)
    return -ratio_near(first, second, third, steepness, budget * (1.0 + _ROUNDING), -level)


@inner
def _bound(bound, leveled, drift, curvature, over, price, steepness):  # type: ignore[no-untyped-def]
    """The upper bound that these prices prove; infinite if they do not. With a level, scales prices and curvature."""
    T, norm = len(price), 1.0
    if leveled:
        norm = 0.0
        for t in range(T):
            norm += drift[t] * price[t]
        if not norm > 0.0:
            return np.inf
    for t in range(T):
        price[t] /= norm
        bound -= price[t] * over[t]
        curvature[t, :] *= norm
    if norm != 1.0:
        steepness /= norm
    return bound


@inner
def _excess(over, close, price, active):  # type: ignore[no-untyped-def]
    """The largest excess demand of a type that is not free, and writes which are not."""
    excess, most = 0.0, price.max()
    for t in range(len(price)):
        active[t] = price[t] > _SPECK * most or over[t] > 0.0
        if active[t]:
            excess = max(excess, abs(over[t]) / close[t])
    return excess


@inner
def _move(price_floor, negligible, from_price, part, step, leaps, over, price):  # type: ignore[no-untyped-def]
    """Writes the prices after a part of the step; negligible ones become specks if their types are not used up.

    So do prices not much higher. They keep their ratios, which divide the jobs among these types.
    """
    from_most, most, worth, highest = from_price.max(), 0.0, 0.0, 0.0
    for t in range(len(price)):
        moved = step[t] if leaps[t] else part * step[t]
        price[t] = max(from_price[t] * np.exp(moved), price_floor * from_most)
        most = max(most, price[t])
    low = negligible * most
    for t in range(len(price)):
        if _SPECK * most < price[t] < negligible * most:
            low = _ALIKE * negligible * most
    for t in range(len(price)):
        if price[t] < low:
            worth += price[t] * over[t]
            highest = max(highest, price[t])
    if worth < 0.0:
        for t in range(len(price)):
            if price[t] < low:
                price[t] = max(price[t] * min(_TINY * most / highest, 1.0), price_floor * most)


@inner
def _length(step, leaps, rise, level):  # type: ignore[no-untyped-def]
    """Largest relative change in a full step, but for prices that leap."""
    length = abs(rise / level) if level != 0.0 else 0.0
    for t in range(len(step)):
        if not leaps[t]:
            length = max(length, abs(step[t]))
    return length


@inner
def _step(  # type: ignore[no-untyped-def]
    curvature, used, drift, price, over, active, gone, leveled, stiffness, system, right, step
):
    """Writes Newton's change of each price's logarithm, (T,), zero if it is not active; returns that of the level.

    The prices of types that are `gone` become zero.
    """
    T = len(price)
    N = T + 1 if leveled else T
    system[T, T], right[T] = 0.0, 0.0
    for r in range(T):
        moves = active[r] and not gone[r]
        for t in range(T):
            system[r, t] = -curvature[r, t] * price[t] if moves and active[t] and not gone[t] else 0.0
        system[r, r] -= stiffness * used[r] + 1e-200 if moves else 1.0
        system[r, T] = drift[r] if moves and leveled else 0.0
        system[T, r] = drift[r] * price[r] if moves and leveled else 0.0
        right[r] = -over[r] if moves else 0.0
        for t in range(T):
            right[r] -= curvature[r, t] * price[t] if moves and gone[t] else 0.0
        right[T] += drift[r] * price[r] if gone[r] and leveled else 0.0
    for r in range(N):
        most = 1e-200
        for t in range(N):
            most = max(most, abs(system[r, t]))
        for t in range(N):
            system[r, t] /= most
        right[r] /= most
    _eliminated(system, right, N)
    for t in range(T):
        step[t] = right[t]
    return right[T] if leveled else 0.0


@inner
def _fall(  # type: ignore[no-untyped-def]
    curvature, used, drift, price, over, active, gone, leveled, stiffness, system, right, step, rise, price_floor, last
):
    """Lets low prices leap to zero that Newton's step makes negative, and the others follow; returns the level's step.

    Writes which leap, `gone` (T,), and their parts of the highest price, `last` (T,).
    """
    T, most, more = len(price), price.max(), True
    while more:
        more = False
        for t in range(T):
            if active[t] and not gone[t] and over[t] < 0.0 and step[t] < -1.0 and price[t] < _LOW * most:
                gone[t] = more = True
        if more:
            rise = _step(curvature, used, drift, price, over, active, gone, leveled, stiffness, system, right, step)
    for t in range(T):
        if gone[t]:
            step[t], last[t] = np.log(price_floor * most / price[t]), price[t] / most
    return rise


@inner
def _return(price, over, gpu_counts, last, leaps, step):  # type: ignore[no-untyped-def]
    """Whether the types without a price are scarce together: then their prices leap back, and writes the step."""
    most, highest, part, worth, total = price.max(), 0.0, 0.0, 0.0, 0.0
    others = most
    for t in range(len(price)):
        if price[t] <= _SPECK * most:
            highest, part = max(highest, price[t]), max(part, last[t])
            worth += price[t] * over[t]
            total += price[t] * gpu_counts[t]
        else:
            others = min(others, price[t])
    if not worth > _SCARCE * total:
        return False
    for t in range(len(price)):
        leaps[t] = price[t] <= _SPECK * most
        step[t] = np.log(min(_BACK * part * most, _HALF * others) / highest) if leaps[t] else 0.0
    return True


@inner
def _eliminated(matrix, right, N):  # type: ignore[no-untyped-def]
    """Replaces the right side of a small system by its solution, with zero where a pivot is zero."""
    for c in range(N):
        pivot = c
        for r in range(c + 1, N):
            if abs(matrix[r, c]) > abs(matrix[pivot, c]):
                pivot = r
        if not abs(matrix[pivot, c]) > _SINGULAR:
            matrix[c, c] = 0.0
            continue
        if pivot != c:
            for t in range(N):
                matrix[c, t], matrix[pivot, t] = matrix[pivot, t], matrix[c, t]
            right[c], right[pivot] = right[pivot], right[c]
        for r in range(c + 1, N):
            factor = matrix[r, c] / matrix[c, c]
            if factor != 0.0:
                for t in range(c, N):
                    matrix[r, t] -= factor * matrix[c, t]
                right[r] -= factor * right[c]
    for c in range(N - 1, -1, -1):
        for t in range(c + 1, N):
            right[c] -= matrix[c, t] * right[t]
        right[c] = right[c] / matrix[c, c] if matrix[c, c] != 0.0 else 0.0


@inner
def _demanded(  # type: ignore[no-untyped-def]
    rate, gain, gpus, count, base, slope, level, prices, width, used, drift, curvature, steepness
):
    """Writes the GPUs that all jobs use at these prices, their drift and smoothed curvature; returns the reward.

    Also writes marginal costs, (K,).
    """
    K, T = rate.shape
    cost, swap, gains, reward = np.empty(T), np.empty(T), gain.shape[0] > 0, 0.0
    used[:], drift[:], curvature[:, :] = 0.0, 0.0, 0.0
    for i in range(K):
        g, load = gpus[i], count[i] * gpus[i]
        for t in range(T):
            cost[t] = g * prices[t] - (gain[i, t] if gains else 0.0)
        rising, need = slope[i], base[i] + slope[i] * level
        if rising > 0.0 and need > 1.0:
            rising, need = 0.0, 1.0
        a, b, _ = _hull(rate[i], cost, need, T)
        a_rate = a_cost = a_price = 0.0
        if a >= 0:
            a_rate, a_cost, a_price = rate[i, a], cost[a], prices[a]
        rise, theta, climb, steepness[i] = 0.0, 0.0, 0.0, 0.0
        if a != b:
            rise = 1.0 / (rate[i, b] - a_rate)
            theta, climb = (need - a_rate) * rise, cost[b] - a_cost
            steepness[i] = max(climb * rise, 0.0)
            used[b] += load * theta
            drift[b] += load * rising * rise
            if gains:
                reward += count[i] * theta * gain[i, b]
        if a >= 0:
            used[a] += load * (1.0 - theta)
            drift[a] -= load * rising * rise
            if gains:
                reward += count[i] * (1.0 - theta) * gain[i, a]
        for t in range(-1, T):
            if t in (a, b) or (t >= 0 and rate[i, t] <= 0.0):
                continue
            t_rate, t_cost, t_price = 0.0, 0.0, 0.0
            if t >= 0:
                t_rate, t_cost, t_price = rate[i, t], cost[t], prices[t]
            phi = (t_rate - a_rate) * rise
            reach = g * (t_price + abs(1.0 - phi) * a_price + (abs(phi) * prices[b] if a != b else 0.0))
            if not (t_cost - a_cost - phi * climb < width * reach and reach > 0.0):
                continue
            room = 1.0
            if a != b:
                room = min(1.0, (1.0 - theta) / (1.0 - phi)) if 1.0 - phi > 1e-12 else 1.0
                room = min(room, theta / phi) if phi > 1e-12 else room
            swap[:] = 0.0
            if t >= 0:
                swap[t] = 1.0
            if a >= 0:
                swap[a] -= 1.0 - phi
            if a != b:
                swap[b] -= phi
            weight = load * g * room / (2.0 * width * reach)
            for u in range(T):
                if swap[u] != 0.0:
                    for v in range(T):
                        curvature[u, v] += weight * swap[u] * swap[v]
    return reward
