"""Short builders of traces, clusters and runs for tests; name only what matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gavelpy.engine import Engine
from gavelpy.mechanism.events import Event, LeaseEnded, LeaseStarted
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.policies.base import policy_named
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import Costs, SimulationSettings
from gavelpy.simulator.simulate import Observer, Simulation
from tests.mechanism.builders import make_mechanism

NO_COSTS = Costs(checkpoint_s=0.0, restart_s=0.0, migration_s=0.0)


def make_job(name: str, *, steps: float = 3600.0, gpus: int = 1, rates: Mapping[str, float] | None = None) -> JobSpec:
    """A job that by default takes one hour on a V100."""
    return JobSpec(JobId(name), steps, gpus=gpus, rates_steps_per_s={"v100": 1.0} if rates is None else rates)


def make_trace(*jobs: JobSpec, arrival_s: Iterable[float] | None = None) -> Trace:
    """A trace of these jobs, which by default all arrive at 0."""
    return Trace(jobs, np.zeros(len(jobs)) if arrival_s is None else np.array(list(arrival_s)))


def make_settings(costs: Costs = NO_COSTS, **mechanism: Any) -> SimulationSettings:  # Any: fields of MechanismSettings
    """Default settings without costs."""
    return SimulationSettings(mechanism=make_mechanism(**mechanism), costs=costs)


def random_trace(seed: int, jobs: int = 40, *, types: tuple[str, ...] = ("v100", "p100", "k80")) -> Trace:
    """Jobs of mixed sizes, rates and arrivals; some cannot run on some types."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(300.0, jobs))
    arrival_s[: jobs // 4] = 0.0
    specs = []
    for i in range(jobs):
        speed = rng.uniform(0.5, 5.0)
        rates = {t: speed / (1 + k * rng.uniform(0, 3)) * (rng.random() > 0.1) for k, t in enumerate(types)}
        rates[types[0]] = speed
        gpus = int(rng.choice([1, 1, 1, 2, 4]))
        specs.append(make_job(f"j{i}", steps=float(rng.uniform(50, 6000)), gpus=gpus, rates=rates))
    return Trace(tuple(specs), np.sort(arrival_s))


def make_simulation(
    trace: Trace,
    cluster: Cluster | str = "v100:1",
    policy: str = "max_min_fairness",
    settings: SimulationSettings | None = None,
    **options: Any,  # Any: keyword arguments of Simulation
) -> Simulation:
    """A simulation that has not started."""
    where = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
    return Simulation(trace, where, Engine(policy_named(policy)), settings or make_settings(), **options)


def run(
    trace: Trace, cluster: Cluster | str = "v100:1", policy: str = "max_min_fairness", **options: Any
) -> SimulationResult:
    """The result of a run; `options` as for make_simulation."""
    return make_simulation(trace, cluster, policy, **options).run()


def timeless(result: SimulationResult) -> dict[str, Any]:
    """The numbers of a run without its timings."""
    return replace(result.metrics, wall_s=0.0, cpu_s=0.0, cpu_solve_s=0.0).to_json()


class GpuAudit:
    """Checks all events: no GPU has two leases, and no job runs twice at the same time."""

    def __init__(self) -> None:
        self.gpu_lease: dict[int, int] = {}
        self.job_lease: dict[int, int] = {}

    def __call__(self, event: Event, now_s: float) -> None:
        match event:
            case LeaseStarted():
                for k, (job, lease) in enumerate(zip(event.jobs.tolist(), event.leases.tolist(), strict=True)):
                    assert job not in self.job_lease, f"job {job} runs twice at {now_s}"
                    self.job_lease[job] = lease
                    for gpu in event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]].tolist():
                        assert gpu not in self.gpu_lease, f"GPU {gpu} is under two leases at {now_s}"
                        self.gpu_lease[gpu] = lease
            case LeaseEnded():
                over = set(event.leases.tolist())
                self.gpu_lease = {gpu: lease for gpu, lease in self.gpu_lease.items() if lease not in over}
                self.job_lease = {job: lease for job, lease in self.job_lease.items() if lease not in over}
            case _:
                pass


def observers(*more: Observer) -> list[Observer]:
    """The value of `observers=`."""
    return list(more)
