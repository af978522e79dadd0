"""Paths as users write them in options and configuration files, with `~` for a home directory."""

from __future__ import annotations

from pathlib import Path

from gavelpy.errors import InvalidInput


def user_path(field: str, path: str) -> Path:
    """`path` with the home directory in place of `~`. Raises InvalidInput, for example for a `~user` without account.

    >>> str(user_path("state_directory", "/var/lib/gavel"))
    '/var/lib/gavel'
    """
    try:
        expanded = Path(path).expanduser()
    except RuntimeError:
        text = f"{field} must be a path, or start with ~ or ~USER of an account of this machine, got {path[:80]!r}"
        raise InvalidInput(text) from None
    if "\0" in path:
        raise InvalidInput(f"{field} must be a path without NUL characters, got {path[:80]!r}")
    return expanded
