"""numba's compiler, for every machine.

numba stores compiled code next to the module, in the user's cache directory, or in `NUMBA_CACHE_DIR`. A service often
has none of these: its package belongs to root, and its account has no home directory. numba then refuses to decorate
any function that is to be stored. Such a process stores nothing, and compiles for itself.
"""

from __future__ import annotations

from typing import Any

import numba


def _nothing() -> None:
    """Decorated to see whether there is a place."""


try:
    numba.njit(cache=True)(_nothing)
except RuntimeError:
    STORES = False
else:
    STORES = True


def njit(**options: Any) -> Any:  # Any: numba has no types
    """As numba's, but with `cache` only where compiled code can be stored."""
    return numba.njit(**{**options, "cache": STORES and options.get("cache", False)})
