"""numba's compiler, with a place for compiled code on every machine.

numba stores compiled code next to the module, in the user's cache directory, or in `NUMBA_CACHE_DIR`. A service often
has none of these: its package belongs to root, and its account has no home directory. numba then refuses to decorate
any function that is to be stored. Such a process uses a directory of its own, and compiles once per process.
"""

from __future__ import annotations

import tempfile

from numba import config, njit


def _nothing() -> None:
    """Decorated to see whether there is a place."""


try:
    njit(cache=True)(_nothing)
except RuntimeError:
    _own = tempfile.TemporaryDirectory(prefix="gavel-compiled-")  # removed when the process ends
    config.CACHE_DIR = _own.name

__all__ = ["njit"]
