"""Names of racks, zones and regions. Imports no numpy, for agents."""

from __future__ import annotations

from gavelpy.errors import InvalidInput

PLACE_NAMES = ("rack", "zone", "region")
PLACE_LENGTH_MAX = 63


def check_place_name(name: str, value: str) -> str:
    """The name of a rack, zone or region; raises InvalidInput unless it is short, printable and without spaces."""
    if value and (len(value) > PLACE_LENGTH_MAX or not value.isprintable() or any(c.isspace() for c in value)):
        allowed = f"at most {PLACE_LENGTH_MAX} printable characters without spaces"
        raise InvalidInput(f"{name} must be {allowed}, got {value[:80]!r}")
    return value
