"""Problems with co-located jobs: of few kinds, all distinct, or with three jobs in a configuration."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem


def all_pairs(problem: AllocationProblem) -> list[tuple[int, int]]:
    """All pairs of jobs of equal gang size."""
    gpus = problem.gpus_asked
    return [(i, k) for i, k in combinations(range(problem.job_count), 2) if gpus[i] == gpus[k]]


def of_kinds(kind: list[int], rates: Floats, part: Floats, *, gpus: list[int], counts: list[int]) -> AllocationProblem:
    """Jobs of kinds with `rates` (N, T); a job of kind k paired with one of kind l runs at part[k, l] of its rate."""
    kinds = np.array(kind)
    alone = AllocationProblem.of(
        [f"job-{i}" for i in range(len(kind))],
        [f"type-{t}" for t in range(rates.shape[1])],
        counts,
        rates[kinds],
        gpus=np.array(gpus)[kinds],
    )
    pairs = all_pairs(alone)
    one, other = kinds[np.array(pairs, dtype=np.int64).reshape(-1, 2)].T
    together = np.stack([part[one, other, None] * rates[one], part[other, one, None] * rates[other]], axis=1)
    return alone.with_pairs(pairs, together)


@st.composite
def problems_of_kinds(draw: st.DrawFn) -> tuple[AllocationProblem, Floats]:
    """Up to 9 jobs of up to 3 kinds, every pair listed in any order, and values that are equal for jobs of a kind."""
    kinds, types = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kind = draw(st.lists(st.integers(0, kinds - 1), min_size=1, max_size=9))
    rate = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0])
    rates = np.array(draw(st.lists(st.lists(rate, min_size=types, max_size=types), min_size=kinds, max_size=kinds)))
    parts = st.sampled_from([0.0, 0.3, 0.5, 0.6, 0.8, 1.0])
    part = np.array(draw(st.lists(parts, min_size=kinds * kinds, max_size=kinds * kinds))).reshape(kinds, kinds)
    gpus = draw(st.lists(st.sampled_from([1, 1, 2]), min_size=kinds, max_size=kinds))
    counts = draw(st.lists(st.integers(0, 4), min_size=types, max_size=types))
    problem = of_kinds(kind, rates, part, gpus=gpus, counts=counts)
    value = np.array(draw(st.lists(st.sampled_from([0.2, 1.0, 5.0]), min_size=kinds, max_size=kinds)))
    order = np.array(draw(st.permutations(range(len(problem.member_count) - problem.job_count))), dtype=np.int64)
    return _shuffled(problem, order), value[np.array(kind)]


def distinct(
    seed: int, *, jobs: int, gpus: list[int] | None = None, counts: list[int] | None = None
) -> AllocationProblem:
    """Jobs with distinct rates and distinct slowdowns of all pairs; three GPU types, fewer GPUs than jobs."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.5, 20.0, (jobs, 1)) * rng.uniform(0.1, 1.0, (jobs, 3))
    asked = rng.choice([1, 1, 1, 2, 4], jobs) if gpus is None else np.array(gpus)
    alone = AllocationProblem.of(
        [f"job-{i}" for i in range(jobs)],
        ["a", "b", "c"],
        rng.integers(2, max(4, jobs // 4), 3) if counts is None else counts,
        rates,
        gpus=asked,
        steps_remaining=rng.uniform(1e3, 1e5, jobs),
    )
    pairs = all_pairs(alone)
    part = rng.uniform(0.3, 1.0, (len(pairs), 2, 3))
    return alone.with_pairs(pairs, part * rates[np.array(pairs, dtype=np.int64).reshape(-1, 2)])


def with_groups(problem: AllocationProblem, groups: list[tuple[int, ...]], part: Floats) -> AllocationProblem:
    """The problem plus configurations of any number of jobs, at `part` (T,) of their rates."""
    C = problem.configuration_count
    members = np.array([job for group in groups for job in group], dtype=np.int64)
    of = np.repeat(np.arange(C, C + len(groups)), [len(group) for group in groups])
    demand = problem.demand[[group[0] for group in groups]]
    return replace(
        problem,
        demand=np.concatenate([problem.demand, demand]),
        member_configuration=np.concatenate([problem.member_configuration, of]),
        member_job=np.concatenate([problem.member_job, members]),
        member_rate_steps_per_s=np.concatenate(
            [problem.member_rate_steps_per_s, problem.rate_alone_steps_per_s[members] * part]
        ),
    )


def _shuffled(problem: AllocationProblem, order: np.ndarray) -> AllocationProblem:
    """The same pairs in another order; those at odd places list their jobs in reverse."""
    J = problem.job_count
    jobs = problem.member_job[J:].reshape(-1, 2)[order]
    rates = problem.member_rate_steps_per_s[J:].reshape(len(order), 2, len(problem.gpu_types))[order]
    jobs[1::2], rates[1::2] = jobs[1::2, ::-1].copy(), rates[1::2, ::-1].copy()
    return replace(
        problem,
        demand=np.concatenate([problem.demand[:J], problem.demand[J:][order]]),
        member_job=np.concatenate([problem.member_job[:J], jobs.ravel()]),
        member_rate_steps_per_s=np.concatenate(
            [problem.member_rate_steps_per_s[:J], rates.reshape(2 * len(order), len(problem.gpu_types))]
        ),
    )
