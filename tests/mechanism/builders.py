"""Short builders of cores, nodes and jobs for tests, and functions that send events. Name only what matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gavelpy.mechanism.commands import Command, RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationFailed,
    AllocationSolved,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    Outcome,
    WakeupDue,
)
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.settings import STORED_RULES, MechanismSettings, rules_of
from gavelpy.model.job import JobId, JobSpec, NodeId

FAST: Mapping[str, float] = {"v100": 10.0}


def make_spec(name: str, *, steps: float = 1e6, rates: Mapping[str, float] = FAST, **options: Any) -> JobSpec:
    """A job that runs for about a day on one V100; `options` are fields of JobSpec."""
    return JobSpec(JobId(name), steps, rates_steps_per_s=rates, **options)


def make_pool(*servers: tuple[str, int]) -> GpuPool:
    """A pool of nodes n0, n1, ..., each given as (GPU type, GPUs)."""
    pool = GpuPool()
    for i, (gpu_type, count) in enumerate(servers):
        pool.join(NodeId(f"n{i}"), gpu_type, count)
    return pool


def make_jobs(
    rates: Sequence[Sequence[float]],  # (J, T)
    *,
    gpus: int | Sequence[int] = 1,
    target: Sequence[Sequence[float]] | float = 0.0,
    owed_s: Sequence[Sequence[float]] | float = 0.0,
    received_s: Sequence[Sequence[float]] | float = 0.0,
) -> JobTable:
    """A table of waiting jobs j0, j1, ... on types t0, t1, ..., with these shares and times owed and received."""
    types = tuple(f"t{k}" for k in range(len(rates[0])))
    jobs = JobTable(len(types))
    sizes = np.broadcast_to(np.asarray(gpus), (len(rates),)).tolist()
    for i, (row, size) in enumerate(zip(rates, sizes, strict=True)):
        speeds = dict(zip(types, row, strict=True))
        jobs.add(make_spec(f"j{i}", rates=speeds, gpus=size), types, 0.0)
    jobs.target[: len(rates)] = target
    jobs.owed_s[: len(rates)] = owed_s
    jobs.received_s[: len(rates)] = received_s
    return jobs


def make_mechanism(**values: Any) -> MechanismSettings:  # Any: fields of MechanismSettings, and rules by name
    rules = {name: values.pop(name) for name in STORED_RULES if name in values}
    return MechanismSettings(rules=rules_of(rules), **values)


def make_core(*specs: JobSpec, servers: Sequence[tuple[str, int]] = (("v100", 1),), **settings: Any) -> SchedulerCore:
    """A core at time 0 with nodes n0, n1, ... and these jobs, before its first wake-up."""
    core = SchedulerCore(make_mechanism(**settings))
    for i, (gpu_type, count) in enumerate(servers):
        tell(core, NodeJoined(NodeId(f"n{i}"), gpu_type, count))
    for spec in specs:
        tell(core, JobSubmitted(spec))
    return core


def tell(core: SchedulerCore, event: Event, now_s: float | None = None) -> list[Command]:
    """Sends an event, by default at the current time; checks all invariants and returns the commands."""
    commands = core.handle(event, core.now_s if now_s is None else now_s)
    check(core)
    return commands


def wake(core: SchedulerCore, now_s: float | None = None) -> list[Command]:
    """Sends WakeupDue."""
    return tell(core, WakeupDue(), now_s)


def answer(core: SchedulerCore, *shares: tuple[int, int, float], now_s: float | None = None) -> list[Command]:
    """Sends AllocationSolved for the pending request; each share is (job, GPU type, share)."""
    rows = np.array(shares, dtype=np.float64).reshape(-1, 3)
    jobs, types = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    return tell(core, AllocationSolved(core.question.open_epoch, jobs, types, rows[:, 2]), now_s)


def fail(core: SchedulerCore, now_s: float | None = None) -> list[Command]:
    """Sends AllocationFailed for the pending request."""
    return tell(core, AllocationFailed(core.question.open_epoch, "no answer"), now_s)


def start(core: SchedulerCore, *jobs: int, now_s: float | None = None) -> None:
    """Sends LeaseStarted for the current leases of these jobs."""
    gpus = [core.jobs.gpus_held(job) for job in jobs]
    offsets = np.cumsum([0, *map(len, gpus)])
    rows = np.array(jobs)
    tell(core, LeaseStarted(rows, core.jobs.lease[rows], offsets, np.concatenate(gpus)), now_s)


def end(
    core: SchedulerCore, job: int, lease: int, outcome: Outcome, *, steps: float = 0.0, now_s: float | None = None
) -> list[Command]:
    """Sends LeaseEnded for one lease."""
    return tell(core, LeaseEnded(np.array([job]), np.array([lease]), np.array([steps]), outcome), now_s)


def running_core(*specs: JobSpec, now_s: float = 0.0, **options: Any) -> SchedulerCore:
    """A core in which all these jobs have run since `now_s`: one GPU type, enough GPUs, a share of 1 each."""
    core = make_core(*specs, **options)
    wake(core, now_s)
    answer(core, *((job, 0, 1.0) for job in range(len(specs))))
    start(core, *range(len(specs)))
    return core


def questions(commands: Sequence[Command]) -> list[SolveAllocation]:
    """The requests for an allocation among the commands."""
    return [command for command in commands if isinstance(command, SolveAllocation)]


def plans(commands: Sequence[Command]) -> list[RoundPlan]:
    """The round plans among the commands."""
    return [command for command in commands if isinstance(command, RoundPlan)]
