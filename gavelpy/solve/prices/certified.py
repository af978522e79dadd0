"""The certificate of an answer by prices, in one pass over the problem's own arrays, and rays that refute floors."""

from __future__ import annotations

import math

import numpy as np

from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats
from gavelpy.solve.certificate import NOISE, Answer, Duals, floors_of
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.prices.newton import Dual
from gavelpy.solve.prices.table import Fixed, Jobs, Tally, kernels, search_kernels
from gavelpy.solve.solver import NUMPY_ROWS_MAX


def proved(
    jobs: Jobs, objective: LinearObjective, time: Floats, steepness: Floats, price: Floats, by: str = "prices"
) -> Answer:
    """Shares of the problem from times (K, T') of the table, with the certificate from prices (T',) and duals (K,)."""
    problem = jobs.problem
    if isinstance(objective, MaxMin) and len(objective.count):  # of all jobs of a row
        steepness = steepness * jobs.table.count
    is_distinct = jobs.classes is None and jobs.rows is None and jobs.types is None
    if is_distinct and (len(time) > NUMPY_ROWS_MAX or search_kernels()) and time.flags.c_contiguous:
        return _of_distinct(jobs, objective, time, steepness, price, by)
    none = np.zeros(problem.job_count)
    time[time < NOISE] = 0.0
    share, prices = jobs.all_types(jobs.per_job(time)), jobs.all_types(price)
    best = jobs.best_steps_per_s
    weight = np.divide(jobs.per_job(steepness), best, out=np.zeros(len(best)), where=best > 0)
    rate, gpus, W = problem.member_rate_steps_per_s, problem.gpus_occupied, problem.gpu_counts
    if not (W > 0).all():
        rate = np.where(W > 0, rate, 0.0)
    floor, worth = floors_of(objective, len(best)), np.ones(len(W))
    scale = gain = none
    match objective:
        case MaxMin(scale=scale):
            pass
        case MaxSum(gain=gain, gpu_type_worth=given):
            worth = given if len(given) else worth
    t = kernels(len(best)).tally(rate, gpus, share, weight, gain, worth, prices, scale, floor, best)
    path = by if jobs.classes is None else "classes+" + by
    certificate, unit = certificate_of(t, prices, W, is_level=isinstance(objective, MaxMin), path=path)
    if not (W > 0).all():
        prices = np.where(W > 0, prices, _worth_of_the_first(jobs, weight, gain, worth, prices))
    return Answer(share, prices / unit, certificate)


def _of_distinct(
    jobs: Jobs, objective: LinearObjective, time: Floats, steepness: Floats, price: Floats, path: str
) -> Answer:
    """As `proved`, in one kernel, if all jobs can run and are distinct, and all types have GPUs."""
    from gavelpy.solve.prices.numba_kernels import proof

    problem, none = jobs.problem, np.zeros(0)
    scale, gain, worth = none, none, np.ones(len(price))
    match objective:
        case MaxMin(scale=scale):
            pass
        case MaxSum(gain=gain, gpu_type_worth=given):
            worth = given if len(given) else worth
    rate, gpus, floor = problem.member_rate_steps_per_s, problem.gpus_occupied, objective.rate_floor_steps_per_s
    t = proof(rate, gpus, time, steepness, gain, worth, price, scale, floor, jobs.best_steps_per_s, NOISE)
    certificate, unit = certificate_of(t, price, problem.gpu_counts, is_level=isinstance(objective, MaxMin), path=path)
    return Answer(time, price / unit, certificate)


def certificate_of(
    t: Tally, prices: Floats, gpu_counts: Floats, *, is_level: bool, path: str
) -> tuple[Certificate, float]:
    """The certificate of a tally with its prices (T,), and their unit: the duals of a level have a common factor."""
    over = [(used - W) / (W if W > 0 else 1.0) for used, W in zip(t.used.tolist(), gpu_counts.tolist(), strict=True)]
    violation = max(0.0, *over, t.worst_sign, t.worst_time, t.worst_floor)
    value, unit = (t.least, t.weights) if is_level else (t.total, 1.0)
    bound = (t.budgets + float(prices @ gpu_counts) - t.floors) / unit if unit > 0 else math.inf
    gap = 0.0 if bound == value else abs(bound - value) / abs(value) if value else math.inf
    return Certificate(value, bound, gap, violation, path, solve_s=0.0), unit


def _worth_of_the_first(jobs: Jobs, weight: Floats, gain: Floats, worth: Floats, prices: Floats) -> Floats:
    """Value of a GPU of each type, (T,), to a job that needs only one, beyond its time elsewhere."""
    problem = jobs.problem
    gpus, counts = problem.gpus_occupied[:, None], problem.gpu_counts
    dear = problem.member_rate_steps_per_s * (weight[:, None] + gain[:, None] * worth)
    time = np.where(counts > 0, dear - gpus * prices, 0.0).max(axis=1, initial=0.0)
    beyond = np.where((gpus <= 1) & (jobs.best_steps_per_s > 0)[:, None], (dear - time[:, None]) / gpus, 0.0)
    return np.asarray(beyond.max(axis=0, initial=0.0))


def ray_at(jobs: Jobs, price: Floats) -> Duals:
    """The marginal costs of the floors at these prices, (T',), as duals of the problem, up to a factor."""
    table, floor = jobs.table, jobs.floor  # without gains
    price = price / (price.max(initial=0.0) or 1.0)
    s = Dual(table, Fixed(floor)).swept(price, 0.0)
    steepness = kernels(len(floor)).settle(table, s.low, s.high, floor, price)[1]
    best, none = jobs.best_steps_per_s, np.zeros(jobs.problem.job_count)
    weight = np.divide(jobs.per_job(steepness), best, out=none.copy(), where=best > 0)
    return Duals(level=none, floor=weight, budget=none, price=jobs.all_types(price))
