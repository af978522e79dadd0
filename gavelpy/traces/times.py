"""Times of traces as seconds since 1970: ISO 8601 with or without a zone, and Unix time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gavelpy.errors import InvalidInput
from gavelpy.traces.fields import Place

_DATE_AND_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?.{0,6}")
_UNIX = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_EXAMPLE = "a time such as 2017-10-09T07:01:55, with Z, +02:00 or without a zone"


class Clock:
    """Converts times; those without a zone are in `time_zone`, an IANA name.

    >>> Clock("Europe/Berlin").seconds("Submit", "2024-07-01T12:00:00", Place(""))
    1719828000.0
    """

    def __init__(self, time_zone: str) -> None:
        self._zone: tzinfo = UTC
        if time_zone != "UTC":
            try:
                self._zone = ZoneInfo(time_zone)
            except (ZoneInfoNotFoundError, ValueError, OSError) as error:
                raise InvalidInput(f"time_zone must be a name such as Europe/Berlin, got {time_zone!r}") from error

    def seconds(self, field: str, text: str, place: Place) -> float:
        """The time in Unix seconds."""
        found = text.strip()
        if _UNIX.fullmatch(found):
            return float(found)
        if _DATE_AND_TIME.fullmatch(found):
            try:
                at = datetime.fromisoformat(found)
                return (at if at.tzinfo is not None else at.replace(tzinfo=self._zone)).timestamp()
            except (ValueError, OverflowError):  # such as the 31st of February
                pass
        raise place.error(field, _EXAMPLE, text)


_DURATION = re.compile(
    r"(?:(?P<d>[0-9]{1,6})-)?(?:(?P<h>[0-9]{1,6}):)?(?P<m>[0-9]{1,6}):(?P<s>[0-9]{1,2}(?:\.[0-9]{1,9})?)"
)


def duration_s(field: str, text: str, place: Place) -> float:
    """Seconds of `[days-][hours:]minutes:seconds`, as Slurm prints them.

    >>> duration_s("Elapsed", "1-02:00:05", Place(""))
    93605.0
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise place.error(field, "a duration such as 1-02:03:04 (days-hours:minutes:seconds)", text)
    days, hours, minutes, seconds = (float(match[name] or 0) for name in "dhms")
    return 86_400.0 * days + 3_600.0 * hours + 60.0 * minutes + seconds
