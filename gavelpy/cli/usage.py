"""`gavel usage`: GPU time, cost, waiting and preemptions of users, teams and GPU types; `--since` of other commands."""

from __future__ import annotations

import csv
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import (
    DASH,
    Output,
    TableData,
    duration,
    echo_json,
    notify,
    percent,
    printable,
    show_table,
    timestamp,
)
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

_UNIT_S = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
SINCE_ALLOWED = "a duration like 30m, 12h, 7d or 2w, or a local date like 2026-11-01 or 2026-11-01T08:00"
_COLUMNS = {"user": "owner", "entity": "entity", "team": "entity", "type": "gpu_type"}
_TITLES = {"user": "user", "entity": "entity", "team": "team", "type": "GPU type"}
_SUMS = ("gpu_s", "cost_usd", "waited_s", "leases", "preemptions")
_NUMBERS = ("GPU-hours", "part", "USD", "mean wait", "leases", "preempted")
_HOUR_S = 3_600


def since(text: str) -> float:
    """Unix time of `30m`, `12h`, `7d` or `2w` ago, or of a local date, perhaps with a time."""
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if found:
        return max(time.time() - int(found[1]) * _UNIT_S[found[2]], 1.0)
    try:
        moment = datetime.fromisoformat(text)
        unix_s = moment.timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(f"must be {SINCE_ALLOWED}, got {text[:60]!r}") from None
    if not 0 < unix_s <= time.time():
        raise typer.BadParameter(f"must be in the past, got {text[:60]!r}")
    return unix_s


def _by(text: str) -> str:
    for name in text.split(","):
        if name not in _COLUMNS:
            raise typer.BadParameter(f"must be among {', '.join(_COLUMNS)}, got {name[:60]!r}")
    return text


SinceOption = Annotated[
    float | None,
    typer.Option(metavar="TIME", parser=since, help="A duration like 12h or 7d, or a local date like 2026-11-01."),
]


def usage(
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="user,team,type", parser=_by, help="Sum by these. Repeatable. Default: user and type."),
    ] = None,
    since: SinceOption = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only this user. For admins.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with seconds and no rounding.")] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """Print your GPU-hours, their cost, waiting and preemptions by GPU type; admins: those of all users.

    It counts the time under leases in whole hours, at the prices of the time. The mean wait is the time that jobs had
    waited for the leases that started; preempted are leases that ended before their jobs.

    \b
    Examples:
      gavel usage --since 7d
      gavel usage --by team,user,type --since 2026-11-01
      gavel usage --by team --since 31d --csv
    """
    if as_csv and output is Output.JSON:
        raise InvalidInput("--csv and -o json are two formats: leave one out")
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.usage(since_s=since or 0.0, owner=owner)
    names = list(dict.fromkeys(name for each in by or ("user,type",) for name in each.split(",")))
    sums = _sums(found.rows, names)
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(names, sums))
        return
    if output is Output.JSON:
        echo_json(
            {"since_s": found.since_s, "until_s": found.until_s, "usage": list(_as_json(names, sums))}
            | c.staleness(client)
        )
        return
    show_table(usage_table(names, sums))
    notify(f"from {timestamp(found.since_s)} to {timestamp(found.until_s)}")


def usage_table(names: Sequence[str], sums: Mapping[tuple[str, ...], Sequence[float]]) -> TableData:
    """One row per group, the one with most GPU time first, and the total."""
    total = [math.fsum(column) for column in zip(*sums.values(), strict=True)] or [0.0] * len(_SUMS)
    rows = [
        (*(printable(value) or DASH for value in key), *_numbers(values, total))
        for key, values in sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    ]
    if len(rows) > 1:
        rows.append((*("all" if k == 0 else "" for k in range(len(names))), *_numbers(total, total)))
    return TableData((*(_TITLES[name] for name in names), *_NUMBERS), frozenset(_NUMBERS), rows)


def _numbers(values: Sequence[float], total: Sequence[float]) -> tuple[str, ...]:
    gpu_s, cost_usd, waited_s, leases, preemptions = values
    cost = f"{cost_usd:,.2f}" if total[1] else DASH
    wait = duration(waited_s / leases) if leases else DASH
    part = percent(gpu_s, total[0]) or DASH
    return f"{gpu_s / _HOUR_S:,.2f}", part, cost, wait, f"{leases:,.0f}", f"{preemptions:,.0f}"


def _sums(rows: Iterable[client_pb2.UsageRow], names: Sequence[str]) -> dict[tuple[str, ...], list[float]]:
    sums: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * len(_SUMS))
    for row in rows:
        total = sums[tuple(str(getattr(row, _COLUMNS[name])) for name in names)]
        total[:] = [value + float(getattr(row, name)) for value, name in zip(total, _SUMS, strict=True)]
    return dict(sums)


def csv_rows(names: Sequence[str], sums: Mapping[tuple[str, ...], Sequence[float]]) -> Iterable[Sequence[str | float]]:
    """A header, and a row for each holder: seconds and USD as they are, counts as whole numbers."""
    yield [*names, *_SUMS]
    for key, values in sorted(sums.items()):
        yield [*key, *values[:3], *map(round, values[3:])]


def _as_json(
    names: Sequence[str], sums: Mapping[tuple[str, ...], Sequence[float]]
) -> Iterable[dict[str, Any]]:  # Any: JSON values
    for key, (gpu_s, cost_usd, waited_s, leases, preemptions) in sorted(sums.items()):
        holder = {_COLUMNS[name]: value for name, value in zip(names, key, strict=True)}
        yield {
            **holder,
            "gpu_h": gpu_s / _HOUR_S,
            "cost_usd": cost_usd,
            "waited_s": waited_s,
            "leases": round(leases),
            "preemptions": round(preemptions),
        }
