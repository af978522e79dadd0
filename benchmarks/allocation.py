"""Max-min fairness over n distinct jobs: ours (HiGHS arrays, certified) against the same formulation in cvxpy + ECOS.

Both in this process, in turn; medians; the peer without its first call, which loads it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.solve.solver import Solver

T = TypeVar("T")
SIZES = (32, 128, 512, 2048)
RUNS = 5
SEED = 0


def run() -> None:
    """A line a size."""
    import cvxpy  # noqa: F401  loaded before anything is timed

    print(f"seed {SEED}, 3 GPU types, n / 4 GPUs of each, median of {RUNS}")
    head = ("n", "ours ms", "warm ms", "peer ms", "ratio", "gap", "path", "objectives differ by")
    print("{:>6} {:>9} {:>9} {:>9} {:>7} {:>9}  {:11} {}".format(*head))
    for n in SIZES:
        problem = make_problem(n)
        solver = Solver()
        cold_s, ours = timed(lambda p=problem: MaxMinFairness().allocate(p))
        warm_s, _ = timed(lambda p=problem, s=solver: MaxMinFairness().allocate(p, s))
        peer_s, theirs = timed(lambda p=problem: peer(p))
        certificate = ours.certificate
        apart = abs(theirs - certificate.objective) / certificate.objective
        print(
            f"{n:6} {cold_s * 1e3:9.2f} {warm_s * 1e3:9.2f} {peer_s * 1e3:9.2f} {peer_s / cold_s:7.1f} "
            f"{certificate.gap:9.1e}  {certificate.path:11} {apart:.1e}"
        )


def make_problem(n: int) -> AllocationProblem:
    """n distinct one-GPU jobs, faster on newer types by factors of 1 to 10."""
    rng = np.random.default_rng(SEED)
    slow = rng.uniform(0.5, 20.0, n)
    rates = slow[:, None] * np.cumprod(np.column_stack([np.ones(n), rng.uniform(1, 3.3, (n, 2))]), axis=1)
    return AllocationProblem.of(
        [f"j{i}" for i in range(n)], ["v100", "p100", "k80"], [max(n // 4, 1)] * 3, rates[:, ::-1]
    )


def peer(problem: AllocationProblem) -> float:
    """The optimum by cvxpy + ECOS, formulated as the original does."""
    import cvxpy as cp

    rates, gpus = problem.rate_alone_steps_per_s, problem.gpus_asked
    scale = gpus / (problem.weight * equal_share_rate(problem))
    share = cp.Variable(rates.shape, nonneg=True)
    level = cp.min(cp.multiply(scale, cp.sum(cp.multiply(rates, share), axis=1)))
    limits = [cp.sum(share, axis=1) <= 1, gpus @ share <= problem.gpu_counts]
    return float(cp.Problem(cp.Maximize(level), limits).solve(solver=cp.ECOS))


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Median seconds of RUNS calls after one that does not count, and the last answer."""
    answer = call()
    times = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        answer = call()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times), answer
