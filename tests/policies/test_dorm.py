"""Dorm's choices against all combinations, its fair shares against small steps, and its limits over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.dorm import ADJUSTMENT, Dorm, fair_dominant_shares
from gavelpy.simulator.compare import compare
from gavelpy.solve.whole_choices import best_of_each
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

FEW = 25
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(300)]


def elastic(seed: int, jobs: int = 4) -> AllocationProblem:
    """Jobs with the sizes 1, 2 and 4 that need GPUs and cores; some hold GPUs within the capacity."""
    rng = np.random.default_rng(seed)
    ids = [f"j{row}" for row in range(jobs)]
    counts = rng.integers(2, 7, 2)
    held, gpus = rng.integers(-1, 2, jobs), rng.choice([1, 2], jobs)
    for t in range(2):
        over = np.cumsum(np.where(held == t, gpus, 0)) > counts[t]
        held[over & (held == t)] = -1
    problem = AllocationProblem.of(
        ids, ["a100", "t4"], counts, rng.uniform(1.0, 9.0, (jobs, 2)), weight=rng.choice([1.0, 3.0], jobs),
        resources={"cpu": counts * 4.0}, demand={"cpu": rng.integers(1, 5, jobs)},
        gpu_type_held=held, gpus_held=gpus,
    )  # fmt: skip
    return problem.with_sizes({job: [Size(2, efficiency=0.9), Size(4, efficiency=0.7)] for job in ids})


Place = tuple[int, int]  # configuration and type; the job of a configuration is that of its only member


class Brute:
    """Dorm by its definition, with plain loops over all combinations of places."""

    def __init__(self, problem: AllocationProblem, dorm: Dorm) -> None:
        self.problem, self.dorm = problem, dorm
        self.job = {int(c): int(j) for c, j in zip(problem.member_configuration, problem.member_job, strict=True)}
        self.whole = problem.capacity.sum(axis=0) / 1000.0
        self.held = problem.gpu_type_held.tolist()
        self.running = sum(1 for t in self.held if t >= 0)

    def adjusts(self, place: Place) -> bool:
        row, t = place
        j = self.job[row]
        stays = self.held[j] == t and self.problem.gpus_held[j] == self.problem.gpus_occupied[row]
        return self.held[j] >= 0 and not stays

    def combinations(self, served: list[int]) -> Iterator[tuple[Place, ...]]:
        T = len(self.problem.gpu_types)
        of = [[(row, t) for row, j in self.job.items() if j == job for t in range(T)] for job in served]
        for chosen in itertools.product(*of):
            used = np.zeros_like(self.problem.capacity)
            for row, t in chosen:
                used[t] += self.problem.demand[row]
            few = sum(map(self.adjusts, chosen)) <= math.ceil(self.dorm.adjusted * self.running)
            if few and (used <= self.problem.capacity).all():
                yield chosen

    def parts(self, row: int) -> Floats:
        return np.asarray(self.problem.occupied[row] / self.whole)

    def served(self) -> list[int]:
        order = sorted(range(len(self.held)), key=lambda j: (self.held[j] < 0, j))
        return max(
            (order[:k] for k in range(len(order) + 1) if any(True for _ in self.combinations(order[:k]))), key=len
        )

    def loss(self, chosen: tuple[Place, ...], ideal: dict[int, float]) -> float:
        return sum(abs(float(self.parts(row).max()) - ideal[self.job[row]]) for row, _ in chosen)

    def best(self) -> tuple[list[int], float]:
        served = self.served()
        rows = [min(r for r, j in self.job.items() if j == job) for job in served]
        most = [max(max(self.parts(r)) for r, j in self.job.items() if j == job and self._fits(r)) for job in served]
        fair = by_small_steps(np.array([self.parts(r) for r in rows]), self.problem.weight[served], np.array(most))
        ideal = dict(zip(served, fair, strict=True))
        every = [(self.loss(one, ideal), one) for one in self.combinations(served)]
        limit = max(2 * self.dorm.unfairness * len(self.whole), min(loss for loss, _ in every))
        return served, max(self.value(one) for loss, one in every if loss <= limit + 1e-6)

    def value(self, chosen: tuple[Place, ...]) -> float:
        return sum(float(self.parts(row).sum()) for row, _ in chosen) - ADJUSTMENT * sum(map(self.adjusts, chosen))

    def _fits(self, row: int) -> bool:
        return bool((self.problem.demand[row] <= self.problem.capacity).all(axis=1).any())


def by_small_steps(part: Floats, weight: Floats, most: Floats, steps: int = 3_000) -> list[float]:
    """Weighted dominant resource fairness: each job's share grows a little at a time, while its resources last."""
    unit = part / part.max(axis=1, keepdims=True)
    share, left = np.zeros(len(part)), np.ones(part.shape[1])
    for _ in range(steps):
        grows = np.array([(left[unit[j] > 0] > 0).all() and share[j] < most[j] for j in range(len(part))])
        more = np.where(grows, weight / weight.max() * 2.0 / steps, 0.0)
        share, left = share + more, left - more @ unit
    return list(share)


@pytest.mark.parametrize("seed", range(3))
def test_fair_shares_are_those_of_small_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    part, weight, most = rng.uniform(0.0, 0.3, (5, 3)), rng.choice([1.0, 2.0], 5), rng.uniform(0.05, 0.6, 5)

    assert fair_dominant_shares(part, weight, most) == pytest.approx(by_small_steps(part, weight, most), abs=4e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_is_the_best_of_all_combinations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dorm = Dorm(unfairness=(0.02, 0.1, 0.3)[seed % 3], adjusted=(0.0, 0.2, 0.5, 1.0)[seed % 4])
    problem = elastic(seed)
    monkeypatch.setitem(globals(), "by_small_steps", fair_dominant_shares)  # checked above, here without its error
    answer = dorm.allocate(problem)

    served, best = Brute(problem, dorm).best()
    assert sorted(np.flatnonzero(answer.job_share.sum(axis=1)).tolist()) == sorted(served)
    assert answer.certificate.objective == pytest.approx(best, abs=1e-7)
    assert answer.certificate.gap <= 1e-8


def after(problem: AllocationProblem, answer: Allocation) -> AllocationProblem:
    """The problem when every job runs where the answer put it."""
    held, gpus = np.full(problem.job_count, -1), np.zeros(problem.job_count)
    assert answer.next_round is not None
    for row, t in answer.next_round.tolist():
        job = int(problem.member_job[np.searchsorted(problem.member_configuration, row)])
        held[job], gpus[job] = t, problem.gpus_occupied[row]
    return replace(problem, gpu_type_held=held, gpus_held=gpus)


@pytest.mark.parametrize("seed", range(10))
def test_running_jobs_continue_and_few_are_adjusted(seed: int) -> None:
    problem, dorm = replace(elastic(seed, jobs=6), gpu_type_held=np.full(6, -1)), Dorm(adjusted=0.2)
    now = after(problem, dorm.allocate(problem))
    later = after(now, dorm.allocate(replace(now, weight=now.weight[::-1].copy())))
    runs = now.gpu_type_held >= 0

    changed = (later.gpu_type_held != now.gpu_type_held) | (later.gpus_held != now.gpus_held)
    assert (later.gpu_type_held[runs] >= 0).all()
    assert (changed & runs).sum() <= math.ceil(0.2 * runs.sum())


def test_a_waiting_job_starts_on_gpus_of_a_running_one() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [4], [[1.0], [1.0]], gpu_type_held=[0, -1], gpus_held=[4, 0])
    problem = problem.with_sizes({job: [Size(2, efficiency=0.9), Size(4, efficiency=0.8)] for job in "ab"})

    assert Dorm().allocate(problem).by_size()["gpus"].tolist() == [2.0, 2.0]
    assert Dorm(adjusted=0.0).allocate(problem).by_size()["gpus"].tolist() == [4.0]  # nothing may change


def test_without_the_bound_of_unfairness_the_larger_job_takes_the_cluster() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [6], [[1.0], [1.0]])
    sizes = {"a": [Size(2, efficiency=0.9)], "b": [Size(3, efficiency=0.8), Size(5, efficiency=0.7)]}
    problem = problem.with_sizes(sizes)

    assert sorted(Dorm(unfairness=1.0).allocate(problem).by_size()["gpus"].tolist()) == [1.0, 5.0]
    assert sorted(Dorm(unfairness=0.15).allocate(problem).by_size()["gpus"].tolist()) == [2.0, 3.0]


def test_jobs_that_lose_their_node_wait_in_order() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [2], np.ones((3, 1)), gpu_type_held=0, gpus_held=1)

    assert Dorm(adjusted=0.0).allocate(problem).job_share.sum(axis=1).tolist() == [1.0, 1.0, 0.0]


def test_many_jobs_have_a_stated_gap() -> None:
    rng = np.random.default_rng(0)
    ids = [f"j{row}" for row in range(40)]
    problem = AllocationProblem.of(ids, ["a", "b"], [32, 32], np.ones((40, 2)), weight=rng.uniform(1.0, 2.0, 40))
    answer = Dorm().allocate(problem.with_sizes({job: [Size(g, efficiency=0.9) for g in (2, 4, 8)] for job in ids}))

    assert answer.certificate.bound >= answer.certificate.objective
    assert answer.certificate.gap <= 0.05
    assert answer.certificate.violation == 0


def test_no_choice_and_no_answer() -> None:
    none = best_of_each(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 1)), np.ones(1))

    assert none is not None
    assert none.chosen.tolist() == []
    assert best_of_each(np.zeros(1, np.int64), np.ones(1), np.full((1, 1), 2.0), np.ones(1)) is None


@pytest.mark.parametrize("name", ["unfairness", "adjusted"])
def test_refuses_parameters(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} must be in"):
        Dorm(**{name: 1.5})


@pytest.mark.slow
def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(12, rate_jobs_per_h=6.0), table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("dorm")], throughputs=table)["dorm"]

    assert found.metrics.jobs_unfinished == 0
