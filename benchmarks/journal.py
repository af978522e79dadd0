"""Durable appends and loads of the event store; the peer writes the same bytes to a file and syncs it."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gavelpy.journal.codec import encode
from gavelpy.journal.store import EventStore, Submission, open_store
from gavelpy.mechanism.events import (
    AllocationSolved,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    Outcome,
    ProgressReported,
)
from gavelpy.model.job import JobId, JobSpec
from tests.journal.postgres_server import binaries, running

BATCHES = (1, 10, 100, 1000)
BUDGET_S = 3.0
JOBS = 10_000
LOADS = 5


def run() -> None:
    """Prints a line for each database and batch size, and one for each load."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'database':12} {'batch':>6} {'events/s':>10} {'median':>10} {'p99':>10} {'peer':>10} {'ratio':>6}")
        for name, url in _databases(folder):
            with open_store(url) as store:
                store.begin_incarnation()
                for batch in BATCHES:
                    _appends(name, store, batch, Path(folder))
                _load(name, store)


def _databases(folder: str) -> Iterator[tuple[str, str]]:
    yield "SQLite", f"sqlite:///{folder}/journal.sqlite"
    named, programs = os.environ.get("GAVELPY_POSTGRES_URL"), binaries()
    if named:
        yield "PostgreSQL", named
    elif programs:
        with running(programs) as url:
            yield "PostgreSQL", url
    else:
        print("PostgreSQL   not measured: no server here, and GAVELPY_POSTGRES_URL names none")


def _appends(name: str, store: EventStore, batch: int, folder: Path) -> None:
    records = [(float(k), _submitted(k)) for k in range(batch)]
    times: list[float] = []
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < BUDGET_S:
        key = Submission("bench", f"{batch}-{len(times)}", "digest", 0, batch, 0.0)
        with _timed(times):
            store.append(records, [key])
    peer_s = _synced(b"".join(encode(event, now_s) for now_s, event in records), folder)
    median_s = statistics.median(times)
    print(
        f"{name:12} {batch:>6,} {batch * len(times) / sum(times):>10,.0f} {median_s * 1e3:>7.2f} ms "
        f"{np.quantile(times, 0.99) * 1e3:>7.2f} ms {peer_s * 1e3:>7.2f} ms {median_s / peer_s:>5.1f}x"
    )


def _synced(data: bytes, folder: Path) -> float:
    """Median seconds to append the bytes to a file and sync it."""
    times: list[float] = []
    with (folder / "peer").open("ab", buffering=0) as file:
        while sum(times) < BUDGET_S / 3:
            with _timed(times):
                file.write(data)
                os.fdatasync(file.fileno())
    return statistics.median(times)


def _load(name: str, store: EventStore) -> None:
    """Loads after a snapshot: 10,000 submissions; then also four leases of each job, with an event per step."""
    before = store.load().sequence
    store.save_snapshot(before, b"\x80")
    store.forget_submissions(1.0)
    count = 0
    for what, events in ("submitted", map(_submitted, range(JOBS))), ("with four leases each", _lives()):
        records = [(float(JOBS), event) for event in events]
        for at in range(0, len(records), 1000):
            store.append(records[at : at + 1000])
        count += len(records)
        times: list[float] = []
        for _ in range(LOADS):
            with _timed(times):
                found = store.load()
        assert found.sequence == before + count, found.damage
        print(f"{name:12} load: {JOBS:,} jobs {what}, {count:,} events: {statistics.median(times):.2f} s")


def _submitted(k: int) -> Event:
    rates = {"v100": 10.0, "p100": 4.0, "k80": 1.0}
    return JobSubmitted(JobSpec(JobId(f"job-{k}"), 1e5, rates_steps_per_s=rates, entity="vision"))


def _lives() -> Iterator[Event]:
    """Four rounds: shares for all jobs, then each job starts, reports and stops in separate events."""
    jobs = np.arange(JOBS)
    for epoch in range(4):
        yield AllocationSolved(epoch, jobs, jobs % 3, np.full(JOBS, 0.25))
        for k in range(JOBS):
            job, lease, steps = jobs[k : k + 1], jobs[k : k + 1] + epoch * JOBS, np.array([100.0 * epoch])
            yield LeaseStarted(job, lease, np.array([0, 1]), job % 2000)
            yield ProgressReported(job, lease, steps)
            yield LeaseEnded(job, lease, steps, Outcome.STOPPED)


@contextmanager
def _timed(times: list[float]) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    times.append(time.perf_counter() - began_s)


if __name__ == "__main__":
    run()
