"""Finish times of jobs that are all distinct, by kernels from the problem's arrays to the certificate.

What finish_time.py computes with a program of classes and entries, without them, to the last byte: sums stay numpy's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import ladder
from gavelpy.solve.certificate import DEFICIT, DUST, GAP_MAX, NOISE, VIOLATION_MAX, Answer, rate_steps_per_s
from gavelpy.solve.finish_time import check_lengths
from gavelpy.solve.finish_time_search import KIND, Curves, Rising, prices_of_own
from gavelpy.solve.objective import MinMaxFinishTime
from gavelpy.solve.prices.distinct import few_are_near
from gavelpy.solve.prices.highest_level import highest
from gavelpy.solve.prices.starting_prices import NEWTON_MIN
from gavelpy.solve.prices.table import Table, fixed
from gavelpy.solve.prices.vertex import Mix
from gavelpy.solve.program import APART
from gavelpy.solve.solver import Solver

TYPES_MAX = 7  # with more, numpy adds in another order


class _Jobs(NamedTuple):
    """The jobs, all of which can run and are distinct, in a cluster whose types are all of use."""

    best: Floats  # (J,) steps/s
    table: Table
    curves: Curves
    per_gpu: Floats  # (J, T) increase of a job's highest rate


def best_finish_time_of_distinct(
    problem: AllocationProblem, objective: MinMaxFinishTime, solver: Solver
) -> Answer | None:
    """The best certified shares; None if jobs are equal, nearly equal or cannot run, or if there is no certificate."""
    check_lengths(problem, objective)
    if not problem.job_count >= NEWTON_MIN or len(problem.gpu_types) > TYPES_MAX:
        return None
    figures = (problem.member_rate_steps_per_s, objective.steps, objective.age_s, objective.isolated_s)
    if ladder.asks_for_nearly_equal(problem, objective) and not all(map(few_are_near, figures)):
        return None
    jobs = _jobs_of(problem, objective)
    if jobs is None:
        return None
    try:
        mix = highest(jobs.table, Rising(jobs.curves), jobs.table.count, solver, KIND)
    except SolverFailed:  # the other road counts failures
        return None
    if mix is None or not -np.inf < mix.level < np.inf:
        return None
    return _proved(problem, jobs, mix, _cleaned(problem, jobs, mix))


def _jobs_of(problem: AllocationProblem, objective: MinMaxFinishTime) -> _Jobs | None:
    """The jobs; None unless all can run and are distinct, and every type has GPUs and is of use."""
    from gavelpy.solve.prices.curve_kernels import tabled
    from gavelpy.solve.prices.problem_kernels import are_apart

    rate, counts = problem.member_rate_steps_per_s, problem.gpu_counts
    J, T = rate.shape
    if not (counts.min() > 0 and rate.flags.c_contiguous):
        return None
    (best, load, isolated, age, cap, total), scaled, per_gpu = np.empty((6, J)), np.empty((J, T)), np.empty((J, T))
    given = map(fixed, (rate, problem.gpus_occupied, counts, objective.steps, objective.age_s, objective.isolated_s))
    if not tabled(*given, best, scaled, load, isolated, age, cap, per_gpu, total):
        return None
    total.sort()
    if not are_apart(total, APART):
        return None
    table = Table(scaled, load, np.ones(J), counts, gain=np.zeros((0, T)))
    return _Jobs(best, table, Curves(isolated, age, cap), per_gpu)


def _cleaned(problem: AllocationProblem, jobs: _Jobs, mix: Mix) -> Floats:
    """The times (J, T) without rounding, as `certificate.repaired` writes them."""
    from gavelpy.solve.prices.curve_kernels import cleaned

    share = np.array(mix.time)
    needs = jobs.curves.targets(-mix.level)
    cleaned(fixed(problem.member_rate_steps_per_s), fixed(jobs.best), needs, NOISE, DUST, DEFICIT, share)
    over = np.maximum(np.einsum("ct->c", share), 1.0)
    if over.max() > 1.0:
        share = share / over[:, None]
    used, amount = problem.used(share), problem.gpu_counts
    return share * np.where(used > amount, amount / used, 1.0) if (used > amount).any() else share


def _proved(problem: AllocationProblem, jobs: _Jobs, mix: Mix, share: Floats) -> Answer | None:
    """The certified answer, as in finish_time.py; None if the gap is too large."""
    from gavelpy.solve.prices.curve_kernels import ratios_of, worths_of

    curves, W, J = jobs.curves, problem.gpu_counts, len(share)
    weight, budget, rates = np.empty(J), np.empty(J), rate_steps_per_s(problem, share)
    rate, gpus, best = (fixed(a) for a in (problem.member_rate_steps_per_s, problem.gpus_occupied, jobs.best))
    worths_of(rate, gpus, best, mix.steepness, mix.price, weight, budget)
    worth = float(mix.price @ W)
    bound = float(budget.sum() + mix.price @ W)
    root = curves.root(weight, bound - worth, worth, near=-mix.level)[0]
    worst, others, own, rates_fall = ratios_of(curves.isolated, curves.age, curves.cap, best, rates, root, GAP_MAX)
    least = max(root, own)
    over = (np.einsum("ct->c", share) - 1.0).max()
    violation = max(0.0, float(over), float(((problem.used(share) - W) / W).max()))
    prices = mix.price / (root**2 * float(weight @ rates_fall)) if root > own else prices_of_own(jobs.per_gpu, curves)
    gap = abs(worst - least) / least
    if not (violation <= VIOLATION_MAX and gap <= GAP_MAX and (others - root) / root <= GAP_MAX):
        return None
    return Answer(share, prices, Certificate(1.0 / worst, 1.0 / least, gap, violation, "prices", solve_s=0.0))
