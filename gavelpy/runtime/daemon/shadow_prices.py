"""Shadow prices of GPUs and other resources over time: by hour, policy, GPU type and resource.

An allocation's prices hold until the next allocation. The history is computed from the journal's events and stored in
its snapshots, so it outlives restarts and the truncation of old events. Hours of full days that are more than a month
old become one row per day. Times are the scheduler's (`now_s`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gavelpy.errors import JournalCorrupt
from gavelpy.mechanism.events import AllocationSolved
from gavelpy.runtime.daemon.usage import DAY_S, HOURLY_S, periods

GPU = "gpu"  # the resource of a price of GPUs
_SEPARATOR = "\x1f"  # is in no name, as it cannot be printed


class Priced(NamedTuple):
    """Which price: the objective of a policy gained by one more of a resource on nodes of a GPU type."""

    policy: str  # empty = the configured one, which was never changed
    gpu_type: str
    resource: str  # GPU; else one that limited jobs, like cpus, memory_gib or a row of a team


class PriceRow(NamedTuple):
    """A price in one period."""

    start_s: int
    length_s: int
    priced: Priced
    known_s: float  # time in the period for which an allocation stated the price
    price_s: float  # its integral over this time, so that the mean is price_s / known_s
    highest: float

    @property
    def end_s(self) -> int:
        """End of the period."""
        return self.start_s + self.length_s


_Rows = dict[tuple[int, int, Priced], list[float]]  # known_s, price_s, highest by start, length and price


class ShadowPrices:
    """Prices of the allocation in force, and rows of past periods."""

    def __init__(self) -> None:
        self._rows: _Rows = {}
        self._now: dict[Priced, float] = {}
        self._since_s = 0.0  # up to then the prices in force are in the rows
        self._daily_s = 0.0  # rows that end before this have a day

    def solved(self, event: AllocationSolved, gpu_types: Iterable[str], policy: str, now_s: float) -> None:
        """An allocation is in force from now on."""
        self._settle(now_s)
        names = list(gpu_types)
        prices = {Priced(policy, name, GPU): price for name, price in zip(names, event.marginal_value, strict=False)}
        for k, resource in enumerate(event.resources):
            values = zip(names, event.resource_value[k], strict=False)
            prices |= {Priced(policy, name, resource): price for name, price in values if price > 0}
        self._now = {priced: float(price) for priced, price in prices.items() if math.isfinite(price)}
        if now_s >= self._daily_s + HOURLY_S + DAY_S:
            self._merge(now_s)

    def rows(self, since_s: float, until_s: float, now_s: float) -> list[PriceRow]:
        """The rows of periods that overlap the time from `since_s` to `until_s`, in order, up to now."""
        found = {key: list(values) for key, values in self._rows.items()}
        _add(found, self._now, self._since_s, now_s, self._daily_s)
        rows = [PriceRow(*key, *values) for key, values in sorted(found.items())]
        return [row for row in rows if row.end_s > since_s and row.start_s < until_s]

    def _settle(self, now_s: float) -> None:
        _add(self._rows, self._now, self._since_s, now_s, self._daily_s)
        self._since_s = now_s

    def _merge(self, now_s: float) -> None:
        """Replaces the rows of hours that are more than a month ago by rows of days."""
        self._daily_s = math.floor((now_s - HOURLY_S) / DAY_S) * DAY_S
        merged: _Rows = {}
        for (start_s, length_s, priced), values in self._rows.items():
            is_old = start_s < self._daily_s
            key = (start_s // DAY_S * DAY_S, DAY_S, priced) if is_old else (start_s, length_s, priced)
            _plus(merged, key, *values)
        self._rows = merged

    # Snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:  # Any: plain values
        """Plain values and copies."""
        return {
            "rows": {
                _SEPARATOR.join((str(start_s), str(length_s), *priced)): list(values)
                for (start_s, length_s, priced), values in self._rows.items()
            },
            "now": {_SEPARATOR.join(priced): price for priced, price in self._now.items()},
            "since_s": self._since_s,
            "daily_s": self._daily_s,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any] | None) -> ShadowPrices:
        """The history of a snapshot; an older one has none. Raises JournalCorrupt."""
        history = cls()
        if state is None:
            return history
        try:
            for text, values in state["rows"].items():
                start_s, length_s, *names = text.split(_SEPARATOR)
                known_s, price_s, highest = map(float, values)
                history._rows[int(start_s), int(length_s), Priced(*names)] = [known_s, price_s, highest]
            history._now = {Priced(*text.split(_SEPARATOR)): float(price) for text, price in state["now"].items()}
            history._since_s, history._daily_s = float(state["since_s"]), float(state["daily_s"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise JournalCorrupt(f"prices in the snapshot are corrupt: {error!r}") from None
        return history


def _add(rows: _Rows, prices: Mapping[Priced, float], from_s: float, to_s: float, daily_s: float) -> None:
    """Adds prices that held from one time to another."""
    if prices:
        for start_s, length_s, seconds in periods(from_s, to_s, daily_s):
            for priced, price in prices.items():
                _plus(rows, (start_s, length_s, priced), seconds, price * seconds, price)


def _plus(rows: _Rows, key: tuple[int, int, Priced], known_s: float, price_s: float, highest: float) -> None:
    values = rows.setdefault(key, [0.0, 0.0, -math.inf])
    values[0] += known_s
    values[1] += price_s
    values[2] = max(values[2], highest)
