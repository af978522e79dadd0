"""One crash test: jobs on agents, faults from a seed, and a verdict from the jobs' own records."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.cluster import all_over, jobs_of, submit
from tests.runtime.live.faults import Fault, Saboteur, plan
from tests.runtime.live.proxy import BadNetwork, Weather

WITNESS = Path(__file__).with_name("witness.py")
RATES = {"v100": 40.0, "p100": 20.0, "k80": 10.0}  # steps/s
NODES = (LocalNode("n0", "v100:2"), LocalNode("n1", "p100:2"), LocalNode("n2", "k80:2"))
FROZEN_S = 12.0  # longer than a lease with its grace and margin
JOB_TYPE = "witness"
GPU_GIB = 16.0
SETTINGS: dict[str, dict[str, Any]] = {
    "mechanism": {"round_s": 4.0, "failures_max": 1000},
    "nodes": {"lease_overlap_s": 2.0, "unsaved_overlap_s": 2.0, "lease_margin_s": 1.5},
}


@dataclass(frozen=True)
class Trial:
    """The parameters of a crash test."""

    seed: int
    jobs: int
    steps: float  # of each job
    faults: dict[Fault, int]
    within_s: float  # duration of the faults
    patience_s: float  # time for all jobs to end after that
    weather: Weather = field(default_factory=Weather)
    journal: str = ""  # URL of a database; "" = SQLite
    is_packed: bool = False  # jobs with a declared memory share GPUs


@dataclass(frozen=True)
class Verdict:
    """The result; every list of complaints should be empty."""

    complaints: list[str]
    done: dict[Fault, int]
    restarts_s: list[float]
    messages_harmed: int
    shared: int = 0  # pairs of leases that were on one GPU at once


def run(trial: Trial, directory: Path) -> Verdict:
    """Runs a trial. The messages of the third node pass through a bad network."""
    rng = np.random.default_rng(trial.seed)
    witnessed = directory / "evidence"
    witnessed.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        settings = {**SETTINGS, "scheduler": {"journal": trial.journal}}
        cluster = stack.enter_context(LocalCluster(directory, NODES, packed(settings, directory, trial)))
        network = stack.enter_context(BadNetwork(cluster.address, trial.weather, rng))
        cluster.ports = {NODES[2].node_id: network.port}
        cluster.start()
        saboteur = Saboteur(cluster, rng, FROZEN_S, {}, [], time.monotonic())
        acknowledged = submit_some(cluster, trial, witnessed, 0, trial.jobs // 2)
        strikes = plan(trial.faults, trial.within_s, rng)
        saboteur.carry_out(strikes[: len(strikes) // 3])
        acknowledged += submit_some(cluster, trial, witnessed, trial.jobs // 2, trial.jobs)
        saboteur.carry_out(strikes[len(strikes) // 3 :])
        wait_until(lambda: all_over(cluster), f"every job is over (seed {trial.seed})", trial.patience_s)
        lines = evidence.read(witnessed)
        complaints = [*verdict(cluster, acknowledged, trial), *judged(lines, is_packed=trial.is_packed)]
        shared = len(evidence.shared_gpus(evidence.stays(lines)))
    return Verdict(complaints, saboteur.done, saboteur.restarts_s, network.harmed, shared)


def packed(settings: dict[str, dict[str, Any]], directory: Path, trial: Trial) -> dict[str, dict[str, Any]]:
    """These settings, and in a packed trial those of co-location: two jobs keep nine tenths of their rates."""
    if not trial.is_packed:
        return settings
    rows = ["job_type,gpus,gpu_type,rate_steps_per_s,pair_job_type,pair_rate_steps_per_s"]
    for gpus in (1, 2):
        for gpu_type, rate in RATES.items():
            rows.append(f"{JOB_TYPE},{gpus},{gpu_type},{rate},,")
            rows.append(f"{JOB_TYPE},{gpus},{gpu_type},{0.9 * rate},{JOB_TYPE},{0.9 * rate}")
    table = directory / "rates.csv"
    table.write_text("\n".join(rows) + "\n")
    memory = {f"gpu_types.{gpu_type}": {"memory_gib": GPU_GIB} for gpu_type in RATES}
    mechanism = {**settings["mechanism"], "packing": True}
    return {**settings, **memory, "mechanism": mechanism, "throughputs": {"file": str(table), "estimate": False}}


def needed_gib(index: int) -> float:
    """The GPU memory of a job in a packed trial: two of three fit together, the third with none."""
    return 12.0 if index % 3 == 2 else 6.0


def submit_some(cluster: LocalCluster, trial: Trial, witnessed: Path, first: int, last: int) -> list[int]:
    """Submits jobs `first` to `last`; every fourth is a gang of two."""
    jobs = [description(trial, index, witnessed) for index in range(first, last)]
    return submit(cluster, jobs, f"seed-{trial.seed}-from-{first}")


def description(trial: Trial, index: int, witnessed: Path) -> pb.JobDescription:
    """The description of one witness job."""
    rates = ",".join(f"{name}={rate:g}" for name, rate in RATES.items())
    return pb.JobDescription(
        name=f"witness-{index}",
        steps_total=trial.steps,
        gpus=2 if index % 4 == 3 else 1,
        rates_steps_per_s=RATES,
        command=f"{sys.executable} {WITNESS} {witnessed} {rates}",
        working_directory=str(witnessed),
        checkpoint_every_s=1.0,
        job_type=JOB_TYPE if trial.is_packed else "",
        gpu_memory_gib=needed_gib(index) if trial.is_packed else 0.0,
    )


def verdict(cluster: LocalCluster, acknowledged: list[int], trial: Trial) -> list[str]:
    """Complaints from the scheduler's own report of the jobs."""
    jobs = jobs_of(cluster)
    complaints = []
    if len(set(acknowledged)) != trial.jobs:
        complaints.append(f"{trial.jobs} jobs got the ids {acknowledged}")
    if set(jobs) != set(acknowledged):
        complaints.append(f"acknowledged {sorted(acknowledged)}, known {sorted(jobs)}")
    for number, job in jobs.items():
        if job.state != pb.JOB_STATE_FINISHED or job.steps_done != trial.steps:
            complaints.append(
                f"job {number} ended {pb.JobState.Name(job.state)} at step {job.steps_done}: {job.detail}"
            )
    return complaints


def judged(lines: list[evidence.Line], *, is_packed: bool = False) -> list[str]:
    """Complaints from the records of the witnesses."""
    found = evidence.stays(lines)
    return [
        *(overfull(found) if is_packed else evidence.double_gpus(found)),
        *evidence.double_jobs(found),
        *evidence.lost_steps(lines),
        *evidence.saved_twice(lines),
    ]


def overfull(found: list[evidence.Stay]) -> list[str]:
    """Complaints about GPUs with three leases, or with two whose jobs do not fit together."""
    return evidence.crowded_gpus(found) + [
        f"jobs {early.job} and {late.job} need more than a GPU has"
        for early, late in evidence.shared_gpus(found)
        if needed_gib(early.job) + needed_gib(late.job) > GPU_GIB
    ]
