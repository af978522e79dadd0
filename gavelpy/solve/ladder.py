"""Computes the best shares for an objective, certified: selects algorithms ("rungs") from fast to robust.

    types       GPU types with equal rates for all jobs become one; always
    classes     equal jobs become one (program.py, packing/partition.py); always; before all else if they are many
                (equal_jobs.py). So do nearly equal ones if the answer is certified for the true jobs to the same gap
    prices      jobs that run alone (prices/). Pivots for up to 63 classes, if there is no level or the slowest job
                limits it; for a sum, or what such a level leaves, for up to 512 classes. Else an exact step from the
                last prices of the `Solver` if the optimum is unique, from prices by HiGHS for up to 255 classes, or
                from those that Newton's method finds. Above 512 classes this step is compiled, and the optimum that is
                to be unique is that with a trace more GPUs. Where numba is loaded, pivots are compiled, and
                so is a search for the prices of a level (numba_search.py); answers are the same, to the last byte
                Sums of logarithms of more than 512 classes: Newton's method on the prices (prices/welfare.py)
                Sizes and several resources of more than 512 classes: the best mix of answers at several prices (sizes/)
    interior    more than 512 classes that run alone: the exact step from a block interior point (interior/), which also
                solves sums of logarithms
    columns     very many configurations of pairs: column generation (packing/)
    highs       HiGHS on the whole linear program, in scaled numbers
    careful     HiGHS with its own scaling and presolve
    cvxpy       other concave objectives

An answer is accepted if its certificate, from our own arithmetic, has gap <= 1e-8 (1e-6 for logarithms by cvxpy and for
water filling) and violation <= 1e-9. Otherwise the next rung solves the problem: `Solver.falls` counts the failure, and
the certificate's path becomes "highs after prices". If no rung succeeds, the best feasible answer is returned, at least
an even split (answer.py), with the gap that is proved and a warning. SolverFailed is raised if no shares are known that
satisfy the rate floors, and at once if a rung returns a Farkas ray that proves that there are none (certificate.py).

Water filling (filling/) and finish times (finish_time.py) solve sequences of such problems, with their own proofs.

*Equal GPU types* are exchangeable GPU by GPU: average any optimum over all permutations of their GPUs, and every job's
time on them is divided in proportion to the GPUs. So they are one type while solving, and no job gets the better
hardware by the choice of a vertex: if the scheduler is blind, jobs rotate, as under the original's agnostic policies.

*Nearly equal jobs.* Measured or estimated rates differ in the tenth digit, so that hundreds of jobs of one kind would
be hundreds of classes. Numbers within BLUR of each other are replaced by the least of them. No true number is lower, so
the shares achieve at least what they achieve in the simpler problem, and no shares achieve more than its bound times (1
+ BLUR) to the power of the number of factors. If that is not good enough, the true problem is solved.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import (
    GAP_MAX,
    GAP_MAX_CONCAVE,
    VIOLATION_MAX,
    Answer,
    failed,
    rate_steps_per_s,
)
from gavelpy.solve.equal_jobs import best_of_equal_jobs
from gavelpy.solve.linear import best_linear
from gavelpy.solve.near_numbers import BLUR, merged_numbers, most_are_apart
from gavelpy.solve.objective import (
    MaxConcave,
    MaxMin,
    MaxMinLexicographic,
    MaxSum,
    MaxSumLog,
    MinMaxFinishTime,
    Objective,
    ProgressiveFilling,
)
from gavelpy.solve.prices.table import search_kernels
from gavelpy.solve.resources import ample_resources, in_all_resources, without_resources
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver

_NONE = np.zeros(0)
_NUMBERS_MAX = 200_000  # above, sorting them takes as long as prices for that many distinct jobs


def solve(problem: AllocationProblem, objective: Objective, solver: Solver | None = None) -> Allocation:
    """The best shares for `objective`, certified. `solver` carries warm state between calls; it changes no answer.

    Jobs that can run nowhere get no share and do not count in the objective. If no rung's answer can be certified, the
    best feasible one is returned, and its certificate has a warning. Raises SolverFailed if no shares are known that
    satisfy the rate floors, with status "infeasible" if it is proved that none do.
    """
    started_s = time.perf_counter()
    solver = Solver() if solver is None else solver
    _check(problem, objective)
    if len(problem.resources) > 1 and (ample := ample_resources(problem)):
        found = in_all_resources(problem, solve(without_resources(problem, ample), objective, solver))
        if found.certificate.violation <= VIOLATION_MAX:
            return found
    group = groups_of_types(problem, getattr(objective, "gpu_type_worth", _NONE))
    if group.max(initial=0) + 1 < len(group):
        return divided(solve(merged(problem, group), objective_of_merged(objective, group), solver), problem, group)
    answer = from_last = _kept(problem, objective, solver)
    if answer is None:
        answer = best_of_equal_jobs(problem, objective, solver) or _best_of_distinct(problem, objective, solver)
        if answer is None:
            answer = _best_of_near(problem, objective, solver) or _best(problem, objective, solver)
        _keep(problem, objective, solver, answer)
    certificate = replace(answer.certificate, solve_s=time.perf_counter() - started_s)
    solver.answers[certificate.path] += 1
    floors: Floats = getattr(objective, "rate_floor_steps_per_s", _NONE)
    others = answer.prices[(T := len(problem.gpu_types)) :].reshape(-1, T).T
    if from_last is not None:  # its arrays have the right shapes, and nothing else refers to them
        return Allocation.of_known(problem, answer.share, answer.prices[:T], certificate, floors, others)
    return Allocation(problem, answer.share, answer.prices[:T], certificate, floors, other_prices=others)


def _kept(problem: AllocationProblem, objective: Objective, solver: Solver) -> Answer | None:
    """The answer from that to the last problem of this kind, if the solver has one and this one is similar."""
    if not (solver.kept and isinstance(objective, MaxMin | MaxSum)):
        return None
    from gavelpy.solve.prices.kept import kept_answer

    return kept_answer(problem, objective, solver)


def _keep(problem: AllocationProblem, objective: Objective, solver: Solver, answer: Answer) -> None:
    """Notes that the next problem of this kind may be answered from this answer."""
    is_large = problem.job_count > NUMPY_ROWS_MAX and isinstance(objective, MaxMin | MaxSum)
    if is_large and answer.certificate.path == "prices":
        solver.kept.setdefault((type(objective).__name__, len(problem.gpu_types)), 0)


def _best_of_distinct(problem: AllocationProblem, objective: Objective, solver: Solver) -> Answer | None:
    """The answer by kernels alone, if they are loaded and all jobs are distinct; None if it is another problem."""
    if not (isinstance(objective, MaxMin | MaxSum | MinMaxFinishTime) and problem.is_plain and search_kernels()):
        return None
    if isinstance(objective, MinMaxFinishTime):
        from gavelpy.solve.finish_time_distinct import best_finish_time_of_distinct

        return best_finish_time_of_distinct(problem, objective, solver)
    from gavelpy.solve.prices.distinct import best_of_distinct

    return best_of_distinct(problem, objective, solver)


def _best_of_near(problem: AllocationProblem, objective: Objective, solver: Solver) -> Answer | None:
    """The answer with nearly equal jobs treated as equal; None if that does not help."""
    near = nearly_equal(problem, objective) if problem.can_run.any() else None
    if near is None:
        return None
    return carried_over(problem, objective, _best(near.problem, near.objective, solver, blur=BLUR))


def _best(problem: AllocationProblem, objective: Objective, solver: Solver, *, blur: float = 0.0) -> Answer:
    if not problem.can_run.any():
        return _nothing_runs(problem)
    match objective:
        case MaxMin() | MaxSum():
            return best_linear(problem, objective, solver)
        case MaxMinLexicographic() | ProgressiveFilling():
            from gavelpy.solve.filling.rungs import best_filling

            return best_filling(problem, objective, solver, blur)
        case MinMaxFinishTime():
            from gavelpy.solve.finish_time import best_finish_time

            return best_finish_time(problem, objective, solver)
        case MaxSumLog() | MaxConcave():
            from gavelpy.solve.concave import best_concave

            return best_concave(problem, objective, solver)


def _nothing_runs(problem: AllocationProblem) -> Answer:
    zero = Certificate(objective=0.0, bound=0.0, gap=0.0, violation=0.0, path="nothing runs", solve_s=0.0)
    return Answer(np.zeros(problem.fits.shape), np.zeros(len(problem.row_capacity)), zero)


def _check(problem: AllocationProblem, objective: Objective) -> None:
    """Raises if an array has the wrong length, or if a job that can run nowhere has a rate floor."""
    J = problem.job_count
    for name in ("scale", "gain", "weight", "rate_floor_steps_per_s", "alike"):
        values = getattr(objective, name, None)
        optional = name in ("rate_floor_steps_per_s", "alike")
        if values is not None and len(values) != J and not (optional and not len(values)):
            raise InvalidInput(f"{name} must have one entry for each of {J} jobs, got {len(values)}")
    worth = getattr(objective, "gpu_type_worth", _NONE)
    if len(worth) not in (0, len(problem.gpu_types)):
        T = len(problem.gpu_types)
        raise InvalidInput(f"gpu_type_worth must be empty or have one entry for each of {T} types, got {len(worth)}")
    floors = getattr(objective, "rate_floor_steps_per_s", _NONE)
    if floors.any() and (promised := (floors > 0) & ~problem.can_run).any():
        job = problem.job_ids[int(np.argmax(promised))]
        raise failed(problem, "infeasible", f"job {job!r} can run nowhere and has a rate floor")


def groups_of_types(problem: AllocationProblem, worth: Floats) -> Ints:
    """Group of each GPU type, (T,), numbered by first appearance; a type without GPUs is a group of its own.

    `worth` (T,) must also be equal within a group; empty = 1 for all.
    """
    rates, gpus = problem.member_rate_steps_per_s, problem.gpu_counts
    if len(worth):
        rates = np.vstack((rates, worth))
    if len(rates) and len(set(rates[-1].tolist())) == len(gpus):  # the usual case: one job distinguishes all types
        return np.arange(len(gpus))
    group: list[int] = []
    leaders: list[int] = []
    for column in range(len(gpus)):
        equal = (
            k
            for k, leader in enumerate(leaders)
            if gpus[leader]
            and np.array_equal(rates[:, leader], rates[:, column])
            and _in_proportion(problem, leader, column)
        )
        found = next(equal, len(leaders)) if gpus[column] else len(leaders)
        if found == len(leaders):
            leaders.append(column)
        group.append(found)
    return np.array(group, dtype=np.int64)


def _in_proportion(problem: AllocationProblem, one: int, other: int) -> bool:
    """Whether the nodes of two types have as much of every resource per GPU."""
    if len(problem.resources) == 1:
        return True
    a, b = problem.capacity[one].tolist(), problem.capacity[other].tolist()  # Python's numbers do not overflow
    return all(x * b[0] == y * a[0] for x, y in zip(a, b, strict=True))


def merged(problem: AllocationProblem, group: Ints) -> AllocationProblem:
    """The problem with one GPU type per group; its name and rates are those of the group's first type."""
    first = np.unique(group, return_index=True)[1]
    capacity = np.zeros((len(first), problem.capacity.shape[1]), dtype=np.int64)
    np.add.at(capacity, group, problem.capacity)
    return replace(
        problem,
        gpu_types=tuple(problem.gpu_types[t] for t in first),
        capacity=capacity,
        member_rate_steps_per_s=problem.member_rate_steps_per_s[:, first],
        price_usd_per_gpu_h=problem.price_usd_per_gpu_h[first],
        gpu_type_held=np.full(problem.job_count, -1),
        gpus_held=np.zeros(problem.job_count),
    )


def objective_of_merged(objective: Objective, group: Ints) -> Objective:
    """The objective of the merged problem: values per type are those of each group's first type."""
    if isinstance(objective, MaxSum) and len(objective.gpu_type_worth):
        return replace(objective, gpu_type_worth=objective.gpu_type_worth[np.unique(group, return_index=True)[1]])
    return objective


def divided(allocation: Allocation, problem: AllocationProblem, group: Ints) -> Allocation:
    """The merged problem's answer for the whole problem: a group's time is divided in proportion to the GPUs."""
    gpus = problem.gpu_counts
    total = np.bincount(group, weights=gpus)[group]
    part = np.divide(gpus, total, out=np.ones_like(gpus), where=total > 0)
    share = allocation.share[:, group] * part
    return replace(
        allocation,
        problem=problem,
        share=share,
        shadow_prices=allocation.shadow_prices[group],
        other_prices=allocation.other_prices[group],
    )


@dataclass(frozen=True, eq=False)
class Near:
    """A problem in which nearly equal jobs are equal, with its objective."""

    problem: AllocationProblem
    objective: Objective


def nearly_equal(problem: AllocationProblem, objective: Objective) -> Near | None:
    """The simpler problem; None if there is none, or if its answer would prove nothing about the true one."""
    if not asks_for_nearly_equal(problem, objective):
        return None
    merged = {name: merged_numbers(getattr(objective, name)) for name in _FIGURES.get(type(objective), ())}
    rates = problem.member_rate_steps_per_s
    differ = (
        not problem.runs_alone and problem.runs_apart and most_are_apart(rates[:, 0])
    )  # on one type: so do the jobs
    merged_rates = None if differ else merged_numbers(rates)
    if merged_rates is None and all(values is None for values in merged.values()):
        return None
    changed: dict[str, Any] = {name: values for name, values in merged.items() if values is not None}
    simpler = problem if merged_rates is None else replace(problem, member_rate_steps_per_s=merged_rates)
    return Near(simpler, replace(objective, **changed) if changed else objective)


def carried_over(problem: AllocationProblem, objective: Objective, answer: Answer) -> Answer | None:
    """The simpler problem's answer, certified for the true problem; None if the gap is too large."""
    c = answer.certificate
    rates = rate_steps_per_s(problem, answer.share)
    value, bound, gap_max = _value(problem, objective, rates, answer), c.bound, GAP_MAX
    match objective:
        case MaxSumLog(weight=weight):
            bound += BLUR * float(weight[problem.can_run].sum())
            gap = abs(bound - value) / max(1.0, abs(value))
            gap_max = GAP_MAX if c.gap <= GAP_MAX else GAP_MAX_CONCAVE
        case MinMaxFinishTime():
            bound *= (1.0 + BLUR) ** 2  # isolated times and rates; higher ages and more steps lower it
            gap = abs(bound - value) / value if value > 0 else np.inf
        case MaxMinLexicographic() | ProgressiveFilling():
            bound *= (1.0 + BLUR) ** 2
            gap, gap_max = max(c.gap, (bound - value) / value if bound > value else 0.0), GAP_MAX_CONCAVE
        case _:
            bound *= (1.0 + BLUR) ** 2
            gap = abs(bound - value) / abs(value) if value else 0.0 if bound == value else np.inf
    if c.warning or not gap <= gap_max:
        return None
    return replace(answer, certificate=Certificate(value, bound, gap, c.violation, c.path, c.solve_s))


_FIGURES: dict[type[Objective], tuple[str, ...]] = {
    MaxMin: ("scale",),
    MaxSum: ("gain",),
    MaxMinLexicographic: ("scale",),
    MinMaxFinishTime: ("steps", "age_s", "isolated_s"),
}


def _can_be_carried_over(objective: Objective) -> bool:
    """Whether a bound follows for the true problem: not with floors or bases, nor for arbitrary concave functions."""
    if any(getattr(objective, name, np.zeros(0)).any() for name in ("rate_floor_steps_per_s", "base_steps_per_s")):
        return False
    return isinstance(objective, (*_FIGURES, MaxSumLog, ProgressiveFilling))


def _value(problem: AllocationProblem, objective: Objective, rates: Floats, answer: Answer) -> float:
    """The objective of the shares in the true problem."""
    runs = problem.can_run
    match objective:
        case MaxMin(scale=scale) | MaxMinLexicographic(scale=scale):
            return float((scale * rates)[runs & (scale > 0)].min())
        case MaxSum(gain=gain, gpu_type_worth=worth):
            return float(gain @ (rate_steps_per_s(problem, answer.share * worth) if len(worth) else rates))
        case MinMaxFinishTime(steps=steps, age_s=age_s, isolated_s=isolated_s):
            finish_s = age_s[runs] + np.divide(
                steps[runs], rates[runs], out=np.full(runs.sum(), np.inf), where=rates[runs] > 0
            )
            return float((isolated_s[runs] / finish_s).min())
        case MaxSumLog(weight=weight):
            return float(weight[runs] @ np.log(rates[runs])) if (rates[runs] > 0).all() else -np.inf
        case ProgressiveFilling(speed=speed):
            speeds = np.where(runs, speed(~runs), 0.0)
            return float((rates[speeds > 0] / speeds[speeds > 0]).min(initial=np.inf)) if speeds.any() else 0.0
    raise AssertionError(objective)


def asks_for_nearly_equal(problem: AllocationProblem, objective: Objective) -> bool:
    """Whether nearly equal jobs of this problem would be treated as equal."""
    return problem.member_rate_steps_per_s.size <= _NUMBERS_MAX and _can_be_carried_over(objective)
