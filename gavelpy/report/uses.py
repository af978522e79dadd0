"""Where the GPU time of each run went: bars stacked by use, for the HTML report.

The length of a bar is the capacity of its run relative to the largest one, so runs compare in GPU-hours. The cost of a
run is that of its leased GPU time; a segment of leased time shows its part of it at the run's mean price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gavelpy.report.comparison import Result

CAPACITY = "capacity"
FREE = ("idle", "closed", "down")  # uses that are not under lease and cost nothing
COLOURS = {
    "useful": "#2f9e6e",
    "start": "#e0a526",
    "restore": "#c98a1b",
    "migration": "#a86a14",
    "checkpoint": "#7f6bb3",
    "lost_work": "#c8453b",
    "slowdown": "#d98076",
    "trials": "#5b9bd5",
    "idle": "#c3c8ce",
    "closed": "#8d959e",
    "down": "#555d66",
}
_OTHER = "#2f7fc1"


@dataclass(frozen=True)
class Segment:
    """One use of the GPU time of a run."""

    use: str
    colour: str
    length: float  # of the largest capacity, 0..1
    text: str  # use, GPU-hours, part of the capacity, and dollars if it is leased and has a price


@dataclass(frozen=True)
class UsesOfRun:
    """The segments of a run, in the order of `COLOURS`."""

    label: str
    text: str  # capacity and cost
    segments: tuple[Segment, ...]


def by_use(results: Sequence[Result]) -> list[UsesOfRun]:
    """The bars of all runs that have GPU-hours by use; uses without time are left out."""
    known = [result for result in results if result.metrics.gpu_hours.get(CAPACITY, 0.0) > 0]
    longest = max((result.metrics.gpu_hours[CAPACITY] for result in known), default=1.0)
    return [_of(result, longest) for result in known]


def legend(bars: Sequence[UsesOfRun]) -> list[Segment]:
    """One segment of each use that any of the bars has, in their order."""
    found = {segment.use: segment for bar in bars for segment in bar.segments}
    order = {use: k for k, use in enumerate(COLOURS)}
    return sorted(found.values(), key=lambda segment: order.get(segment.use, len(order)))


def _of(result: Result, longest: float) -> UsesOfRun:
    hours, spent_usd = result.metrics.gpu_hours, result.metrics.cost_usd
    capacity = hours[CAPACITY]
    leased = capacity - sum(hours.get(use, 0.0) for use in FREE)
    price_usd = spent_usd / leased if leased > 0 and spent_usd > 0 else 0.0
    uses = [use for use in (*COLOURS, *(use for use in hours if use not in COLOURS)) if use != CAPACITY]
    segments = []
    for use in uses:
        if round(amount := hours.get(use, 0.0), 6) > 0:
            text = f"{use.replace('_', ' ')}: {amount:,.1f} GPU-hours, {100 * amount / capacity:.1f} %"
            if use not in FREE and price_usd:
                text += f", ${amount * price_usd:,.2f}"
            segments.append(Segment(use, COLOURS.get(use, _OTHER), amount / longest, text))
    cost = f", ${spent_usd:,.{_digits(spent_usd, 2)}f}" if price_usd else ""
    return UsesOfRun(result.label, f"{capacity:,.{_digits(capacity, 1)}f} h{cost}", tuple(segments))


def _digits(value: float, most: int) -> int:
    """Digits after the point: none of large numbers, so that texts fit."""
    return most if value < 1000 else 0
