"""Random allocation problems for benchmarks: seeded, of any size. No data file is read.

A table of JOB_TYPES x gang sizes gives every kind of job its rates: job types differ in size and in how much they gain
from a faster GPU type (by factors of 1 to about 15 over the whole range of types, as in the measurements of Gavel, OSDI
'20, figure 1). Jobs of a mix "gavel" are of these 104 kinds; "distinct" multiplies every rate by lognormal noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem, Entity, EntityPolicy

JOB_TYPES = 26
GANGS = np.array([1, 2, 4, 8])
GANG_FRACTIONS = (0.7, 0.1, 0.15, 0.05)  # of the jobs; as in the original's generator
HEAVY_FRACTION, HEAVY_WEIGHT = 0.2, 5.0
NOISE = 0.1  # standard deviation of log rate among jobs of one kind, for distinct jobs
DEADLINE_FRACTION = 0.3
ENTITIES = 8
_TABLE_SEED = 20_201_104
_DAY_S = 86_400.0


PAIRS = "+pairs"


class Mix(StrEnum):
    """How similar jobs are."""

    DISTINCT = "distinct"
    GAVEL = "gavel"


@dataclass(frozen=True)
class Case:
    """One problem to solve."""

    policy: str  # with PAIRS appended: every two jobs of equal gang size may be co-located
    mix: str
    types: int
    jobs: int
    load: float
    seed: int
    mode: str = "cold"  # or "warm": one job arrived or left, and the solver was kept

    @property
    def is_packed(self) -> bool:
        """Whether there are pairs."""
        return self.policy.endswith(PAIRS)

    @property
    def policy_text(self) -> str:
        """The policy, as the registry accepts it."""
        return self.policy.removesuffix(PAIRS)

    def drawn(self, *, spare: int = 0) -> Drawn:
        """The pool of this case, with `spare` more jobs."""
        return draw(self.jobs, self.types, Mix(self.mix), load=self.load, seed=self.seed, spare=spare)

    def problem(self) -> AllocationProblem:
        """The problem of this case."""
        drawn = self.drawn()
        return drawn.with_pairs() if self.is_packed else drawn.problem()


@dataclass(frozen=True, eq=False)
class Drawn:
    """A pool of N jobs and a cluster of T types; `problem` is one over some of them."""

    rate_steps_per_s: Floats  # (N, T)
    gpu_counts: Floats  # (T,)
    price_usd_per_gpu_h: Floats  # (T,)
    gpus: Ints  # (N,)
    weight: Floats  # (N,)
    steps_remaining: Floats  # (N,)
    age_s: Floats  # (N,)
    isolated_s: Floats  # (N,)
    deadline_s: Floats  # (N,)
    entity: Ints  # (N,)
    job_type: Ints  # (N,)
    pair_rate: Floats  # (JOB_TYPES, JOB_TYPES, T) rate co-located with a job of another type / alone

    def problem(self, rows: Ints | None = None) -> AllocationProblem:
        """The jobs in `rows` of the pool (default: all of it), in that order, each running alone."""
        chosen = np.arange(len(self.gpus)) if rows is None else rows
        return AllocationProblem.of(
            [f"j{row}" for row in chosen.tolist()],
            [f"t{column}" for column in range(len(self.gpu_counts))],
            self.gpu_counts,
            self.rate_steps_per_s[chosen],
            gpus=self.gpus[chosen],
            weight=self.weight[chosen],
            steps_remaining=self.steps_remaining[chosen],
            age_s=self.age_s[chosen],
            isolated_s=self.isolated_s[chosen],
            deadline_s=self.deadline_s[chosen],
            price_usd_per_gpu_h=self.price_usd_per_gpu_h,
            entity=self.entity[chosen],
            entities=[
                Entity(f"e{i}", 1.0 + i % 3, EntityPolicy.FIFO if i % 4 == 3 else EntityPolicy.FAIRNESS)
                for i in range(ENTITIES)
            ],
        )

    def with_pairs(self) -> AllocationProblem:
        """All jobs of the pool, and all pairs with the same number of GPUs may be co-located."""
        first, second = np.triu_indices(len(self.gpus), k=1)
        equal = self.gpus[first] == self.gpus[second]
        first, second = first[equal], second[equal]
        kept = self.pair_rate[self.job_type[first], self.job_type[second]]
        kept_by_other = self.pair_rate[self.job_type[second], self.job_type[first]]
        rates = np.stack([self.rate_steps_per_s[first] * kept, self.rate_steps_per_s[second] * kept_by_other], axis=1)
        return self.problem().with_pairs(list(zip(first.tolist(), second.tolist(), strict=True)), rates)

    def changes(self, jobs: int, count: int) -> list[Ints]:
        """Rows of the pool before and after each of `count` departures and arrivals in turn, (count + 1) arrays.

        The first has rows 0 to jobs - 1. Then, alternately, a job in the middle leaves and a new one from the end of
        the pool arrives.
        """
        present = np.arange(jobs)
        found = [present]
        for change in range(count):
            leaves = (jobs // 2 + 7 * change) % len(present)
            present = np.append(present, jobs + change // 2) if change % 2 else np.delete(present, leaves)
            found.append(present)
        return found


def draw(jobs: int, types: int, mix: Mix, *, load: float = 0.1, seed: int = 0, spare: int = 0) -> Drawn:
    """A pool of `jobs` + `spare` jobs, and a cluster sized for `jobs`.

    `load` is in GPUs per job and type for three types; with more types, the total is the same: 0.1 is six times
    overloaded, 1.0 has spare GPUs. A type has at least 8 GPUs.
    """
    rng = np.random.default_rng(seed)
    table, speed = _rates_of_kinds(types)
    N = jobs + spare
    job_type, gang = rng.integers(0, JOB_TYPES, N), rng.choice(len(GANGS), N, p=GANG_FRACTIONS)
    rate = table[job_type, gang]
    if mix is Mix.DISTINCT:
        rate = rate * np.exp(rng.normal(0.0, NOISE, rate.shape))
    best_s = np.exp(rng.uniform(np.log(600.0), np.log(400_000.0), N))  # to finish on the fastest type
    age_s = rng.uniform(0.0, 2.0 * _DAY_S, N)
    has_deadline = rng.random(N) < DEADLINE_FRACTION
    return Drawn(
        rate_steps_per_s=rate,
        gpu_counts=np.maximum(8.0, np.full(types, np.floor(3.0 * load * jobs / types))),
        price_usd_per_gpu_h=0.1 * speed**0.8,
        gpus=GANGS[gang],
        weight=np.where(rng.random(N) < HEAVY_FRACTION, HEAVY_WEIGHT, 1.0),
        steps_remaining=rate.max(axis=1) * best_s,
        age_s=age_s,
        isolated_s=age_s * rng.uniform(0.5, 1.0, N),
        deadline_s=np.where(has_deadline, best_s * rng.uniform(5.0, 50.0, N), np.inf),
        entity=rng.integers(0, ENTITIES, N),
        job_type=job_type,
        pair_rate=np.random.default_rng(_TABLE_SEED).uniform(0.35, 0.95, (JOB_TYPES, JOB_TYPES, types)),
    )


def _rates_of_kinds(types: int) -> tuple[Floats, Floats]:
    """Steps/s of each kind, (JOB_TYPES, gangs, T), and the speed of each GPU type over the first, (T,)."""
    rng = np.random.default_rng(_TABLE_SEED + types)
    speed = np.exp(np.linspace(0.0, np.log(10.0), types))
    base = np.exp(rng.uniform(np.log(0.3), np.log(60.0), (JOB_TYPES, 1, 1)))
    gain = rng.uniform(0.2, 1.2, (JOB_TYPES, 1, 1))
    scaling = GANGS[None, :, None] ** rng.uniform(0.6, 1.0, (JOB_TYPES, 1, 1))
    noise = np.exp(rng.normal(0.0, 0.15, (JOB_TYPES, len(GANGS), types)))
    return base * speed**gain * scaling * noise, speed
