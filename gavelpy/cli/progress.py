"""Progress of simulations on stderr, and Ctrl-C, which stops them with the results that there are.

On a terminal each run has a bar; elsewhere a line is printed after the first second, and then at intervals.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gavelpy.cli.output import DASH, duration, notify

if TYPE_CHECKING:
    from gavelpy.simulator.simulate import Progress

FIRST_LINE_S = 1.0
LINE_EVERY_S = 10.0
_DRAWN_EVERY_S = 0.1


@contextmanager
def shown_progress(*, quiet: bool = False) -> Iterator[Progress | None]:
    """Shows jobs done, virtual time and time left of each run; with `quiet` only on a terminal."""
    if sys.stderr.isatty():
        with _bars() as bars:
            yield bars
    elif quiet:
        yield None
    else:
        with _lines(FIRST_LINE_S, LINE_EVERY_S) as lines:
            yield lines


@contextmanager
def _bars() -> Iterator[Progress]:
    """One bar per run, which its own thread draws."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs, {task.fields[virtual]} simulated,"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}  # rich's ids of bars
        drawn_s: dict[str, float] = {}

        def advance(label: str, done: int, total: int, now_s: float) -> None:
            clock_s = time.monotonic()
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total, virtual=DASH)
                drawn_s[label] = clock_s
            elif clock_s - drawn_s[label] >= _DRAWN_EVERY_S or done == total:  # called for each event
                bars.update(tasks[label], completed=done, virtual=duration(now_s))
                drawn_s[label] = clock_s

        yield advance


@contextmanager
def _lines(first_s: float, every_s: float) -> Iterator[Progress]:
    """A line after `first_s` and then every `every_s`, from a thread: one event can take longer than that."""
    latest: list[tuple[str, int, int, float]] = []
    began_s: dict[str, float] = {}
    is_over = threading.Event()

    def advance(label: str, done: int, total: int, now_s: float) -> None:
        if label not in began_s:
            began_s[label] = time.monotonic()
        latest[:] = [(label, done, total, now_s)]

    def show() -> None:
        wait_s = first_s
        while not is_over.wait(wait_s):
            wait_s = every_s
            for label, done, total, now_s in latest:
                elapsed_s = time.monotonic() - began_s[label]
                left = duration(elapsed_s * (total - done) / done) if done else "unknown"
                notify(f"{label}: {done:,} of {total:,} jobs done, {duration(now_s)} simulated, time left {left}")

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        is_over.set()
        thread.join()


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, as a function; a second Ctrl-C aborts as usual."""
    is_asked = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield is_asked.is_set
        return

    def ask(number: int, frame: object) -> None:  # noqa: ARG001 the signature of handlers
        signal.signal(signal.SIGINT, before)
        is_asked.set()
        notify("stopping with the results so far; Ctrl-C again aborts")

    signal.signal(signal.SIGINT, ask)
    try:
        yield is_asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
