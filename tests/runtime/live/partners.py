"""Pairs of witness jobs on one GPU each, blows aimed at one of a pair, and a verdict on what its partner noticed.

Each node has a GPU type of its own and one pair of jobs that run on that type only, so that nothing but a blow ends a
lease: the partner of the job that was hit must still run under the same lease, and must have started as often as it was
hit itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from gavelpy.runtime.local_cluster import CALL_S, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.cluster import OVER, all_over, jobs_of, patiently
from tests.runtime.live.evidence import Line, crowded_gpus, double_jobs, lost_steps, saved_twice, stays
from tests.runtime.live.faults import witnesses
from tests.runtime.live.stage import Stage
from tests.runtime.live.storm import parent_of

RATE = 40.0  # steps/s
GPU_GIB, NEEDED_GIB = 16, 8.0
JOB_TYPE = "small"
THIRD_STEPS = 40.0
PAUSE_S = 0.5  # at most, after a blow
SETTLED_S = 120.0  # until a pair runs together again
END_S = 300.0


class Blow(StrEnum):
    """What is done to one job of a pair."""

    JOB = "job"  # kill -9 of its process
    SHIM = "shim"  # kill -9 of its shim, and of what the shim leaves
    CANCEL = "cancel"  # another job of this kind is submitted in its place
    REQUEUE = "requeue"  # an operator stops its lease
    PREEMPT = "preempt"  # a third job takes its place when the round ends
    AGENT = "agent"  # kill -9 of their agent, then restarted: none of the two is hit
    AGENT_AND_JOB = "agent and job"  # the job is killed while no agent runs


@dataclass
class Pair:
    """The jobs of a node, and how often each was hit."""

    node: LocalNode
    jobs: list[int]
    hits: Counter[int] = field(default_factory=Counter)

    @property
    def gpu_type(self) -> str:
        """Of the node; no other node has it."""
        return self.node.gpus.partition(":")[0]


def nodes(count: int) -> list[LocalNode]:
    """Nodes of one GPU, each of a type of its own."""
    return [LocalNode(f"n{k}", f"type{k}:1") for k in range(count)]


def settings(directory: Path, count: int) -> dict[str, dict[str, Any]]:  # Any: TOML values
    """Two jobs fit on a GPU and keep nine tenths of their rates there."""
    rows = ["job_type,gpus,gpu_type,rate_steps_per_s,pair_job_type,pair_rate_steps_per_s"]
    for k in range(count):
        rows += [f"{JOB_TYPE},1,type{k},{RATE},,", f"{JOB_TYPE},1,type{k},{0.9 * RATE},{JOB_TYPE},{0.9 * RATE}"]
    table = directory / "rates.csv"
    table.write_text("\n".join(rows) + "\n")
    return {
        "mechanism": {
            "round_s": 2.0,
            "solve_interval_s": 0.1,
            "packing": True,
            "failures_max": 10_000,
            "retry_s": 0.2,
            "retry_max_s": 0.5,
        },
        "nodes": {  # on a busy machine an agent takes seconds to restart: its leases last longer
            "heartbeat_interval_s": 0.1,
            "silent_after_s": 60.0,
            "lease_overlap_s": 60.0,
            "unsaved_overlap_s": 60.0,
            "grace_s": 10.0,
            "orphan_max_s": 0.0,  # and other agents do not declare it dead after 3 s
        },
        "throughputs": {"file": str(table), "estimate": False},
        **{f"gpu_types.type{k}": {"memory_gib": GPU_GIB} for k in range(count)},
    }


@dataclass
class Assailant:
    """Hits one job of a pair after another; `complaints` is what partners noticed."""

    stage: Stage
    pairs: list[Pair]
    steps: float
    rng: np.random.Generator
    done: Counter[Blow] = field(default_factory=Counter)
    cancelled: list[int] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    leases: dict[int, int] = field(default_factory=dict)  # of each job when its pair last ran together
    struck: set[int] = field(default_factory=set)  # since then

    def prepare(self) -> None:
        """Submits the jobs of all pairs."""
        for pair in self.pairs:
            pair.jobs += [self._submit(pair, f"{pair.gpu_type}-{k}", self.steps) for k in range(2)]

    def hit(self, blow: Blow) -> None:
        """Hits one job of the next pair that runs together."""
        pair = self.pairs[self.done.total() % len(self.pairs)]
        self._await_settled(pair)
        victim = pair.jobs[int(self.rng.integers(2))]
        deeds: Mapping[Blow, Callable[[Pair, int], None]] = {
            Blow.JOB: lambda pair, job: self._kill(pair, job),
            Blow.SHIM: lambda pair, job: self._kill(pair, job, with_shim=True),
            Blow.CANCEL: self._cancel,
            Blow.REQUEUE: self._requeue,
            Blow.PREEMPT: lambda pair, _: self._preempt(pair),
            Blow.AGENT: lambda pair, _: self._restart_agent(pair, None),
            Blow.AGENT_AND_JOB: self._restart_agent,
        }
        deeds[blow](pair, victim)
        self.done[blow] += 1
        time.sleep(float(self.rng.uniform(0.0, PAUSE_S)))

    def end(self) -> None:
        """Lets all jobs finish quickly."""
        for pair in self.pairs:
            self._await_settled(pair)
        self.stage.hurry()
        wait_until(lambda: all_over(self.stage.cluster), "every job is over", END_S)

    def _submit(self, pair: Pair, name: str, steps: float) -> int:
        rates = {pair.gpu_type: RATE}
        return self.stage.submit_witness(name, steps, rates, job_type=JOB_TYPE, gpu_memory_gib=NEEDED_GIB)

    def _await_settled(self, pair: Pair) -> None:
        """Waits until both run together again and have saved; notes each job that lost a lease without being hit."""
        known: dict[int, pb.Job] = {}

        def is_settled() -> bool:
            known.update(jobs_of(self.stage.cluster))
            return all(self._is_settled(known[job], pair) for job in pair.jobs)

        wait_until(is_settled, f"jobs {pair.jobs} of {pair.gpu_type} run together", SETTLED_S)
        for job in pair.jobs:
            expected = self.leases.get(job, known[job].lease)
            if job not in self.struck and known[job].lease != expected:
                self.complaints.append(f"job {job} was not hit, and lost lease {expected}: {known[job].detail}")
            self.leases[job] = known[job].lease
        self.struck -= set(pair.jobs)

    def _is_settled(self, job: pb.Job, pair: Pair) -> bool:
        is_new = job.job not in self.struck or job.lease != self.leases[job.job]
        is_beside = set(job.co_located_with) == set(pair.jobs) - {job.job}
        written = self.stage.witnessed / f"{job.job}-{job.lease}-0.evidence"
        has_begun = written.exists() and written.stat().st_size > 0
        return job.state == pb.JOB_STATE_RUNNING and job.steps_saved > 0 and is_beside and is_new and has_begun

    def _strike(self, pair: Pair, job: int) -> None:
        pair.hits[job] += 1
        self.struck.add(job)

    def _kill(self, pair: Pair, job: int, *, with_shim: bool = False) -> None:
        self._strike(pair, job)
        process = process_of(self.stage, job)
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent_of(process) if with_shim else process, signal.SIGKILL)

    def _requeue(self, pair: Pair, job: int) -> None:
        self._strike(pair, job)
        request = pb.ChangeJobsRequest(jobs=[str(job)], change=pb.JOB_CHANGE_REQUEUE)
        patiently(self.stage.cluster, lambda client: client.ChangeJobs(request, timeout=CALL_S))

    def _cancel(self, pair: Pair, job: int) -> None:
        request = pb.CancelJobsRequest(jobs=[str(job)])
        patiently(self.stage.cluster, lambda client: client.CancelJobs(request, timeout=CALL_S))
        self.cancelled.append(job)
        pair.jobs[pair.jobs.index(job)] = self._submit(pair, f"{pair.gpu_type}-in-place-of-{job}", self.steps)

    def _preempt(self, pair: Pair) -> None:
        """A new job takes the place of one of the two, which the scheduler chooses."""
        third = self._submit(pair, f"{pair.gpu_type}-third-{self.done.total()}", THIRD_STEPS)
        wait_until(lambda: self.stage.job(third).state in OVER, f"the third job {third} is over", SETTLED_S)
        gone = [job for job in pair.jobs if self.stage.job(job).lease != self.leases[job]]
        if len(gone) != 1:
            self.complaints.append(f"jobs {gone} stopped for the third job {third}, which needs the place of one")
        for job in gone:
            self._strike(pair, job)

    def _restart_agent(self, pair: Pair, job: int | None) -> None:
        self.stage.cluster.kill(pair.node.node_id)
        if job is not None:
            self._kill(pair, job)
        time.sleep(float(self.rng.uniform(0.0, PAUSE_S)))
        self.stage.cluster.start_agent(pair.node)


def process_of(stage: Stage, job: int) -> int:
    """The process of a witness job."""
    mark = f"GAVEL_JOB_ID={job}\0".encode()
    return next(
        number for number in witnesses(stage.cluster.directory) if mark in Path(f"/proc/{number}/environ").read_bytes()
    )


def verdict(assailant: Assailant, lines: list[Line]) -> list[str]:
    """All complaints: what partners noticed, starts that no blow explains, steps that are lost, ends that are wrong."""
    jobs = jobs_of(assailant.stage.cluster)
    found = stays(lines)
    return [
        *assailant.complaints,
        *[line for pair in assailant.pairs for job in pair.jobs for line in starts(job, pair.hits[job], lines)],
        *[
            f"job {number} ended {pb.JobState.Name(job.state)} at step {job.steps_done}: {job.detail}"
            for number, job in jobs.items()
            if number not in assailant.cancelled
            and (job.state != pb.JOB_STATE_FINISHED or job.steps_done != job.steps_total)
        ],
        *crowded_gpus(found),
        *double_jobs(found),
        *lost_steps(lines),
        *unsaved_steps(lines),
        *saved_twice(lines),
    ]


def starts(job: int, hits: int, lines: list[Line]) -> list[str]:
    """Complaints about a job that started other than once and once after each hit."""
    began = [line for line in lines if line.job == job and line.kind == "began"]
    return [] if len(began) == 1 + hits else [f"job {job} was hit {hits} times and started {len(began)} times"]


def unsaved_steps(lines: list[Line]) -> list[str]:
    """Complaints about jobs that stopped in order and resumed elsewhere than where they stopped."""
    found, stopped = [], dict[int, int]()
    for line in lines:
        if line.kind == "stopped":
            stopped[line.job] = line.steps
        elif line.kind == "began" and (steps := stopped.pop(line.job, line.steps)) != line.steps:
            found.append(f"job {line.job} stopped at step {steps} and resumed at {line.steps}")
        elif line.kind == "began":
            stopped.pop(line.job, None)
    return found
