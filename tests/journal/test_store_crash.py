"""Acknowledged events survive kill -9 and a takeover by another scheduler."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gavelpy.errors import FencedOut
from gavelpy.journal.store import EventStore
from tests.conftest import PROJECT
from tests.journal.stores import begun, bytes_of, cancelled, expected, loaded, path_of, submission

DEADLINE_S = 60.0
PAUSE_S = 0.002  # SQLite's lock is not fair: writers without a pause can keep others out for longer than they wait


def acknowledged(url: str, seed: int) -> int:
    """The last sequence that a process acknowledged before it was killed, after a random number of appends."""
    draw = random.Random(seed)
    command = [sys.executable, "-m", "tests.journal.appending", url, str(seed)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(DEADLINE_S, process.kill)
        watchdog.start()
        lines = [process.stdout.readline() for _ in range(draw.randint(1, 120))]
        process.kill()
        lines += process.stdout.readlines()
        watchdog.cancel()
    whole = [int(line) for line in lines if line.endswith("\n")]
    assert len(whole) >= len(lines) - 1, "the process ended before it was killed"
    return whole[-1]


def check_after_kill(url: str, seed: int) -> None:
    last = acknowledged(url, seed)

    found, events = loaded(url)

    first = found.state["sequence"] if found.state else 0
    assert found.sequence >= last, f"seed {seed}"
    assert events == expected(cancelled(first, found.sequence - first), first + 1), f"seed {seed}"
    assert found.damage == "" or "never acknowledged" in found.damage, f"seed {seed}"


def test_what_was_acknowledged_outlives_kills(url: str) -> None:
    check_after_kill(url, seed=0)
    check_after_kill(url, seed=1)
    check_after_kill(url, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10, 110, 20))
def test_what_was_acknowledged_outlives_many_kills(url: str, first: int) -> None:
    for seed in range(first, first + 20):
        check_after_kill(url, seed)


def append_until_fenced(store: EventStore, under_way: threading.Event, appended: list[int]) -> None:
    with suppress(FencedOut):
        while True:
            last = appended[-1] if appended else 0
            appended.append(store.append(cancelled(last), [submission(f"key-{last}")]))
            under_way.set()
            time.sleep(PAUSE_S)


def test_a_takeover_in_full_flight_loses_and_repeats_nothing(url: str) -> None:
    old, appended, under_way = begun(url), [], threading.Event()
    thread = threading.Thread(target=append_until_fenced, args=(old, under_way, appended))
    thread.start()
    assert under_way.wait(DEADLINE_S)
    Path(f"{path_of(url)}.lock").unlink(missing_ok=True)  # as if SQLite's lock did not work

    with begun(url) as new:
        found = new.load()
        events = bytes_of(list(found.events))
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        old.close()
        assert new.append(cancelled(appended[-1])) == appended[-1] + 1

    assert events == expected(cancelled(0, appended[-1]))
    assert found.damage == ""
