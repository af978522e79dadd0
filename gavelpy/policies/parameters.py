"""Parses hyper-parameters from the command line: a flag may be True, 1 or "true"."""

from __future__ import annotations

from gavelpy.errors import InvalidInput

_FLAGS: dict[object, bool] = {False: False, "false": False, True: True, "true": True}  # 0 == False, 1.0 == True


def flag(name: str, value: object) -> bool:
    """A Boolean parameter; raises InvalidInput if `value` is neither true nor false.

    >>> flag("deadlines", 1.0), flag("deadlines", "false")
    (True, False)
    """
    if not isinstance(value, bool | int | float | str) or value not in _FLAGS:
        raise InvalidInput(f"{name} must be true (1) or false (0), got {value!r}")
    return _FLAGS[value]
