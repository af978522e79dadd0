"""Prices of GPUs and other resources in future slots, and the best schedule of one job at these prices.

OASiS (Bao et al., INFOCOM '18), equations (12) and (13), and algorithm 2. A place is the paper's workers with their
parameter servers in one slot, so that what both use are rows of its demand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Offer:
    """A job: what its K places use of N rows of capacity in a slot, the chunks that they do, and its value by end."""

    demand: Floats  # (K, N)
    chunks: Ints  # (K,) in one slot
    chunk_count: int  # of the job
    value: Floats  # (S,) if its last slot is s
    chunks_now: Ints  # (K,) in the first slot, of which a part may be over
    part_now: float = 1.0  # of the first slot that is left


@dataclass(frozen=True, eq=False)
class Schedule:
    """A place in each slot, -1 = none, (S,), and the value less the price."""

    place: Ints
    payoff: float


class SlotPrices:
    """Amounts used of N rows of capacity in S slots, and their prices  L (U / L)^(used / capacity).

    `highest` U (N,) and `lowest` L bound the value of a unit in a slot, so that a full row is too dear for all jobs.
    """

    def __init__(self, capacity: Floats, slots: int, highest: Floats, lowest: float) -> None:
        self.capacity = capacity
        self.used: Floats = np.zeros((len(capacity), slots))
        self._highest, self._lowest = np.maximum(highest, lowest), lowest

    def price(self) -> Floats:
        """The price of a unit of each row in each slot, (N, S)."""
        part = self.used / np.where(self.capacity > 0, self.capacity, 1.0)[:, None]
        found: Floats = self._lowest * (self._highest[:, None] / self._lowest) ** np.minimum(part, 1.0)
        return found

    def reserve(self, slot: int, demand: Floats) -> bool:
        """Uses this demand (N,) in a slot; whether it fits."""
        fits = bool((self.used[:, slot] + demand <= self.capacity + _ROUNDING).all())
        if fits:
            self.used[:, slot] += demand
        return fits

    def best(self, offer: Offer) -> Schedule:
        """The schedule with the highest payoff, by dynamic programming over slots and chunks.

        cost(s, d) = min over places k of  cost(s - 1, d - chunks_k) + price of k in slot s;  of equal ones the earliest
        end, and the fewest slots in use.
        """
        S, Q = self.used.shape[1], offer.chunk_count
        price = offer.demand @ self.price()  # (K, S)
        price[:, 0] *= offer.part_now
        left = self.capacity[:, None] - self.used
        for k, demand in enumerate(offer.demand):
            price[k, (demand[:, None] > left + _ROUNDING).any(axis=0)] = np.inf
        price[offer.chunks <= 0, 1:] = np.inf
        price[offer.chunks_now <= 0, 0] = np.inf
        cost = np.full(Q + 1, np.inf)
        cost[0] = 0.0
        later, now = (np.maximum(np.arange(Q + 1) - n[:, None], 0) for n in (offer.chunks, offer.chunks_now))
        taken, payoff = np.full((S, Q + 1), -1, dtype=np.int64), np.full(S, -np.inf)
        for s in range(S):
            before = later if s else now  # (K, Q + 1)
            with_place = cost[before] + price[:, s, None]
            best = with_place.argmin(axis=0)
            least = with_place[best, np.arange(Q + 1)]
            gains = least < cost * (1 - _ROUNDING)
            taken[s, gains] = best[gains]
            cost = np.where(gains, least, cost)
            payoff[s] = offer.value[s] - cost[Q]
        last = int(payoff.argmax())
        place, d = np.full(S, -1, dtype=np.int64), Q
        for s in range(last, -1, -1):
            if taken[s, d] >= 0:
                place[s] = taken[s, d]
                d = int((later if s else now)[place[s], d])
        return Schedule(place, float(payoff[last]))
