"""Formats for output: the scheduler's messages as JSON; durations, times, numbers and percentages as text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message

DASH = "–"
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def as_json(message: Message) -> dict[str, Any]:  # Any: JSON values
    """Each field by its name: enums as lower-case words (`running`), NaN and infinity as null."""
    return {name: convert(getattr(message, name)) for name, convert in _converters(message.DESCRIPTOR)}


def enum_name(kind: Any, value: int) -> str:  # Any: an enum of the protocol
    """`running` for JOB_STATE_RUNNING; the number if this client does not know the value."""
    if value not in kind.values():
        return str(value)
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    name: str = kind.Name(value)
    return name.removeprefix(prefix).lower()


@cache
def _converters(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """A converter to JSON for each field of a message type, built once per type."""
    return tuple((field.name, _converter(field)) for field in kind.fields)


def _converter(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda values: {str(key): _number(inner) for key, inner in sorted(values.items())}
    single = _single_converter(field)
    return (lambda values: [single(inner) for inner in values]) if field.is_repeated else single


def _single_converter(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return as_json
    if field.enum_type is None:
        return _number
    prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
    names = {entry.number: entry.name.removeprefix(prefix).lower() for entry in field.enum_type.values}
    return lambda value: names.get(value, str(value))


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`; a dash if negative or not finite."""
    if not math.isfinite(seconds) or seconds < 0:
        return DASH
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


def timestamp(unix_s: float) -> str:
    """Local date and time; a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s > 0 else DASH


def compact(value: float) -> str:
    """A number with four significant digits; a dash if not finite."""
    return f"{value:,.4g}" if math.isfinite(value) else DASH


def count(value: float) -> str:
    """A whole number with thousands separators; a dash if not finite."""
    return f"{value:,.0f}" if math.isfinite(value) else DASH


def percent(part: float, whole: float) -> str:
    """`42 %`."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else DASH
