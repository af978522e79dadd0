"""Pollux's choices against the fitness of all combinations, and what a job may hold next."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.pollux import Pollux
from gavelpy.simulator.compare import compare

FEW = 20
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]


def elastic(seed: int, jobs: int = 3) -> AllocationProblem:
    """Jobs with the sizes 1, 2 and 4 on two types, some of which hold GPUs."""
    rng = np.random.default_rng(seed)
    ids = [f"j{row}" for row in range(jobs)]
    problem = AllocationProblem.of(
        ids, ["a100", "t4"], rng.integers(1, 5, 2), rng.uniform(1.0, 9.0, (jobs, 2)),
        age_s=rng.uniform(100.0, 5_000.0, jobs), restart_s=rng.choice([0.0, 60.0, 300.0], jobs),
        gpu_type_held=rng.integers(-1, 2, jobs), gpus_held=rng.choice([1, 2, 4], jobs),
    )  # fmt: skip
    return problem.with_sizes({job: [Size(2, efficiency=0.9), Size(4, efficiency=0.6)] for job in ids})


class Brute:
    """Pollux by its definition, with plain loops over all combinations."""

    def __init__(self, problem: AllocationProblem, policy: Pollux) -> None:
        self.problem, self.policy = problem, policy
        self.counts = problem.gpu_counts.tolist()
        self.rates: dict[int, dict[tuple[float, int], float]] = {}  # of a job by GPUs and type: the mean over types
        for m, job in enumerate(problem.member_job.tolist()):
            gpus = float(problem.gpus_occupied[problem.member_configuration[m]])
            row = problem.member_rate_steps_per_s[m].tolist()
            mean = sum(r * n for r, n in zip(row, self.counts, strict=True)) / sum(self.counts)
            for t in range(len(row)):
                if gpus <= self.counts[t]:
                    self.rates.setdefault(job, {})[gpus, t] = mean

    def fair(self, job: int) -> float:
        part = max(sum(self.counts) / len(self.rates), min(gpus for gpus, _ in self.rates[job]))
        return max(rate for (gpus, _), rate in self.rates[job].items() if gpus <= part)

    def speedup(self, job: int, place: tuple[float, int] | None) -> float:
        """For jobs that have started once, if at all."""
        if place is None:
            return self.policy.waiting
        p = self.problem
        held, age, restart = int(p.gpu_type_held[job]), float(p.age_s[job]), float(p.restart_s[job])
        moved = held >= 0 and (float(p.gpus_held[job]), held) != place and restart > 0
        factor = min(max((age - restart) / (age + restart), 1e-3), 1.0) if moved else 1.0
        return max(factor * self.rates[job][place] / self.fair(job), self.policy.waiting)

    def best(self) -> float:
        p, best = self.problem, 0.0
        most = [max(2 * float(p.gpus_held[j]) if p.gpu_type_held[j] >= 0 else 1.0, 1.0) for j in range(p.job_count)]
        of_jobs = [[None, *(one for one in self.rates.get(j, {}) if one[0] <= most[j])] for j in range(p.job_count)]
        for chosen in itertools.product(*of_jobs):
            used = [sum(one[0] for one in chosen if one is not None and one[1] == t) for t in range(2)]
            if all(u <= n for u, n in zip(used, self.counts, strict=True)):
                best = max(best, self.fitness(list(chosen)))
        return best

    def fitness(self, chosen: list[tuple[float, int] | None]) -> float:
        power = self.policy.power
        speedups = [self.speedup(j, place) for j, place in enumerate(chosen)]
        return float((sum(s**power for s in speedups) / len(speedups)) ** (1.0 / power))


def chosen_by(answer: Allocation) -> list[tuple[float, int] | None]:
    problem = answer.problem
    found: list[tuple[float, int] | None] = [None] * problem.job_count
    job_of = dict(zip(problem.member_configuration.tolist(), problem.member_job.tolist(), strict=True))
    for row, t in np.argwhere(answer.share > 0).tolist():
        found[job_of[row]] = (float(problem.gpus_occupied[row]), t)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_fitness_is_that_of_the_best_combination(seed: int) -> None:
    problem, policy = elastic(seed), Pollux(power=(-1.0, -0.5, 1.0)[seed % 3])
    brute = Brute(problem, policy)

    answer = policy.allocate(problem)

    assert brute.fitness(chosen_by(answer)) == pytest.approx(brute.best(), rel=1e-5)
    assert answer.certificate.gap <= 1e-6


def two_jobs(**columns: object) -> AllocationProblem:
    problem = AllocationProblem.of("ab", ["v100"], [4], [[1.0], [1.0]], gpu_type_held=0, gpus_held=2, **columns)  # type: ignore[arg-type]  # columns of several types
    return problem.with_sizes(
        {"a": [Size(2, {"v100": 1.2}), Size(3, {"v100": 1.3})], "b": [Size(2, {"v100": 1.9}), Size(3, {"v100": 2.7})]}
    )


def test_the_example_of_the_docs_by_hand() -> None:
    answer = Pollux().allocate(two_jobs())

    assert chosen_by(answer) == [(1.0, 0), (3.0, 0)]
    assert 2 / (200.0 - answer.certificate.objective) == pytest.approx(2 / (1.2 + 1.9 / 2.7))  # 200: both wait


def test_a_young_job_is_not_moved_for_a_small_gain() -> None:
    """The same, but each has run for 60 s and a start costs 30 s: a move keeps 30 / 90 of the goodput."""
    answer = Pollux().allocate(two_jobs(age_s=60.0, restart_s=30.0))

    assert chosen_by(answer) == [(2.0, 0), (2.0, 0)]


def test_the_batch_size_of_the_highest_goodput_is_chosen() -> None:
    problem = AllocationProblem.of("a", ["v100"], [2], [[1.0]], gpu_type_held=0, gpus_held=1).with_sizes(
        {"a": [Size(2, {"v100": 1.5}, plan="batch 64"), Size(2, {"v100": 1.8}, plan="batch 128")]}
    )

    by_size = Pollux().allocate(problem).by_size()

    assert by_size[by_size["v100"] > 0]["plan"].tolist() == ["batch 128"]


def test_a_job_begins_on_its_least_number_and_doubles() -> None:
    problem = AllocationProblem.of("a", ["v100"], [8], [[1.0]])
    problem = problem.with_sizes({"a": [Size(gpus, efficiency=0.9) for gpus in (2, 4, 8)]})
    held = []
    for _ in range(4):
        answer = Pollux().allocate(problem)
        held.append(float(problem.gpus_occupied @ answer.share[:, 0]))
        problem = replace(problem, memory=answer.memory, gpu_type_held=np.array([0]), gpus_held=np.array([held[-1]]))

    assert held == [1.0, 2.0, 4.0, 8.0]


def test_types_count_alike_also_for_a_job_that_is_much_faster_on_one() -> None:
    """On its fastest type Sia would move a job; Pollux sees the mean over types and leaves it where it is."""
    problem = AllocationProblem.of(
        "a", ["a100", "t4"], [1, 1], [[9.0, 1.0]], gpu_type_held=1, gpus_held=1, age_s=1e6, restart_s=1.0
    )

    assert Pollux().allocate(problem).share.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"power": 0.0}, "power must be in"),
        ({"power": -9.0}, "power must be in"),
        ({"waiting": 0.0}, "waiting must be in"),
        ({"waiting": math.nan}, "waiting must be in"),
    ],
)
def test_refuses_parameters(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Pollux(**parameters)


def test_jobs_of_a_trace_grow_and_finish() -> None:
    """Alone each job needs an hour on one GPU; together, on up to 2 of 4, they need less than two."""
    rates, larger = {"v100": 1.0, "k80": 0.5}, {2: {"v100": 1.8, "k80": 0.9}}
    one = JobSpec(JobId("j0"), 3_600.0, rates_steps_per_s=rates, sizes=(1, 2), rates_by_size=larger)
    trace = Trace(tuple(replace(one, id=JobId(f"j{k}")) for k in range(4)), np.arange(4) * 60.0)

    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("pollux")])["pollux"]

    assert (found.history.finish_s[:4] < 7_200.0).all()
    assert (found.history.finish_s[:4] - trace.arrival_s > 2_000.0).all()  # the time on 2 V100s
