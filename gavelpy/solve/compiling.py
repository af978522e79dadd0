"""Announces the first compilation of a kernel in this process, for programs that print so. By default nothing does.

Kernels are compiled once for an installation, which takes up to half a minute of CPU time without other output. Code
that was stored earlier is loaded, and not announced.
"""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[bool], None]] = []


def on_first_compilation(announce: Callable[[bool], None]) -> None:
    """Calls `announce` once, when a kernel is compiled; with whether the code is stored for other processes.

    It replaces an earlier one that still waits.
    """
    _waiting[:] = [announce]


def compilation_started(*, is_stored: bool) -> None:
    """Called when a kernel is compiled."""
    while _waiting:
        _waiting.pop()(is_stored)
