"""numba's compiler, for every machine.

numba stores compiled code next to the module, in the user's cache directory, or in `NUMBA_CACHE_DIR`. A service often
has none of these: its package belongs to root, and its account has no home directory. numba then refuses to decorate
any function that is to be stored. Such a process stores nothing, and compiles for itself.

Stored code contains the functions that it calls, of other modules too, but numba compares the file of the caller only.
So after a change of a called function it would run the old one. Here stored code is compared with all modules that
have compiled functions.

Processes that start together, such as those of a sweep, would each compile the same functions. Here the first one
compiles a function, and the others wait for it and load what it stored. On Windows each compiles for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import numba
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.types.misc import unliteral

from gavelpy.solve.compiling import compilation_started

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

WAIT_S = 120.0  # longer than any kernel takes to compile
POLL_S = 0.02
MODULES = ("*kernels.py", "*_search.py")  # names of the modules that have compiled functions


def _nothing() -> None:
    """Decorated to see whether there is a place."""


try:
    numba.njit(cache=True)(_nothing)
except RuntimeError:
    STORES = False
else:
    STORES = True


class _Compilations(event.Listener):  # type: ignore[misc]  # numba has no types
    """numba calls it where it compiles, and not where it loads what was stored."""

    def on_start(self, event: Any) -> None:  # Any: numba has no types
        if str(event.data["dispatcher"].py_func.__module__).startswith("gavelpy."):
            compilation_started(is_stored=STORES)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Compilations())


def njit(**options: Any) -> Any:  # Any: numba has no types
    """As numba's, but with `cache` only where compiled code can be stored, and none of an older module is used."""
    stores = STORES and bool(options.get("cache", False))
    decorate = numba.njit(**{**options, "cache": stores})

    def decorated(function: Callable[..., Any]) -> Any:
        found = decorate(function)
        found.get_call_template = _for_any_value(found.get_call_template)
        if stores:
            stored = found._cache._cache_file  # numba has no other way
            stored._source_stamp = (stored._source_stamp, modules_stamp())
            found.compile = _one_process_at_a_time(found.compile, Path(stored._index_path).with_suffix(".lock"))
        return found

    return decorated


def _for_any_value(call_template: Callable[..., Any]) -> Callable[..., Any]:
    """The same without the values of literal arguments: `f(x, True)` in compiled code is a call of `f(array, bool)`.

    numba would compile `f`, and what it calls with the value, once more for each literal: a second of work each.
    """

    def template(arguments: Any, keywords: Any) -> Any:
        named = {name: unliteral(kind) for name, kind in keywords.items()}
        return call_template(tuple(unliteral(kind) for kind in arguments), named)

    return template


def _one_process_at_a_time(compile_or_load: Callable[[Any], Any], lock: Path) -> Callable[[Any], Any]:
    """The same, while no other process does it for the same function: the next one loads what this one stored.

    A function is compiled inside the compilation of its callers. Calls have no cycle, so neither have the waits of
    processes; within a process numba's own lock comes first.
    """

    def compiled(signature: Any) -> Any:
        with global_compiler_lock, _held(lock):
            return compile_or_load(signature)

    return compiled


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """An exclusive lock on a file, which ends with the process; no lock where the file system has none.

    Nor where another process holds it for `WAIT_S`: that one may be stopped, and a second compilation does no harm.
    """
    try:
        file = lock.open("ab")
    except OSError:
        yield
        return
    with file:
        until_s = time.monotonic() + WAIT_S
        while fcntl is not None and not _locked(file) and time.monotonic() < until_s:
            time.sleep(POLL_S)
        yield


def _locked(file: IO[bytes]) -> bool:
    """Whether there is nothing to wait for: this process has the lock, or the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@cache
def modules_stamp() -> tuple[tuple[str, float, int], ...]:
    """Name, time of change and size of all modules that have compiled functions."""
    package = Path(__file__).parents[1]
    files = sorted({file for pattern in MODULES for file in package.rglob(pattern)})
    states = [(file.relative_to(package).as_posix(), file.stat()) for file in files]
    return tuple((name, state.st_mtime, state.st_size) for name, state in states)
