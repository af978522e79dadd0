"""`gavel shadow-prices`: what one more GPU, CPU core or GiB was worth to the policy's objective, over time."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import DASH, Output, TableData, duration, echo_json, notify, printable, show_table, timestamp
from gavelpy.cli.usage import SinceOption
from gavelpy.cli.usage import since as parse_since
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2


class Period(StrEnum):
    """The length of the periods over which means are taken."""

    HOUR = "hour"
    DAY = "day"
    ALL = "all"


@dataclass
class PriceSummary:
    """A shadow price in one period."""

    start_s: float
    end_s: float
    policy: str
    gpu_type: str
    resource: str
    known_s: float = 0.0
    integral: float = 0.0
    highest: float = 0.0

    @property
    def mean(self) -> float:
        """Over the time for which it is known."""
        return self.integral / self.known_s


def shadow_prices(
    since: SinceOption = None,
    until: Annotated[
        float | None, typer.Option(metavar="TIME", parser=parse_since, help="End of the time, like --since.")
    ] = None,
    every: Annotated[
        Period, typer.Option(help="One row for each hour or day, or one for all of the time.")
    ] = Period.ALL,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, without rounding.")] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """Print what one more GPU of each type was worth, by the shadow prices of the allocations that were in force.

    A shadow price is the gain of the policy's objective by one more GPU, CPU core or GiB on nodes of a GPU type, so
    prices of two policies cannot be compared. The mean is over the time for which an allocation stated the price:
    policies that are rules, such as fifo, state none. Whole hours count; before the last month, whole days.

    \b
    Examples:
      gavel shadow-prices --since 7d
      gavel shadow-prices --since 7d --every day
      gavel shadow-prices --since 2026-11-01 --until 2026-11-08 --every hour --csv
    """
    if as_csv and output is Output.JSON:
        raise InvalidInput("--csv and -o json are two formats: leave one out")
    if until is not None and until <= (since or 0.0):
        raise InvalidInput(f"--until must be later than --since, got {timestamp(until)}")
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.shadow_prices(since_s=since or 0.0, until_s=until or 0.0)
    summaries = summed(found, every)
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(summaries))
    elif output is Output.JSON:
        echo_json({"shadow_prices": list(map(_as_json, summaries))} | c.staleness(client))
    elif summaries:
        show_table(price_table(summaries, every))
    else:
        notify("no allocation stated a shadow price in this time")


def summed(rows: Iterable[client_pb2.ShadowPriceRow], every: Period) -> list[PriceSummary]:
    """Sums of hours by period, policy, GPU type and resource, in this order. Days are those of local time."""
    found: dict[tuple[float, str, str, str], PriceSummary] = {}
    for row in rows:
        start_s = _start_s(row.start_s, every)
        key = (start_s, row.policy, row.gpu_type, row.resource)
        one = found.setdefault(key, PriceSummary(row.start_s, row.start_s, row.policy, row.gpu_type, row.resource))
        one.start_s, one.end_s = min(one.start_s, row.start_s), max(one.end_s, row.start_s + row.length_s)
        one.known_s += row.known_s
        one.integral += row.mean * row.known_s
        one.highest = max(one.highest, row.highest)
    return [found[key] for key in sorted(found)]


def _start_s(start_s: float, every: Period) -> float:
    match every:
        case Period.ALL:
            return 0.0
        case Period.HOUR:
            return start_s
        case Period.DAY:
            return datetime.fromtimestamp(start_s).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def price_table(summaries: Sequence[PriceSummary], every: Period) -> TableData:
    """One row per summary; the period is a column if there are several."""
    from_to = () if every is Period.ALL else ("from",)
    titles = (*from_to, "GPU type", "one more", "policy", "mean", "highest", "known for")
    rows = [
        (
            *(timestamp(one.start_s) for _ in from_to),
            printable(one.gpu_type),
            printable(one.resource),
            printable(one.policy) or DASH,
            f"{one.mean:.4g}",
            f"{one.highest:.4g}",
            duration(one.known_s),
        )
        for one in summaries
    ]
    return TableData(titles, frozenset({"mean", "highest", "known for"}), rows)


def csv_rows(summaries: Iterable[PriceSummary]) -> Iterable[Sequence[str | float]]:
    """A header, and a row for each summary."""
    yield ["start_s", "end_s", "policy", "gpu_type", "resource", "known_s", "mean", "highest"]
    for one in summaries:
        yield [
            one.start_s, one.end_s, one.policy, one.gpu_type, one.resource, one.known_s, one.mean, one.highest,
        ]  # fmt: skip


def _as_json(one: PriceSummary) -> dict[str, str | float]:
    return {
        "start_s": one.start_s,
        "end_s": one.end_s,
        "policy": one.policy,
        "gpu_type": one.gpu_type,
        "resource": one.resource,
        "known_s": one.known_s,
        "mean": one.mean,
        "highest": one.highest,
    }
