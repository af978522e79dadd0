"""A second, dumb implementation of queueing policies: whole rounds, one GPU type, Python loops.

Jobs arrive at the start of rounds and last whole rounds, so that a simulation by the scheduler's core must finish each
job in the same round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gavelpy.engine import Engine
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.policies.base import policy_from
from gavelpy.simulator.simulate import Simulation
from tests.simulator.builders import make_job, make_settings, make_trace

ROUND_S = 100.0
GPUS = 4


@dataclass(eq=False)
class DumbJob:
    """A job with what it has done so far, in rounds."""

    name: str
    arrival: int
    length: int
    gpus: int
    owner: str = ""
    done: int = 0
    finish: int = -1
    is_running: bool = False

    @property
    def left(self) -> int:
        return self.length - self.done


Choose = Callable[[list[DumbJob], int], list[DumbJob]]  # jobs present in order of arrival, round -> jobs that run


def random_jobs(seed: int, count: int = 12, owners: str = "") -> list[DumbJob]:
    """Gangs of 1 to 4, of 1 to 9 rounds, of which several arrive at once."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, 10, count)).tolist()
    return [
        DumbJob(
            f"j{k}", arrival, int(rng.integers(1, 10)), int(rng.choice([1, 1, 2, 4])), rng.choice([*owners] or [""])
        )
        for k, arrival in enumerate(arrivals)
    ]


def that_fit(queue: list[DumbJob], gpus: int = GPUS) -> list[DumbJob]:
    """The jobs of a queue that get GPUs, in its order; one that does not fit is skipped."""
    chosen = []
    for job in queue:
        if job.gpus <= gpus:
            chosen.append(job)
            gpus -= job.gpus
    return chosen


def finish_rounds(jobs: list[DumbJob], choose: Choose) -> dict[str, int]:
    """The round at whose start each job is over."""
    now = 0
    while any(job.finish < 0 for job in jobs):
        present = [job for job in jobs if job.arrival <= now and job.finish < 0]
        chosen = choose(present, now)
        assert sum(job.gpus for job in chosen) <= GPUS
        for job in present:
            job.is_running = job in chosen
            job.done += job.is_running
            job.finish = now + 1 if job.left == 0 else -1
        now += 1
        assert now < 1000, "jobs never finish"
    return {job.name: job.finish for job in jobs}


def simulated_rounds(jobs: list[DumbJob], policy: str) -> dict[str, int]:
    """The same by the scheduler's core and the policy's own code, without costs."""
    specs = [make_job(job.name, steps=job.length * ROUND_S, gpus=job.gpus) for job in jobs]
    specs = [replace(spec, owner=job.owner, entity=job.owner) for spec, job in zip(specs, jobs, strict=True)]
    trace: Trace = make_trace(*specs, arrival_s=[job.arrival * ROUND_S for job in jobs])
    engine, settings = Engine(policy_from(policy)), make_settings(round_s=ROUND_S)
    result = Simulation(trace, Cluster.parse(f"v100:{GPUS}"), engine, settings).run()
    frame: pd.DataFrame = result.jobs
    return {str(name): round(at / ROUND_S) for name, at in frame["finish_s"].items()}
