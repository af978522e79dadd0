"""A long crash test: kills, pauses, agents that restart when jobs end, and shared storage that hangs.

Two kinds of jobs run. Witnesses use LeaseIterator and save their checkpoints in a directory that hangs now and then;
bystanders are shell scripts that do not use that directory. Each records its actions; the verdict uses the records.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, processes_below, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.cluster import all_over, jobs_of, submit
from tests.runtime.live.crash import RATES, WITNESS, judged
from tests.runtime.live.hanging import HangingDirectory
from tests.runtime.live.witness import HURRY

GPUS = {"n0": "v100:2", "n1": "p100:2", "n2": "k80:2"}
SETTINGS = {
    "mechanism": {"round_s": 4.0, "failures_max": 1000},
    # Leases are longer than pauses and restarts.
    "nodes": {"lease_overlap_s": 15.0, "unsaved_overlap_s": 15.0, "lease_margin_s": 1.5},
}
HANG_S = 20.0
AWAY_S = 3.0  # between an agent's SIGTERM and its successor
IN_USE_S = 30.0  # after the last fault every node runs a job within this time
PATIENCE_S = 600.0
BYSTANDER = "/bin/sh -c 'echo began $GAVEL_LEASE >> {file}; sleep {s:g}; echo done $GAVEL_LEASE >> {file}'"


class Fault(StrEnum):
    """The kinds of faults."""

    SCHEDULER = "scheduler"  # kill -9, then restarted
    AGENT = "agent"  # the same
    SHIM = "shim"  # kill -9 of the shim of a lease
    JOB = "job"  # kill -9 of a process of a witness
    UPDATE = "update"  # an agent ends on SIGTERM just before a bystander does; the next one starts a while later
    PAUSE = "pause"  # a scheduler, an agent or a lease's processes are stopped for a while
    HANG = "hang"  # the checkpoint directory stops answering; other faults continue during that time


KILLS = (Fault.SCHEDULER, Fault.AGENT, Fault.SHIM, Fault.JOB, Fault.UPDATE)


@dataclass(frozen=True)
class Storm:
    """The parameters of a storm: the number of each fault, in an order drawn from the seed."""

    seed: int
    faults: dict[Fault, int]
    witnesses: int
    bystanders: int
    steps: float  # of each witness
    bystander_s: float
    between_s: float  # on average, between two faults


@dataclass
class Found:
    """The result; complaints should be empty."""

    complaints: list[str]
    done: Counter[Fault]
    in_use_s: float  # from the last fault until every node ran a job


@dataclass
class Troubler:
    """Executes one fault after another. `touched` are the jobs of which it killed or paused processes."""

    cluster: LocalCluster
    storage: HangingDirectory
    rng: np.random.Generator
    touched: set[int] = field(default_factory=set)
    done: Counter[Fault] = field(default_factory=Counter)
    thaw: threading.Timer | None = None

    def do(self, fault: Fault) -> None:
        """Executes a fault and returns when it is over, except for a directory that hangs."""
        deeds: dict[Fault, Callable[[], bool]] = {
            Fault.SCHEDULER: self._scheduler,
            Fault.AGENT: lambda: self._restart(signal.SIGKILL, away_s=0.0),
            Fault.UPDATE: self._update,
            Fault.SHIM: lambda: self._signal_lease(signal.SIGKILL, of_job=False),
            Fault.JOB: lambda: self._signal_lease(signal.SIGKILL, of_job=True),
            Fault.PAUSE: self._pause,
            Fault.HANG: self._hang,
        }
        self.done[fault] += deeds[fault]()

    def end(self) -> None:
        """Ends the hang of the directory."""
        if self.thaw is not None:
            self.thaw.cancel()
        self.storage.thaw()

    def _scheduler(self) -> bool:
        self.cluster.kill(SCHEDULER)
        self.cluster.start_scheduler()
        return True

    def _restart(self, number: signal.Signals, away_s: float, node: LocalNode | None = None) -> bool:
        node = node or self._any_node()
        process = self.cluster.processes[node.node_id]
        process.send_signal(number)
        process.wait(PATIENCE_S)
        time.sleep(away_s)
        self.cluster.start_agent(node)
        return True

    def _update(self) -> bool:
        """Restarts the agent of the node whose bystander ends next, if any runs."""
        jobs = [job for job in jobs_of(self.cluster).values() if job.name.startswith("bystander") and job.node_ids]
        node_id = min(jobs, key=lambda job: job.started_at_s).node_ids[0] if jobs else self._any_node().node_id
        node = next(node for node in self.cluster.nodes if node.node_id == node_id)
        return self._restart(signal.SIGTERM, AWAY_S, node)

    def _signal_lease(self, number: signal.Signals, *, of_job: bool) -> bool:
        """Signals one process of a job that saves checkpoints, or its shim, but never a bystander."""
        found = witnesses_of(self.cluster.directory)
        if not found:
            return False
        process, job = found[int(self.rng.integers(len(found)))]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process if of_job else parent_of(process), number)
            self.touched.add(job)
            return True
        return False

    def _pause(self) -> bool:
        names = [SCHEDULER, *GPUS, "leases"]
        name = names[int(self.rng.integers(len(names)))]
        if name == "leases":
            victims = [process for process, _ in witnesses_of(self.cluster.directory)][:2]
        else:
            victims = [self.cluster.processes[name].pid]
        for number, pause_s in ((signal.SIGSTOP, float(self.rng.uniform(0.5, 5.0))), (signal.SIGCONT, 0.0)):
            for process in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            time.sleep(pause_s)
        return bool(victims)

    def _hang(self) -> bool:
        if self.thaw is not None:
            self.thaw.join()
        self.storage.hang()
        self.thaw = threading.Timer(HANG_S, self.storage.thaw)
        self.thaw.start()
        return True

    def _any_node(self) -> LocalNode:
        return self.cluster.nodes[int(self.rng.integers(len(self.cluster.nodes)))]


def run(storm: Storm, directory: Path) -> Found:
    """Runs a storm: jobs, faults, then a calm period."""
    rng = np.random.default_rng(storm.seed)
    witnessed = directory / "evidence"
    witnessed.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        storage = stack.enter_context(HangingDirectory(directory / "storage", directory / "mount"))
        shared = str(storage.mount)
        nodes = tuple(LocalNode(name, gpus, checkpoint_directory=shared) for name, gpus in GPUS.items())
        settings = {**SETTINGS, "nodes": {**SETTINGS["nodes"], "checkpoint_directory": shared}}
        cluster = stack.enter_context(LocalCluster(directory, nodes, settings))
        troubler = Troubler(cluster, storage, rng)
        stack.callback(troubler.end)
        cluster.start()
        order = rng.permutation([fault for fault, count in storm.faults.items() for _ in range(count)]).tolist()
        described = descriptions(storm, witnessed)
        acknowledged: list[int] = []
        for k, fault in enumerate(order):
            due = described[len(acknowledged) : -(-len(described) * (k + 1) // len(order))]
            if due:
                acknowledged += submit(cluster, due, f"storm-{storm.seed}-{k}")
            troubler.do(Fault(fault))
            time.sleep(float(rng.exponential(storm.between_s)))
        for fault, count in storm.faults.items():  # those that found nothing to kill or pause once more
            for _ in range(count - troubler.done[fault]):
                troubler.do(fault)
                time.sleep(float(rng.exponential(storm.between_s)))
        troubler.end()
        in_use_s = until_in_use(cluster, witnessed, storm)
        (witnessed / HURRY).touch()
        wait_until(lambda: all_over(cluster), f"every job is over (seed {storm.seed})", PATIENCE_S)
        complaints = [
            *scheduler_complaints(cluster, acknowledged),
            *judged(evidence.read(witnessed)),
            *bystander_complaints(cluster, witnessed, troubler.touched),
        ]
    return Found(complaints, troubler.done, in_use_s)


def descriptions(storm: Storm, witnessed: Path) -> list[pb.JobDescription]:
    """All jobs, mixed; every fourth witness is a gang of two."""
    rates = ",".join(f"{name}={rate:g}" for name, rate in RATES.items())
    witnesses = [
        pb.JobDescription(
            name=f"witness-{k}", steps_total=storm.steps, gpus=2 if k % 4 == 3 else 1, rates_steps_per_s=RATES,
            command=f"{sys.executable} {WITNESS} {witnessed} {rates}", working_directory=str(witnessed),
            checkpoint_every_s=1.0,
        )
        for k in range(storm.witnesses)
    ]  # fmt: skip
    bystanders = [bystander(k, storm.bystander_s, witnessed) for k in range(storm.bystanders)]
    mixed = [job for pair in zip(witnesses, bystanders, strict=False) for job in pair]
    rest = max(witnesses, bystanders, key=len)[min(len(witnesses), len(bystanders)) :]
    return [*mixed, *rest]


def bystander(index: int, seconds: float, witnessed: Path, name: str = "bystander") -> pb.JobDescription:
    """A script that uses no checkpoints."""
    command = BYSTANDER.format(file=witnessed / f"{name}-{index}.log", s=seconds)
    return pb.JobDescription(
        name=f"{name}-{index}", steps_total=seconds, rates_steps_per_s=dict.fromkeys(RATES, 1.0), command=command,
        working_directory=str(witnessed),
    )  # fmt: skip


def until_in_use(cluster: LocalCluster, witnessed: Path, storm: Storm) -> float:
    """Seconds until every node runs a job, given jobs for every GPU."""
    began_s = time.monotonic()
    fillers = [bystander(k, storm.bystander_s, witnessed, "filler") for k in range(6)]
    submit(cluster, fillers, f"storm-{storm.seed}-fill")

    def all_in_use() -> bool:
        running = [job for job in jobs_of(cluster).values() if job.state == pb.JOB_STATE_RUNNING]
        return {node for job in running for node in job.node_ids} == set(GPUS)

    wait_until(all_in_use, "every node runs a job", 10 * IN_USE_S)
    return time.monotonic() - began_s


def scheduler_complaints(cluster: LocalCluster, acknowledged: list[int]) -> list[str]:
    """Complaints from the scheduler's own report of the jobs."""
    jobs = jobs_of(cluster)
    missing = sorted(set(acknowledged) - set(jobs))
    unfinished = [job for job in jobs.values() if job.state != pb.JOB_STATE_FINISHED]
    return [
        *([f"acknowledged and not known: {missing}"] if missing else []),
        *([f"the same id twice: {acknowledged}"] if len(set(acknowledged)) < len(acknowledged) else []),
        *[f"{job.name} ended {pb.JobState.Name(job.state)}: {job.detail}" for job in unfinished],
    ]


def bystander_complaints(cluster: LocalCluster, witnessed: Path, touched: set[int]) -> list[str]:
    """Complaints about bystanders that did not start and end exactly once: no fault was aimed at them."""
    numbers = {job.name: job.job for job in jobs_of(cluster).values()}
    complaints = []
    for name, number in numbers.items():
        if name.startswith("witness"):
            continue
        assert number not in touched, f"the test itself touched {name}"
        lines = (witnessed / f"{name}.log").read_text().split("\n")[:-1]
        kinds = Counter(line.split(" ")[0] for line in lines)
        if kinds != {"began": 1, "done": 1}:
            complaints.append(f"{name} must begin once and end once, got {lines}")
    return complaints


def witnesses_of(directory: Path) -> list[tuple[int, int]]:
    """(process id, job) of each running witness process."""
    found = []
    for process in shims_and_jobs(directory):
        with contextlib.suppress(OSError, StopIteration):
            if b"witness.py" in Path(f"/proc/{process}/cmdline").read_bytes():
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                job = next(v for v in variables if v.startswith(b"GAVEL_JOB_ID="))
                found.append((process, int(job.partition(b"=")[2])))
    return found


def shims_and_jobs(directory: Path) -> list[int]:
    """Process ids below the agents' state directories."""
    return sorted({process for name in GPUS for process in processes_below(directory / name)})


def parent_of(process: int) -> int:
    """The shim of a job's process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("PPid:"):
            return int(line.split()[1])
    raise ProcessLookupError(process)
