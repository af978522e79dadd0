"""Messages of the scheduler as JSON, and figures as people read them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message

NOTHING = "–"
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def plain(message: Message) -> dict[str, Any]:  # what JSON can say
    """Every field under its name: enums as words (`running`), numbers that are none as null."""
    return {name: said(getattr(message, name)) for name, said in _sayings(message.DESCRIPTOR)}


def word(kind: Any, value: int) -> str:  # Any: an enum of the protocol
    """`running` for JOB_STATE_RUNNING; the number where this client is older than the word."""
    if value not in kind.values():
        return str(value)
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    name: str = kind.Name(value)
    return name.removeprefix(prefix).lower()


@cache
def _sayings(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """How to say each field of a kind of message, worked out once."""
    return tuple((field.name, _saying(field)) for field in kind.fields)


def _saying(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda values: {str(key): _number(inner) for key, inner in sorted(values.items())}
    single = _saying_of_one(field)
    return (lambda values: [single(inner) for inner in values]) if field.is_repeated else single


def _saying_of_one(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return plain
    if field.enum_type is None:
        return _number
    prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
    names = {entry.number: entry.name.removeprefix(prefix).lower() for entry in field.enum_type.values}
    return lambda value: names.get(value, str(value))


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`; a dash where nobody knows."""
    if not math.isfinite(seconds) or seconds < 0:
        return NOTHING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 2 * _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02d} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def moment(unix_s: float) -> str:
    """Local date and time; a dash for never."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s > 0 else NOTHING


def figure(value: float) -> str:
    """A number with the digits that matter; a dash where there is none."""
    return f"{value:,.4g}" if math.isfinite(value) else NOTHING


def count(value: float) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}" if math.isfinite(value) else NOTHING


def percent(part: float, whole: float) -> str:
    """`42 %`."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else NOTHING
