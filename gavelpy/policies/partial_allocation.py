"""An auction by partial allocation: whole bundles by the highest product of values, with hidden payments.

Each bidder states a value for each bundle (a number of GPUs of one type) and gets at most one bundle. The winning
bundles maximise the product of the values; a bidder without a bundle counts after all others: first the most bidders
are served, then the product is maximised. The bidder keeps its bundle for the fraction c_i of the time:

    c_i = Π_{j≠i} V_j(G*) / Π_{j≠i} V_j(G*_{-i})        G* the best bundles, G*_{-i} the best ones without bidder i

Its gain c_i V_i(G*) is the product of all true values over a term that does not depend on its bid, and the winner
maximises the former; so no bid gains more than the true one, whatever the bundles. It is 0 where the bidder takes the
only bundle of another one. Themis (NSDI '20), section 5.1, after Cole, Gkatzelis and Goel (EC '13).

With few free GPUs the maximum is exact, by dynamic programming over the GPUs that are left. With more states than
`STATES_MAX` it is one integer program for all bidders and one without each (`solve.whole_choices`, which ends after a
number of nodes); c_i then uses bounds, and is at most too small by their gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.whole_choices import best_whole_choices

STATES_MAX = 200_000
_UNSERVED = 1e6  # more than any sum of logarithms; doubles next to it are exact to 1e-10


@dataclass(frozen=True, eq=False)
class Bids:
    """K bids of n bidders, ordered by bidder; each has at least one."""

    bidder: Ints  # (K,) 0..n-1
    gpu_type: Ints  # (K,)
    units: Ints  # (K,) GPUs of the bundle, >= 1, in the unit of `offered`
    value: Floats  # (K,) > 0
    offered: Ints  # (T,)

    @property
    def bidders(self) -> int:
        """n."""
        return int(self.bidder.max(initial=-1)) + 1


@dataclass(frozen=True, eq=False)
class Sale:
    """What the auction gives to each bidder."""

    bid: Ints  # (n,) place of the winning bid, -1 = none
    kept: Floats  # (n,) c_i in 0..1: the fraction of the bundle that the bidder keeps


def partial_allocation(bids: Bids) -> Sale:
    """The winning bids and what each bidder keeps of its own.

    >>> bids = Bids(*(np.array(x) for x in ([0, 0, 1, 1], [0] * 4, [1, 2, 1, 2], [1.0, 1.5, 1.0, 2.0], [2])))
    >>> sale = partial_allocation(bids)
    >>> sale.bid.tolist(), sale.kept.round(4).tolist()
    ([0, 2], [0.5, 0.6667])
    """
    most = np.zeros(len(bids.offered), dtype=np.int64)
    for bidder in range(bids.bidders):
        own = bids.bidder == bidder
        of_type = np.zeros_like(most)
        np.maximum.at(of_type, bids.gpu_type[own], bids.units[own])
        most += of_type
    room = np.minimum(bids.offered, most)
    logs = np.log(bids.value)
    if np.prod(room + 1.0) <= STATES_MAX:
        bid, without = _by_states(bids, logs, room)
    else:
        bid, without = _by_programs(bids, logs)
    worth = np.where(bid >= 0, logs[bid], -_UNSERVED) if len(logs) else np.zeros(0)
    others = worth.sum() - worth
    return Sale(bid, np.where(bid >= 0, np.exp(np.minimum(others - without, 0.0)), 0.0))


def _by_states(bids: Bids, logs: Floats, room: Ints) -> tuple[Ints, Floats]:
    """The winning bids (n,), and the best sum of logarithms without each bidder (n,)."""
    n = bids.bidders
    choices = [
        [(k, int(bids.gpu_type[k]), int(bids.units[k])) for k in np.flatnonzero(bids.bidder == b).tolist()]
        for b in range(n)
    ]
    none = np.zeros(tuple((room + 1).tolist()))
    first, last = [none], [none]
    for b in range(n):
        first.append(_with_bidder(first[-1], choices[b], logs))
    for b in reversed(range(n)):
        last.append(_with_bidder(last[-1], choices[b], logs))
    flip = (slice(None, None, -1),) * len(room)
    without = np.array([(first[b] + last[n - 1 - b][flip]).max() for b in range(n)])
    bid, left = np.full(n, -1), room.copy()
    for b in reversed(range(n)):
        best, here = first[b + 1][tuple(left)], left.copy()
        for k, t, units in choices[b]:
            if units <= here[t]:
                left = here.copy()
                left[t] -= units
                if first[b][tuple(left)] + logs[k] == best:
                    bid[b] = k
                    break
        else:
            left = here
    return bid, without


def _with_bidder(before: Floats, choices: list[tuple[int, int, int]], logs: Floats) -> Floats:
    """Best sums by GPUs that may be used, with one more bidder."""
    after = before - _UNSERVED
    for k, t, units in choices:
        if units < before.shape[t]:
            ahead, behind = [slice(None)] * before.ndim, [slice(None)] * before.ndim
            ahead[t], behind[t] = slice(units, None), slice(None, -units)
            np.maximum(after[tuple(ahead)], before[tuple(behind)] + logs[k], out=after[tuple(ahead)])
    return after


def _by_programs(bids: Bids, logs: Floats) -> tuple[Ints, Floats]:
    """As `_by_states`, by integer programs; without a bidder it is the proved bound."""
    n = bids.bidders
    served = 1.0 + n * (logs.max() - logs.min()) - logs.min()  # of one more bidder
    demand = np.zeros((len(logs), len(bids.offered)))
    demand[np.arange(len(logs)), bids.gpu_type] = bids.units
    found = best_whole_choices(bids.bidder, logs + served, demand, bids.offered.astype(np.float64))
    bid = np.full(n, -1)
    bid[bids.bidder[found.chosen]] = found.chosen
    without = np.zeros(n)
    for b in range(n):
        rest = np.flatnonzero(bids.bidder != b)
        best = best_whole_choices(bids.bidder[rest], logs[rest] + served, demand[rest], bids.offered.astype(np.float64))
        count = len(best.chosen)
        without[b] = best.bound - count * served - (n - 1 - count) * _UNSERVED
    return bid, without
