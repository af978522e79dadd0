"""Problems for tests of the solver layer: drawn by hypothesis, or from a seed."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gavelpy.model.problem import AllocationProblem


@st.composite
def allocation_problems(draw: st.DrawFn, *, decades: int = 2, coarse: bool = False) -> AllocationProblem:
    """Up to 8 jobs on up to 4 types: zero rates, equal jobs, oversized gangs, types without GPUs, pairs.

    `coarse`: no two rates differ by a tiny amount, so that little of one goal cannot be traded for much of another.
    """
    jobs, types = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    fine = st.floats(-decades, decades).map(lambda e: round(10.0**e, 9))
    rate = st.one_of(st.just(0.0), st.integers(-3 * decades, 3 * decades).map(lambda e: 2.0**e) if coarse else fine)
    kinds = draw(st.lists(st.lists(rate, min_size=types, max_size=types), min_size=1, max_size=jobs))
    rates = np.array([kinds[draw(st.integers(0, len(kinds) - 1))] for _ in range(jobs)])
    problem = AllocationProblem.of(
        [f"job-{i}" for i in range(jobs)],
        [f"type-{i}" for i in range(types)],
        draw(st.lists(st.integers(0, 6), min_size=types, max_size=types)),
        rates,
        gpus=draw(st.lists(st.sampled_from([1, 1, 2, 4, 8]), min_size=jobs, max_size=jobs)),
        weight=draw(st.lists(st.sampled_from([1e-3, 1.0, 5.0, 1e3]), min_size=jobs, max_size=jobs)),
        steps_remaining=draw(st.lists(st.floats(1.0, 1e7), min_size=jobs, max_size=jobs)),
    )
    factor = draw(st.sampled_from([0.3, 0.6, 0.9]) if coarse else st.floats(0.1, 1.0))
    return _with_pairs(problem, factor) if draw(st.booleans()) else problem


def random_problem(seed: int, *, jobs: int, types: int = 3, job_types: int = 0) -> AllocationProblem:
    """Jobs with rates within a factor of 200, all distinct or of `job_types` kinds; about two GPUs for three jobs."""
    rng = np.random.default_rng(seed)
    kinds = job_types or jobs
    rates = rng.uniform(0.5, 20.0, (kinds, 1)) * rng.uniform(0.1, 1.0, (kinds, types))
    gpus = rng.choice([1, 1, 1, 2, 4], kinds)
    kind = rng.integers(0, kinds, jobs) if job_types else np.arange(jobs)
    return AllocationProblem.of(
        [f"job-{i}" for i in range(jobs)],
        [f"type-{i}" for i in range(types)],
        rng.integers(4, max(6, jobs // 4), types),
        rates[kind],
        gpus=gpus[kind],
        steps_remaining=rng.uniform(1e2, 1e6, jobs),
    )


def small_problem(seed: int, *, decades: float = 2.0) -> AllocationProblem:
    """Up to 6 jobs on up to 3 types, for exact computations: rates have few digits and span 2 * `decades` decades.

    Zero rates, equal jobs, weights from 1e-3 to 1e3, gangs larger than a type, types without GPUs, idle clusters,
    pairs.
    """
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    kinds = int(rng.integers(1, jobs + 1))
    rates = rng.integers(4, 8, (kinds, types)) * 2.0 ** np.rint(rng.uniform(-decades, decades, (kinds, types)) * 3.32)
    rates = np.where(rng.random(rates.shape) < 0.2, 0.0, rates)[rng.integers(0, kinds, jobs)]
    problem = AllocationProblem.of(
        [f"job-{i}" for i in range(jobs)],
        [f"type-{i}" for i in range(types)],
        rng.integers(0, 12 if rng.random() < 0.2 else 5, types),
        rates,
        gpus=rng.choice([1, 1, 2, 4, 8], jobs),
        weight=2.0 ** np.rint(rng.uniform(-10, 10, jobs)) if rng.random() < 0.5 else rng.choice([1.0, 1.0, 5.0], jobs),
    )
    return _with_pairs(problem, 0.625) if rng.random() < 0.3 else problem


def _with_pairs(problem: AllocationProblem, factor: float) -> AllocationProblem:
    gpus, jobs = problem.gpus_asked, range(problem.job_count)
    pairs = [(i, k) for i in jobs for k in jobs if i < k and gpus[i] == gpus[k]]
    return problem.with_pairs(
        pairs, factor * problem.member_rate_steps_per_s[np.array(pairs, dtype=np.int64).reshape(-1, 2)]
    )
