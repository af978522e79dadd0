"""The exact step: a linear program over the few jobs whose mix is in doubt, inside a box of prices and level.

A job outside keeps its two modes anywhere in the box, so its demand is affine in the level. A job inside may move some
of its time z to any other mode t, out of its low and high modes a and b: with φ = (r_t - r_a) / (r_b - r_a), a unit of
z takes 1 - φ from a and φ from b and leaves the job's rate as it is. (Where more rate than the need has a gain, another
z takes time from a to b.) Around the point (p, τ) the program is

    min  Σ excess z + Σ_t d_t (e⁺_t + e⁻_t)      over z >= 0, e >= 0, a step σ of the level
    s.t. low and high shares stay >= 0,   and   Σ swaps z + drift σ + e⁻ - e⁺ = W - used

where excess is z's reduced cost at p and d the half-width of the box: the duals of the last rows are what prices change
by, and cannot leave the box. When no e is used and σ is inside, everything outside was right: it is the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.highs import BoxedModel, Solved
from gavelpy.solve.prices.table import Sweep, Table


@dataclass(frozen=True, eq=False)
class Restricted:
    """The S jobs in doubt, and their time by mode; mode T is idle."""

    low: Ints  # (S,) mode
    high: Ints
    theta: Floats  # (S,) share of high
    theta_slope: Floats  # (S,) per relative step of level
    phi: Floats  # (S, T + 1)
    excess: Floats  # (S, T + 1) reduced cost of a unit of time
    column_row: Ints  # (Z,) row
    column_mode: Ints  # (Z,)
    spare: Floats  # (S,) rate beyond the need, of jobs with one mode; 0 for the others
    spare_slope: Floats  # (S,)

    @property
    def is_single(self) -> Bools:
        """Whether a job runs in one mode, (S,)."""
        return np.asarray(self.low == self.high)


def restricted(
    table: Table, s: Sweep, need: Floats, price: Floats, slope: Floats | None = None, level: float = 0.0
) -> Restricted:
    """The jobs of a small table around their mixes in the sweep `s` at this point."""
    S, T = table.rate.shape
    rate = np.zeros((S, T + 1))
    rate[:, :T] = table.rate
    cost = np.zeros((S, T + 1))
    cost[:, :T] = table.gpus[:, None] * price
    if len(table.gain):
        cost[:, :T] -= table.gain
    low, high = s.low.astype(np.int64) % (T + 1), s.high.astype(np.int64) % (T + 1)  # IDLE is mode T
    single = low == high
    rising = np.zeros(S) if slope is None else slope
    at = np.arange(S)
    low_rate, high_rate, low_cost, high_cost = rate[at, low], rate[at, high], cost[at, low], cost[at, high]
    rise = 1.0 / np.where(single, 1.0, high_rate - low_rate)
    theta = np.where(single, 0.0, (need - low_rate) * rise)
    phi = np.where(single[:, None], 0.0, (rate - low_rate[:, None]) * rise[:, None])
    excess = cost - low_cost[:, None] - phi * (high_cost - low_cost)[:, None]
    possible = rate > 0
    possible[:, T] = True
    possible[at, low] = possible[at, high] = False
    beyond = np.flatnonzero(~single) if len(table.gain) else at[:0]  # who may want more than the need
    possible[beyond, high[beyond]] = True
    phi[beyond, high[beyond]] = 0.0
    excess[beyond, high[beyond]] = (high_cost - low_cost)[beyond]
    column_row, column_mode = np.nonzero(possible)
    return Restricted(
        low=low,
        high=high,
        theta=theta,
        theta_slope=np.where(single, 0.0, rising * rise) * level,
        phi=phi,
        excess=np.maximum(excess, 0.0),
        column_row=column_row,
        column_mode=column_mode,
        spare=np.where(single, low_rate - need, 0.0),
        spare_slope=np.where(single, rising, 0.0) * level,
    )


def swaps(r: Restricted, gpu_types: int) -> Floats:
    """Change of the time in each mode for a unit of each column, (Z, T)."""
    i, t, Z = r.column_row, r.column_mode, np.arange(len(r.column_row))
    change = np.zeros((len(i), gpu_types + 1))
    change[Z, t] = 1.0
    phi = r.phi[i, t]
    change[Z, r.low[i]] -= 1.0 - phi
    change[Z, r.high[i]] -= phi
    return change[:, :gpu_types]


@dataclass(frozen=True, eq=False)
class Box:
    """How far prices (T,) may rise and fall from here, and the least and most relative step of the level, if any."""

    rise: Floats
    fall: Floats
    sigma: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Units:
    """What makes the program's numbers about 1."""

    money: float
    gpus: float


def model(table: Table, r: Restricted, over: Floats, drift: Floats, box: Box, units: Units) -> BoxedModel:
    """The program in HiGHS's arrays. Rows: low shares, high shares or spare rates, GPU types.

    Columns: z, then σ where there is a level, then e⁺ and e⁻.
    """
    S, T, Z = len(r.low), len(over), len(r.column_row)
    i, t = r.column_row, r.column_mode
    phi, load = r.phi[i, t], table.load[i] / units.gpus
    rate = np.concatenate([table.rate, np.zeros((S, 1))], axis=1)
    single = r.is_single
    second = np.where(single[i], rate[i, r.low[i]] - rate[i, t], np.where(t == r.high[i], -1.0, phi))
    change = swaps(r, T) * load[:, None]
    block = np.column_stack([1.0 - phi, second, change])
    row = np.column_stack([i, S + i, np.broadcast_to(2 * S + np.arange(T), (Z, T))])
    kept = block != 0.0
    start = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    index, value = [row[kept]], [block[kept]]
    cost, lower, upper = [table.count[i] * r.excess[i, t] / units.money], [np.zeros(Z)], [np.full(Z, np.inf)]
    starts = [start]
    if box.sigma is not None:
        column = np.concatenate([r.theta_slope, np.where(single, r.spare_slope, -r.theta_slope), drift / units.gpus])
        used = np.flatnonzero(column)
        index.append(used)
        value.append(column[used])
        starts.append(starts[-1][-1:] + len(used))
        cost.append(np.zeros(1))
        lower.append(np.array([box.sigma[0]]))
        upper.append(np.array([box.sigma[1]]))
    ends = starts[-1][-1] + 1 + np.arange(2 * T)
    index.append(np.tile(2 * S + np.arange(T), 2))
    value.append(np.repeat([-1.0, 1.0], T))
    starts.append(ends)
    cost.append(np.concatenate([box.rise, box.fall]) * (units.gpus / units.money))
    lower.append(np.zeros(2 * T))
    upper.append(np.full(2 * T, np.inf))
    limits = np.concatenate([np.where(single, 1.0, 1.0 - r.theta), np.where(single, r.spare, r.theta)])
    balance = -over / units.gpus
    return BoxedModel(
        start=np.concatenate(starts).astype(np.int32),
        row=np.concatenate(index).astype(np.int32),
        value=np.concatenate(value),
        row_lower=np.concatenate([np.full(2 * S, -np.inf), balance]),
        row_upper=np.concatenate([limits, balance]),
        cost=np.concatenate(cost),
        lower=np.concatenate(lower),
        upper=np.concatenate(upper),
    )


def times(r: Restricted, answer: Solved, sigma: float, gpu_types: int) -> Floats:
    """Time of each job in doubt on each type, (S, T), after the program."""
    S = len(r.low)
    time = np.zeros((S, gpu_types + 1))
    at = np.arange(S)
    theta = r.theta + r.theta_slope * sigma
    time[at, r.low] += 1.0 - theta
    time[at, r.high] += theta
    change = np.zeros((S, gpu_types))
    np.add.at(change, r.column_row, swaps(r, gpu_types) * answer.column[: len(r.column_row), None])
    return np.asarray(np.maximum(time[:, :gpu_types] + change, 0.0))
