"""Lucid against plain loops, its sharing scores, and that it never preempts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.lucid import Lucid, service_gpu_s, sharing_scores
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs
from tests.policies.queue_simulator import DumbJob, finish_rounds, random_jobs, simulated_rounds, that_fit

FEW = 4
TRACES = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]
Runs = dict[frozenset[int], int]  # type by the jobs of a group


def random_problem(seed: int) -> AllocationProblem:
    """Up to nine jobs, some of which run already, alone; pairs of equal gangs slow each other by 0 to 40 %."""
    rng = np.random.default_rng(seed)
    J = int(rng.integers(1, 10))
    gpus, counts = rng.choice([1, 1, 2], J), rng.integers(1, 5, 2)
    held, free = np.full(J, -1), counts.copy()
    for job in range(J):
        t = int(rng.integers(0, 2))
        if rng.random() < 0.4 and gpus[job] <= free[t]:
            held[job], free[t] = t, free[t] - gpus[job]
    p = AllocationProblem.of(
        [f"j{row}" for row in range(J)], ["v100", "k80"], counts, rng.uniform(1.0, 8.0, (J, 2)),
        gpus=gpus, steps_remaining=100.0, steps_total=rng.uniform(1e2, 1e4, J), gpu_type_held=held,
    )  # fmt: skip
    pairs = [(i, k) for i in range(J) for k in range(i + 1, J) if gpus[i] == gpus[k] and rng.random() < 0.8]
    kept = 1.0 - rng.uniform(0.0, 0.1, J)[np.array(pairs, dtype=np.int64).reshape(-1, 2)] * rng.integers(1, 5)
    rates = p.member_rate_steps_per_s[np.array(pairs, dtype=np.int64).reshape(-1, 2)]
    return p.with_pairs(pairs, rates * kept[:, :, None])


def scores(p: AllocationProblem) -> list[int]:
    kept: list[list[float]] = [[] for _ in p.job_ids]
    for c, members in enumerate(p.configuration_members()):
        for k, job in enumerate(members if len(members) == 2 else ()):
            row = int(np.flatnonzero(p.member_configuration == c)[k])
            kept[job] += (p.member_rate_steps_per_s[row] / p.rate_alone_steps_per_s[job]).tolist()
    means = [round(sum(each) / len(each), 9) if each else 0.0 for each in kept]
    return [0 if mean >= 0.95 else 1 if mean >= 0.85 else 2 for mean in means]


def by_loops(p: AllocationProblem, capacity: int) -> Runs:
    """What runs, without memory."""
    gpus, free = p.gpus_asked, p.gpu_counts.copy()
    pairs = {frozenset(members) for members in p.configuration_members() if len(members) == 2}
    long = [gpus[j] * p.steps_total[j] / max(p.rate_alone_steps_per_s[j]) for j in range(p.job_count)]
    runs: Runs = {}
    for job in range(p.job_count):
        if p.gpu_type_held[job] >= 0:
            runs[frozenset([job])] = int(p.gpu_type_held[job])
            free[p.gpu_type_held[job]] -= gpus[job]
    able = [j for j in range(p.job_count) if gpus[j] <= p.gpu_counts.max() and p.gpu_type_held[j] < 0]
    waiting = sorted(able, key=lambda j: long[j])

    def alone(job: int, into: Runs, left: np.ndarray) -> bool:
        fits = [t for t in range(2) if gpus[job] <= left[t]]
        if fits:
            best = max(fits, key=lambda t: (p.rate_alone_steps_per_s[job, t], left[t]))
            into[frozenset([job])] = best
            left[best] -= gpus[job]
        return bool(fits)

    scratch = free.copy()
    if min([alone(job, {}, scratch) for job in waiting], default=True):
        capacity = -1
    score = scores(p)
    for job in waiting:
        partner = next(
            (
                other
                for group in runs
                if len(group) == 1
                for other in group
                if score[job] + score[other] <= capacity and long[job] <= 2 * long[other] and {job, other} in pairs
            ),
            None,
        )
        if partner is None:
            alone(job, runs, free)
        else:
            runs = {group | {job} if partner in group else group: t for group, t in runs.items()}
    return runs


def running(p: AllocationProblem, share: np.ndarray) -> Runs:
    members = p.configuration_members()
    return {frozenset(members[row]): int(t) for row, t in np.argwhere(share)}


@pytest.mark.parametrize("capacity", [0, 2, 4])
@pytest.mark.parametrize("seed", TRACES)
def test_groups_are_those_of_plain_loops(seed: int, capacity: int) -> None:
    p = random_problem(seed)

    assert running(p, Lucid(sharing_capacity=capacity).allocate(p).share) == by_loops(p, capacity)


def lucid_rounds(present: list[DumbJob], now: int) -> list[DumbJob]:
    """Without pairs: shortest service first, without preemption."""
    started = [job for job in present if job.is_running]
    waiting = sorted((job for job in present if not job.is_running), key=lambda job: job.length * job.gpus)
    return that_fit(started + waiting)


@pytest.mark.parametrize("seed", TRACES)
def test_simulation_is_that_of_a_dumb_one(seed: int) -> None:
    assert simulated_rounds(random_jobs(seed), "lucid") == finish_rounds(random_jobs(seed), lucid_rounds)


def test_pairs_of_the_memory_stay_pairs_until_one_ends() -> None:
    p = AllocationProblem.of("abc", ["v100"], [1], np.full((3, 1), 4.0), steps_total=[90.0, 80.0, 70.0])
    p = p.with_pairs([(0, 1), (0, 2), (1, 2)], np.full((3, 2, 1), 3.9))
    first = Lucid().allocate(p)
    both = running(p, first.share)
    later = replace(p, gpu_type_held=np.where(np.isin(range(3), list(*both)), 0, -1), memory=first.memory)
    left = replace(later, job_ids=("new", "b", "c"), gpu_type_held=np.array([-1, 0, -1]))

    assert both == {frozenset({1, 2}): 0}
    assert json.loads(first.memory) == {"b": "c", "c": "b"}
    assert running(p, Lucid().allocate(later).share) == both
    assert len(next(iter(running(p, Lucid().allocate(left).share)))) == 2, "b may share again"


@pytest.mark.parametrize(("kept", "score"), [(0.95, 0), (0.949, 1), (0.85, 1), (0.849, 2)])
def test_score_is_by_the_average_rate_in_pairs(kept: float, score: int) -> None:
    p = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [2.0], [1.0]])

    paired = p.with_pairs([(0, 1)], [[[4.0 * kept], [2.0 * kept]]])

    assert sharing_scores(paired).tolist() == [score, score, 2]


def test_a_long_job_does_not_join_a_short_one() -> None:
    p = AllocationProblem.of("ab", ["v100"], [1], [[1.0], [1.0]], steps_total=[100.0, 201.0], gpu_type_held=[0, -1])
    p = p.with_pairs([(0, 1)], [[[1.0], [1.0]]])

    assert running(p, Lucid().allocate(p).share) == {frozenset({0}): 0}
    assert len(running(p, Lucid().allocate(replace(p, steps_total=np.array([101.0, 201.0]))).share)) == 1
    assert service_gpu_s(p).tolist() == [100.0, 201.0]


def test_refuses_parameters() -> None:
    with pytest.raises(InvalidInput, match="sharing_capacity must be a whole number"):
        Lucid(sharing_capacity=1.5)


@pytest.mark.slow
def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(12, rate_jobs_per_h=6.0), table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("lucid")], throughputs=table)["lucid"]

    assert found.metrics.jobs_unfinished == 0
