"""How often the 80 % intervals of forecasts hold: journals of simulations in which rates differ from declared ones.

120 jobs on 16 GPUs of three types, under four policies and three loads; `gavel forecast score` computes the forecasts
at 30 instants of each journal again and compares them with what happened. `--seed` draws other jobs and rates. Goal:
75 to 85 % of at least 2,000 forecasts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from gavelpy.engine import Engine
from gavelpy.journal.recording import Recording
from gavelpy.mechanism.events import Event, PolicyChanged
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.policies.base import policy_named
from gavelpy.simulator.past.score import ScoredForecast, score_forecasts
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation

POLICIES = ("fifo", "shortest_job_first", "max_min_fairness", "finish_time_fairness")
LOADS = (1.5, 2.5, 3.5)  # jobs per hour
JOBS = 120
TIMES = 30
CLUSTER = "v100:4,p100:4,k80:8"
TYPES = ("v100", "p100", "k80")


class NoisySimulation(Simulation):
    """Jobs run faster or slower than they declare: by 30 % each, and by 15 % on each type."""

    def _true_rates(self, row: int) -> dict[str, float]:
        rng = np.random.default_rng([self.seed, row])
        factor = math.exp(0.3 * rng.standard_normal())
        declared = super()._true_rates(row)
        return {name: rate * factor * math.exp(0.15 * rng.standard_normal()) for name, rate in declared.items()}


def noisy_journal(policy: str, seed: int, jobs_per_h: float, jobs: int) -> Recording:
    rng, specs, events = np.random.default_rng(seed), list[JobSpec](), list[tuple[float, Event]]()
    for index in range(jobs):
        speed = rng.uniform(0.5, 5.0)
        rates = {name: speed / (1 + k * rng.uniform(0.3, 2.0)) for k, name in enumerate(TYPES)}
        steps, gpus = float(speed * rng.lognormal(math.log(7_200.0), 1.0)), int(rng.choice([1, 1, 1, 2, 4]))
        specs.append(JobSpec(JobId(f"j{index}"), steps, gpus, rates_steps_per_s=rates))
    trace = Trace(tuple(specs), np.cumsum(rng.exponential(3600.0 / jobs_per_h, jobs)))
    engine = Engine(policy_named(policy))
    simulation = NoisySimulation(trace, Cluster.parse(CLUSTER), engine, SimulationSettings(), seed=seed)
    simulation.observers.append(lambda event, now_s: events.append((now_s, event)))
    simulation.run()
    return Recording(policy, events, policy=PolicyChanged(policy, "{}"))


def is_inside(forecasts: Sequence[ScoredForecast]) -> list[bool]:
    """Of each forecast with an interval and an outcome: whether the outcome is in the interval."""
    scored = [one for one in forecasts if not math.isnan(one.low_s + one.happened_s)]
    return [one.low_s <= one.happened_s <= one.high_s for one in scored]


def run(arguments: Sequence[str] = ()) -> None:
    """Prints a line for each policy and load, and one for all."""
    parser = argparse.ArgumentParser(prog="benchmarks forecasts")
    parser.add_argument("--seed", type=int, default=7)
    seed = parser.parse_args(arguments).seed
    every: list[bool] = []
    print(f"{'policy':<22} {'jobs/h':>6} {'forecasts':>9} {'inside':>7}")
    for policy in POLICIES:
        for load in LOADS:
            found = score_forecasts(noisy_journal(policy, 1_000 * seed + int(10 * load), load, JOBS), times=TIMES)
            inside = is_inside(found.forecasts)
            every += inside
            print(f"{policy:<22} {load:>6} {len(inside):>9,} {np.mean(inside):>7.1%}", flush=True)
    print(f"{'all':<29} {len(every):>9,} {np.mean(every):>7.1%}")
