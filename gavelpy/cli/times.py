"""Reads points in time and time spans as people and Slurm write them."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

from gavelpy.errors import InvalidInput

BEGIN_ALLOWED = "a time such as 2026-05-01T08:00, 22:00 or +2h (s, m, h or d)"
_AHEAD = re.compile(r"(now)?\+(?P<count>[0-9]{1,9}(\.[0-9]{1,3})?)(?P<unit>s|sec|m|min|h|d)")
SPAN_ALLOWED = "a time span such as 90m, 2h, 1d or 1:30:00 (H:MM:SS, or D-HH:MM:SS)"
_SPAN = re.compile(r"(?P<count>[0-9]{1,9}(\.[0-9]{1,3})?)(?P<unit>s|sec|m|min|h|d)")
_SPAN_OF_SLURM = re.compile(r"((?P<d>[0-9]{1,5})-)?(?P<h>[0-9]{1,5}):(?P<m>[0-5]?[0-9]):(?P<s>[0-5]?[0-9])")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def begin(text: str, now_s: float) -> float:
    """The begin of a job: see `moment`."""
    return moment("begin", text, now_s)


def moment(option: str, text: str, now_s: float) -> float:
    """The Unix time of `2026-05-01T08:00` (local, or with an offset), the next `22:00`, or `+2h` from `now_s`."""
    found = _AHEAD.fullmatch(text.strip())
    if found is not None:
        return now_s + float(found["count"]) * _SECONDS[found["unit"][0]]
    try:
        if _CLOCK.fullmatch(text.strip()):
            hour, _, rest = text.strip().partition(":")
            return _next_at(time.fromisoformat(f"{hour:0>2}:{rest}"), now_s)
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(f"{option} must be {BEGIN_ALLOWED}, got {text[:60]!r}") from None


def span(option: str, text: str) -> float:
    """Seconds of `90m`, `2h` or, as in Slurm, `1:30:00` and `1-12:00:00`; more than 0."""
    found = _SPAN.fullmatch(text.strip())
    slurm = _SPAN_OF_SLURM.fullmatch(text.strip())
    seconds = float(found["count"]) * _SECONDS[found["unit"][0]] if found else 0.0
    if slurm:
        seconds = 86_400.0 * int(slurm["d"] or 0) + 3_600.0 * int(slurm["h"]) + 60.0 * int(slurm["m"]) + int(slurm["s"])
    if not seconds:
        raise InvalidInput(f"{option} must be {SPAN_ALLOWED}, more than 0, got {text[:60]!r}")
    return seconds


def _next_at(clock: time, now_s: float) -> float:
    """The Unix time at which local clocks next show this time."""
    now = datetime.fromtimestamp(now_s)
    today = datetime.combine(now.date(), clock)
    return (today if today >= now else datetime.combine(now.date() + timedelta(days=1), clock)).timestamp()
