"""One crash test: jobs on agents, faults from a seed, and a verdict from the jobs' own records."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

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
SETTINGS = {
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


@dataclass(frozen=True)
class Verdict:
    """The result; every list of complaints should be empty."""

    complaints: list[str]
    done: dict[Fault, int]
    restarts_s: list[float]
    messages_harmed: int


def run(trial: Trial, directory: Path) -> Verdict:
    """Runs a trial. The messages of the third node pass through a bad network."""
    rng = np.random.default_rng(trial.seed)
    witnessed = directory / "evidence"
    witnessed.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(directory, NODES, {**SETTINGS, "scheduler": {"journal": trial.journal}})
        )
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
        complaints = [*verdict(cluster, acknowledged, trial), *judged(evidence.read(witnessed))]
    return Verdict(complaints, saboteur.done, saboteur.restarts_s, network.harmed)


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


def judged(lines: list[evidence.Line]) -> list[str]:
    """Complaints from the records of the witnesses."""
    found = evidence.stays(lines)
    return [
        *evidence.double_gpus(found),
        *evidence.double_jobs(found),
        *evidence.lost_steps(lines),
        *evidence.saved_twice(lines),
    ]
