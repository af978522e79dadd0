"""Checks of values in requests: the message of an error has the field, the value and what is allowed."""

from __future__ import annotations

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX

TEXT_CHARACTERS_MAX = 256
_SHOWN = 80


def shown(value: object) -> str:
    """A value for error messages: short, and without control characters."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def require(ok: bool, field: str, allowed: str, value: object) -> None:
    """Raises InvalidInput unless `ok`."""
    if not ok:
        raise InvalidInput(f"{field} must be {allowed}, got {shown(value)}")


def number(field: str, value: float, *, low: float = 0.0, above: bool = False) -> float:
    """A finite number of at least `low`, or, with `above`, more than it."""
    if not (value > low if above else value >= low) or not value <= VALUE_MAX:  # NaN is neither
        require(False, field, f"a number {'>' if above else '>='} {low:g} and at most {VALUE_MAX:g}", value)
    return value


def text(field: str, value: str, *, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Printable text of bounded length; may be empty."""
    if len(value) > characters_max or not value.isprintable():
        require(False, field, f"at most {characters_max} characters, none of them a control character", value)
    return value
