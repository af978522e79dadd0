"""`gavel usage`: prints the GPU time of users, teams and GPU types; also the option `--since` of other commands."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import DASH, Output, TableData, echo_json, notify, percent, printable, show_table, timestamp

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

_UNIT_S = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
SINCE_ALLOWED = "a duration like 30m, 12h, 7d or 2w, or a local date like 2026-11-01 or 2026-11-01T08:00"
_COLUMNS = {"user": "owner", "entity": "entity", "type": "gpu_type"}
_TITLES = {"user": "user", "entity": "entity", "type": "GPU type"}
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
    if text not in _COLUMNS:
        raise typer.BadParameter(f"must be one of {', '.join(_COLUMNS)}, got {text[:60]!r}")
    return text


SinceOption = Annotated[
    float | None,
    typer.Option(metavar="TIME", parser=since, help="A duration like 12h or 7d, or a local date like 2026-11-01."),
]


def usage(
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="user|entity|type", parser=_by, help="Sum by these. Repeatable. Default: user and type."),
    ] = None,
    since: SinceOption = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only this user. For admins.")] = "",
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Print your GPU-hours by GPU type; admins: those of all users.

    It counts the time under leases in whole hours, and in whole days more than a month ago.

    \b
    Examples:
      gavel usage --since 7d
      gavel usage --by entity --since 2026-11-01
    """
    with c.connected(scheduler, token_file, timeout) as client:
        found = client.usage(since_s=since or 0.0, owner=owner)
    names = list(dict.fromkeys(by or ("user", "type")))
    sums = _sums(found.rows, names)
    if output is Output.JSON:
        echo_json({"since_s": found.since_s, "until_s": found.until_s, "usage": list(_as_json(names, sums))})
        return
    show_table(usage_table(names, sums))
    notify(f"from {timestamp(found.since_s)} to {timestamp(found.until_s)}")


def usage_table(names: Sequence[str], sums: dict[tuple[str, ...], float]) -> TableData:
    """One row per group, largest first, and the total."""
    total_s = math.fsum(sums.values())
    rows = [
        (*(printable(value) or DASH for value in key), f"{gpu_s / _HOUR_S:,.2f}", percent(gpu_s, total_s) or DASH)
        for key, gpu_s in sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    ]
    if len(rows) > 1:
        rows.append((*("all" if k == 0 else "" for k in range(len(names))), f"{total_s / _HOUR_S:,.2f}", "100 %"))
    return TableData((*(_TITLES[name] for name in names), "GPU-hours", "part"), frozenset(("GPU-hours", "part")), rows)


def _sums(rows: Iterable[client_pb2.UsageRow], names: Sequence[str]) -> dict[tuple[str, ...], float]:
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for row in rows:
        sums[tuple(str(getattr(row, _COLUMNS[name])) for name in names)] += row.gpu_s
    return dict(sums)


def _as_json(names: Sequence[str], sums: dict[tuple[str, ...], float]) -> Iterable[dict[str, Any]]:  # Any: JSON values
    for key, gpu_s in sorted(sums.items()):
        yield {**{_COLUMNS[name]: value for name, value in zip(names, key, strict=True)}, "gpu_h": gpu_s / _HOUR_S}
