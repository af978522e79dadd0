"""The scheduler with a long past: a million jobs in the archive and 100 living ones, against an empty archive.

A journal is made with the scheduler's own code: each past job has a status, a description, a history and GPU time, a
submission with an idempotency key, and the usage of eight weeks of hours. Goals: a snapshot of at most 2 MB, 200 MB of
memory, a restart within 2 s, plans within 1.2 times those of an empty history, and the usage of a week within 3 s.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recovery import load_of_machine
from gavelpy.journal.archive_reader import USAGE_COLUMNS, Selection
from gavelpy.journal.archive_tables import Leaving, PastJob, UsageEntry
from gavelpy.journal.codec import encode_state
from gavelpy.journal.loss_detection import Numbers
from gavelpy.journal.store import EventStore, Submission, open_store
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationSolved,
    Event,
    JobCancelled,
    JobsArchived,
    JobSubmitted,
    NodeJoined,
    WakeupDue,
)
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.job import JobId, JobSpec, NodeId
from gavelpy.runtime.daemon.job_history import JobHistory
from gavelpy.runtime.daemon.queries.job_status import JobStatus, PublicState
from gavelpy.runtime.daemon.queries.past import UNKNOWN, details_of
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster

PAST, LIVING = int(os.environ.get("PAST_JOBS", "1000000")), 100
USERS, TEAMS, TYPES = 50, 8, ("v100", "p100", "k80")
HOUR_S, WEEKS = 3_600, 8
PART = 5_000
RUNS = 7
PLANS = 40


def run() -> None:
    """Measures everything."""
    with tempfile.TemporaryDirectory() as folder:
        for past in (0, PAST):
            directory = Path(folder) / str(past)
            (directory / "scheduler").mkdir(parents=True)
            began_s = time.process_time()
            size = made(f"sqlite:///{directory / 'scheduler' / 'journal.sqlite'}", past)
            file_mb = (directory / "scheduler" / "journal.sqlite").stat().st_size / 1e6
            print(f"{past:,} past jobs: snapshot {size / 1e6:.3f} MB, journal {file_mb:.0f} MB, made in "
                  f"{time.process_time() - began_s:.0f} s of CPU", flush=True)  # fmt: skip
            _measure(directory, past)
    _plans()


def made(url: str, past: int) -> int:
    """Makes a journal; returns the size of its snapshot."""
    core, history, now_s = SchedulerCore(), JobHistory(), WEEKS * 7 * 24.0 * HOUR_S
    with open_store(url) as store:
        store.begin_incarnation()
        _archive(store, past)
        if past:
            core.jobs.ids.restore(np.zeros(0, dtype=np.int64), past)
            history.ids.restore(np.zeros(0, dtype=np.int64), past)
        events: list[Event] = [NodeJoined(NodeId(f"n{k}"), kind, 8) for k, kind in enumerate(TYPES)]
        events += [JobSubmitted(_spec(past + k)) for k in range(LIVING)]
        for event in events:
            core.handle(event, now_s)
            history.apply(event, now_s, core)
        end = store.append([(now_s, event) for event in events], numbers=Numbers(past + LIVING, past + LIVING))
        data = encode_state({"core": snapshot(core), "facts": history.snapshot()})
        store.save_snapshot(end, data)
        store.truncate(end, 0.0)
    return len(data)


def _archive(store: EventStore, past: int) -> None:
    hours, span_s = range(0, WEEKS * 7 * 24 * HOUR_S, HOUR_S), WEEKS * 7 * 24.0 * HOUR_S
    for first in range(0, past, PART):
        jobs = [_past(job, span_s * job / past) for job in range(first, min(first + PART, past))]
        here = [start_s for start_s in hours if span_s * first / past <= start_s < span_s * (first + PART) / past]
        holders = product(here, range(USERS), TYPES)
        usage = [
            UsageEntry(start_s, HOUR_S, f"user{u}", f"team{u % TEAMS}", kind, 3600.0, 2.5, 60.0, 12, 3)
            for start_s, u, kind in holders
        ]
        at_s = jobs[-1].ended_s
        answers = [Submission(job.owner, f"key-{job.job}", "digest" * 10, job.job, 1, at_s) for job in jobs]
        event = JobsArchived(np.arange(first, first + len(jobs)), at_s)
        store.append([(at_s, event)], answers, Numbers(first + PART, first + PART), Leaving(jobs, usage))


def _spec(job: int) -> JobSpec:
    user = job % USERS
    rates = dict(zip(TYPES, (3.0 + job % 7, 2.0, 1.0), strict=True))
    return JobSpec(
        JobId(f"train-{job}#{job}"), 1e6, rates_steps_per_s=rates, owner=f"user{user}", entity=f"team{user % TEAMS}",
        job_type=f"resnet-{job % 12}", command="python train.py --lr 0.1", working_directory="/data/project",
        environment={"SEED": str(job)},
    )  # fmt: skip


def _past(job: int, ended_s: float) -> PastJob:
    spec = _spec(job)
    values = {name: UNKNOWN.get(str(kind), ()) for name, kind in JobStatus.__annotations__.items()}
    values |= {"job": job, "name": f"train-{job}", "owner": spec.owner, "state": PublicState.FINISHED, "gpus": 1}
    values |= {"steps_done": 1e6, "steps_total": 1e6, "ended_at_s": 1.7e9 + ended_s, "gpu_s": 3600.0 + job % 500}
    entries = [
        (ended_s - 4000.0 + k, kind, job, 1e6, "") for k, kind in enumerate(("submitted", "started", "finished"))
    ]
    usage = {TYPES[job % 3]: [3600.0 + job % 500, 2.5, 60.0, 1.0, 0.0]}
    details = details_of(JobStatus(**values), spec, entries, usage)
    return PastJob(job, spec.owner, f"train-{job}", spec.entity, 4, ended_s - 4000.0, ended_s, details)


def _measure(directory: Path, past: int) -> None:
    settings: dict[str, dict[str, Any]] = {"scheduler": {"journal_backups": 0}}
    starts_s, memory_mb = [], []
    with LocalCluster(directory, (), settings) as cluster:
        for _ in range(RUNS):
            starts_s.append(cluster.start_scheduler())
            status = Path(f"/proc/{cluster.processes[SCHEDULER].pid}/status").read_text(encoding="ascii")
            memory_mb.append(int(status.partition("VmRSS:")[2].split()[0]) / 1e3)
            cluster.kill(SCHEDULER)
    print(
        f"  in service after {_times(starts_s)}; {statistics.median(memory_mb):.0f} MB; {load_of_machine()}", flush=True
    )
    if not past:
        return
    with open_store(f"sqlite:///{directory / 'scheduler' / 'journal.sqlite'}") as store:
        reader, week_s = store.reader(), (WEEKS - 1) * 7 * 24.0 * HOUR_S
        for what, call in (
            ("usage of a week by user, team and type", lambda: reader.usage(week_s, USAGE_COLUMNS)),
            ("usage of eight weeks by team", lambda: reader.usage(0.0, ["entity"])),
            ("1,000 jobs of a week", lambda: reader.jobs(Selection(ended_since_s=week_s), 1_000)),
            ("1,000 jobs of a user", lambda: reader.jobs(Selection(owner="user7"), 1_000)),
            ("a job by name", lambda: reader.found([reader.newest("user7", "train-500007")])),
        ):
            print(f"  {what}: {_times(_cpu_s(call))} of CPU", flush=True)


def _plans() -> None:
    """Plans of cores with 100 living jobs, after a million jobs have left and after none."""
    ratios = []
    for _ in range(RUNS):
        took_s = []
        for past in (PAST, 0):
            core = SchedulerCore()
            if past:
                core.jobs.ids.restore(np.zeros(0, dtype=np.int64), past)
            for k, kind in enumerate(TYPES):
                core.handle(NodeJoined(NodeId(f"n{k}"), kind, 8), 0.0)
            for k in range(LIVING):
                core.handle(JobSubmitted(replace(_spec(past + k), id=JobId(f"j{k}"))), 0.0)
            took_s.append(_planned_s(core, past))
        ratios.append((took_s[0] / took_s[1], *took_s))
    ratio, many_s, none_s = sorted(ratios)[len(ratios) // 2]
    print(f"a plan of {LIVING} jobs: {many_s * 1e3:.2f} ms of CPU, {ratio:.2f} times that without a past "
          f"({none_s * 1e3:.2f} ms)")  # fmt: skip


def _planned_s(core: SchedulerCore, first: int) -> float:
    """CPU seconds of a submission, a cancellation, a wake-up and the plan after an answer."""
    jobs = np.arange(first, first + LIVING)
    kinds = np.arange(LIVING) % len(TYPES)
    took_s = []
    for k in range(PLANS):
        now_s, began_s = 400.0 * (k + 1), time.process_time()
        core.handle(JobSubmitted(replace(_spec(first), id=JobId(f"new{k}"))), now_s)
        core.handle(JobCancelled(first + LIVING + k), now_s)
        core.handle(WakeupDue(), now_s)
        core.handle(AllocationSolved(core.question.open_epoch, jobs, kinds, np.full(LIVING, 0.2)), now_s)
        took_s.append(time.process_time() - began_s)
    return statistics.median(took_s)


def _cpu_s(call: Callable[[], object]) -> list[float]:
    took_s = []
    for _ in range(RUNS):
        began_s = time.process_time()
        call()
        took_s.append(time.process_time() - began_s)
    return took_s


def _times(took_s: Sequence[float]) -> str:
    return f"{statistics.median(took_s):.2f} s (at most {max(took_s):.2f} s)"
