"""The least finish-time ratio: the root of a function of one number, where each evaluation is a linear program.

A ratio ρ is feasible if every job gets its need_j(ρ) = steps_j / (ρ isolated_j - age_j). A job at its best rate cannot
be improved, whatever the others get, so its target is the lesser of need and best rate, and it does not limit the
others. The LP computes how many times the cluster, s, the targets at ρ need:

    minimise s   with   r_j(x) >= target_j(ρ),   time budgets,   GPUs in use of each type <= s W_t.

Its duals (λ on rates, μ on budgets, prices p with p·W = 1) are valid for any ρ: Σ λ_j target_j(ρ) <= s + Σ μ_j. The
left side falls in ρ, so the ρ at which it is 1 + Σ μ_j is a lower bound and the next ρ to try. Every step gives another
dual vertex, so the search rises to the root and ends there: Newton's method, with each job's curve instead of its
tangent. From one step to the next only the targets change, and HiGHS continues from its basis.

If a job is faster with a partner than alone, best rates may exclude each other: two jobs cannot both have the same
partner all the time, however large the cluster is. Then the LP computes which part of all best rates must be given up,
with the true cluster:

    minimise s   with   r_j(x) >= target_j(ρ) - s best_j,   time budgets,   GPUs in use of each type <= W_t.

Its duals prove Σ λ_j target_j(ρ) <= Σ μ_j + p·W for every feasible ρ, and the search is the same.

The objective is 1 / the largest ratio: that of the root, or of a job whose own best rate leaves it worse off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem
from gavelpy.solve.certificate import (
    EVEN_SPLIT,
    GAP_MAX,
    VIOLATION_MAX,
    Answer,
    Candidate,
    Duals,
    best_of,
    certified,
    even_duals,
    even_shares,
    failed,
    rate_steps_per_s,
    repaired,
)
from gavelpy.solve.finish_time_search import KIND, Curves, Rising, by_highs, prices_of_own
from gavelpy.solve.objective import MaxSum, MinMaxFinishTime
from gavelpy.solve.prices.height import height
from gavelpy.solve.prices.starting_prices import NEWTON_MIN
from gavelpy.solve.program import Program, best_rate_steps_per_s, program_of
from gavelpy.solve.solver import CAREFUL, NUMPY_ROWS_MAX, QUICK, HighsEffort, Solver

_FEW_TYPES = 4  # devex pricing saves a third of the time up to this number; with 8 types it takes half as much again
_KERNEL_TYPES_MAX = 7  # with more, numpy adds in another order
_SLACK = 5e-9


def best_finish_time(problem: AllocationProblem, objective: MinMaxFinishTime, solver: Solver) -> Answer:
    """Shares that minimise the largest finish-time ratio, with a warning if they cannot be certified."""
    check_lengths(problem, objective)
    best = best_rate_steps_per_s(problem)
    unit_s = objective.steps / np.where(best > 0, best, 1.0)  # of each job: the duration of its steps at its best rate
    isolated, age = objective.isolated_s / unit_s, objective.age_s / unit_s
    program = program_of(problem, isolated / np.where(best > 0, best, 1.0), age * best)
    jobs, (cap, per_gpu) = program.jobs, best_alone(program)
    curves = Curves(isolated[jobs], age[jobs], cap)
    prefix = "classes+" if len(program.value) < len(jobs) else ""
    fallen: dict[str, str] = {}  # rung -> reason of its failure
    feasible: list[Answer] = []
    uneven: list[Answer] = []
    for name, kept, rung in _rungs(program, curves):
        try:
            candidate = rung(solver)
        except SolverFailed as failure:
            fallen[name] = failure.status
        else:
            path = " after ".join([prefix + name, *reversed(fallen)])
            answer, evenness = _proved(program, curves, per_gpu, candidate, kept, path)
            c = answer.certificate
            if c.violation <= VIOLATION_MAX:
                if c.gap <= GAP_MAX and evenness <= GAP_MAX:
                    return answer
                (uneven if c.gap <= GAP_MAX else feasible).append(answer)
            fallen[name] = f"gap {c.gap:.1e}, of the rest {evenness:.1e}, violation {c.violation:.1e}"
        solver.falls[name] += 1
    if uneven:  # only slightly, and the objective is certified
        return uneven[0]
    if not feasible:
        even = Candidate(even_shares(program), even_duals(program), math.inf)
        even = replace(even, duals=replace(even.duals, floor=even.duals.level, level=even.duals.floor))
        feasible.append(_proved(program, curves, per_gpu, even, 0.0, EVEN_SPLIT)[0])
    return best_of(feasible, fallen, GAP_MAX)


def best_alone(program: Program) -> tuple[Floats, Floats]:
    """Highest possible rate of each of the R jobs in the cluster, (R,), and its increase per GPU of each type, (R, T).

    Alone or with partners, in units of its best rate alone. A job uses its fastest types first, as far as their GPUs
    allow, until its time is full; one more GPU replaces the slowest. For a job that may run on several numbers of GPUs
    this is an upper bound.
    """
    return _best_in(program, np.arange(len(program.problem.member_job)))


def _best_by_itself(program: Program) -> Floats:
    """Highest rates without partners, (R,): all of them are feasible together, given enough GPUs."""
    problem = program.problem
    return _best_in(program, np.flatnonzero(problem.member_count[problem.member_configuration] == 1))[0]


def _best_in(program: Program, members: Ints) -> tuple[Floats, Floats]:
    """`best_alone` with these memberships only."""
    p = program.problem
    if p.runs_alone:
        rate, gpus = np.where(program.admissible, p.member_rate_steps_per_s, 0.0), p.gpus_occupied
    else:
        rate, gpus = np.zeros(p.rate_alone_steps_per_s.shape), np.full(p.job_count, np.inf)
        possible = program.admissible[p.member_configuration[members]]
        np.maximum.at(rate, p.member_job[members], np.where(possible, p.member_rate_steps_per_s[members], 0.0))
        np.minimum.at(gpus, p.member_job[members], p.gpus_occupied[p.member_configuration[members]])
    room = _room(p, members)[program.jobs] if len(p.resources) > 1 else np.inf
    rate = np.maximum(rate, np.where(p.gpu_counts > 0, 0.0, p.rate_alone_steps_per_s))  # rate on a first GPU
    rate = rate[program.jobs] / program.best_rate_steps_per_s[program.jobs, None]
    if p.is_plain and len(rate) > NUMPY_ROWS_MAX and rate.shape[1] <= _KERNEL_TYPES_MAX:
        from gavelpy.solve.prices.curve_kernels import best_alone as best_by_kernel  # loads numba

        best, per_gpu = np.empty(len(rate)), np.empty(rate.shape)
        best_by_kernel(rate, gpus[program.jobs], p.gpu_counts.copy(), best, per_gpu)
        return best, per_gpu
    gpus = gpus[program.jobs, None]
    order = np.argsort(-rate, axis=1, kind="stable")
    fastest = np.take_along_axis(rate, order, axis=1)
    possible_share = np.minimum(np.minimum(p.gpu_counts / gpus, room), 1.0)
    until = np.cumsum(np.take_along_axis(possible_share, order, axis=1), axis=1)
    share = np.diff(np.minimum(until, 1.0), axis=1, prepend=0.0)
    full = until >= 1.0
    slowest = np.where(full.any(axis=1), np.take_along_axis(fastest, full.argmax(axis=1)[:, None], axis=1)[:, 0], 0.0)
    return (fastest * share).sum(axis=1), np.maximum(rate - slowest[:, None], 0.0) / gpus


def _room(p: AllocationProblem, members: Ints) -> Floats:
    """Share of each type that its other resources allow each job in the least of its configurations, (J, T)."""
    room = np.zeros((p.job_count, len(p.gpu_types)))
    need = p.occupied[p.member_configuration[members], None, 1:]
    amount = p.capacity[:, 1:] / THOUSANDTHS
    part = np.where(need > 0, amount / np.where(need > 0, need, 1.0), np.inf).min(axis=2)
    np.maximum.at(room, p.member_job[members], part)
    return room


Rung = Callable[["Solver"], Candidate]


def _rungs(program: Program, curves: Curves) -> Iterator[tuple[str, float, Rung]]:
    """The rungs from fast to robust: name, fraction of the targets, and the function."""
    if program.problem.is_plain and len(program.value) >= NEWTON_MIN:
        yield "prices", 1.0, partial(_by_prices, program, curves)
    exclusive = not program.problem.runs_alone and bool((curves.cap > _best_by_itself(program)).any())
    for effort, slack in _efforts(len(program.problem.gpu_types)):
        kept = 1.0 - slack
        yield effort.name, kept, partial(by_highs, program, curves, effort, kept, exclusive=exclusive)


def _by_prices(program: Program, curves: Curves, solver: Solver) -> Candidate:
    classes, count = curves.taken(program.classes.representative), program.classes.count
    problem, best = program.problem, program.best_rate_steps_per_s
    found = height(program, problem.gpu_counts, Rising(classes), solver, KIND, value=count.astype(np.float64))
    if found is None:
        raise failed(problem, "not found", "prices")
    duals = Duals(
        level=np.zeros(problem.job_count),
        floor=program.per_job(found.worth / count) / np.where(best > 0, best, 1.0),
        budget=np.zeros(problem.job_count),
        price=found.price,
    )
    ratio = -found.level if found.level < np.inf else float(classes.own.min())
    return Candidate(program.shares(found.share), duals, ratio)


def _efforts(type_count: int) -> Iterator[tuple[HighsEffort, float]]:
    """Options of HiGHS, and the part of the targets that is given up.

    Simplex only: if a job needs its best rate, the feasible set has no interior. If two types give it that rate to nine
    digits, pivots are too small for HiGHS: hence the last rung.
    """
    devex = {"simplex_dual_edge_weight_strategy": 1} if type_count <= _FEW_TYPES else {}
    quick = replace(QUICK, options={**QUICK.options, **devex}, interior_columns=math.inf)
    yield quick, 0.0
    yield replace(CAREFUL, interior_columns=math.inf), 0.0
    yield replace(quick, name="slackened"), _SLACK


def _proved(
    program: Program, curves: Curves, per_gpu: Floats, candidate: Candidate, kept: float, path: str
) -> tuple[Answer, float]:
    """The certified answer, and how uneven the jobs are that are not at their best rate.

    `per_gpu` (R, T) is the increase of a job's highest rate per GPU.
    The bound is valid for any duals (certificate.py): Σ λ_j r_j <= Σ μ_j + p·W for all shares.
    """
    problem, jobs, best = program.problem, program.jobs, program.best_rate_steps_per_s
    T = len(problem.gpu_types)
    share = repaired(program, candidate.share, _per_job(program, kept * curves.targets(candidate.level)) * best)
    zero = MaxSum(np.zeros(problem.job_count))  # to bound the sum with λ only
    proof, prices = certified(program, zero, share, candidate.duals, path)
    weight = candidate.duals.floor[jobs] * best[jobs]
    worth = float(candidate.duals.price @ problem.row_capacity)
    root = curves.root(weight, proof.bound - worth, worth, near=candidate.level)[0]
    own = float(curves.own.max())
    rates = rate_steps_per_s(problem, share)[jobs] / best[jobs]
    with np.errstate(divide="ignore"):  # no rate: the ratio is infinite
        ratios = (curves.age + 1.0 / rates) / curves.isolated
    others = ratios[rates < curves.cap * (1.0 - GAP_MAX)].max(initial=root)
    worst, least = float(ratios.max()), max(root, own)
    per_ratio = root**2 * float(weight @ curves.fall(root))  # d(1 / ratio) = d(GPUs) x price / this
    prices = prices / per_ratio if root > own else np.append(prices_of_own(per_gpu, curves), 0.0 * prices[T:])
    certificate = replace(proof, objective=1.0 / worst, bound=1.0 / least, gap=abs(worst - least) / least)
    return Answer(share, prices, certificate), float(others - root) / root


def _per_job(program: Program, figures: Floats) -> Floats:
    """Values of all jobs, (J,), from those of the R jobs that can run; zero for the others."""
    all_jobs: Floats = np.zeros(program.problem.job_count)
    all_jobs[program.jobs] = figures
    return all_jobs


def check_lengths(problem: AllocationProblem, objective: MinMaxFinishTime) -> None:
    """Raises InvalidInput unless the objective has one number for each job."""
    for name in ("steps", "age_s", "isolated_s"):
        values = getattr(objective, name)
        if len(values) != problem.job_count:
            raise InvalidInput(f"{name} must have one entry for each of {problem.job_count} jobs, got {len(values)}")
