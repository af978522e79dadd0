"""numba's compiler, for every machine.

numba stores compiled code next to the module, in the user's cache directory, or in `NUMBA_CACHE_DIR`. A service often
has none of these: its package belongs to root, and its account has no home directory. numba then refuses to decorate
any function that is to be stored. Such a process stores nothing, and compiles for itself.

Stored code contains the functions that it calls, of other modules too, but numba compares the file of the caller only.
So after a change of a called function it would run the old one. Here stored code is compared with all modules that
have compiled functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

MODULES = ("*kernels.py", "*_search.py")  # names of the modules that have compiled functions


def _nothing() -> None:
    """Decorated to see whether there is a place."""


try:
    numba.njit(cache=True)(_nothing)
except RuntimeError:
    STORES = False
else:
    STORES = True


def njit(**options: Any) -> Any:  # Any: numba has no types
    """As numba's, but with `cache` only where compiled code can be stored, and none of an older module is used."""
    stores = STORES and bool(options.get("cache", False))
    decorate = numba.njit(**{**options, "cache": stores})

    def decorated(function: Callable[..., Any]) -> Any:
        found = decorate(function)
        if stores:
            stored = found._cache._cache_file  # numba has no other way
            stored._source_stamp = (stored._source_stamp, modules_stamp())
        return found

    return decorated


@cache
def modules_stamp() -> tuple[tuple[str, float, int], ...]:
    """Name, time of change and size of all modules that have compiled functions."""
    package = Path(__file__).parents[1]
    files = sorted({file for pattern in MODULES for file in package.rglob(pattern)})
    states = [(file.relative_to(package).as_posix(), file.stat()) for file in files]
    return tuple((name, state.st_mtime, state.st_size) for name, state in states)
