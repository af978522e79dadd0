"""The least finish-time ratio: a root in one number, each step of which is an LP with other row bounds.

A ratio ρ can be had if every job gets its need_j(ρ) = steps_j / (ρ isolated_j - age_j). A job at its best rate cannot
be helped, whatever the others do, so it asks for no more: its target is the lesser of need and best rate, and does not
decide the rest. The LP asks how many times the cluster, s, the targets at ρ would take:

    minimise s   with   r_j(x) >= target_j(ρ),   time budgets,   GPUs in use of each type <= s W_t.

Its duals (λ on rates, μ on budgets, prices p with p·W = 1) hold at any ρ: Σ λ_j target_j(ρ) <= s + Σ μ_j. The left side
falls in ρ, so the ρ at which it is 1 + Σ μ_j is a bound from below, and the next ρ to try. Every step gives another
dual vertex, so the search climbs to the root and ends there: Newton's method, with each job's curve taken as it is
instead of its tangent. From one step to the next only the targets change, and HiGHS goes on from its basis.

Where a job is faster with a partner than alone, best rates may exclude each other: two jobs cannot both have the same
partner all the time, however large the cluster is. Then the LP asks instead which part of all best rates must be given
up, with the cluster as it is:

    minimise s   with   r_j(x) >= target_j(ρ) - s best_j,   time budgets,   GPUs in use of each type <= W_t.

Its duals prove Σ λ_j target_j(ρ) <= Σ μ_j + p·W for every ρ that can be had, and the search is the same.

The objective is 1 / the largest ratio: that of the root, or of a job whose own best rate leaves it worse off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import GAP_MAX, PATH, VIOLATION_MAX, Answer, best_of, even_duals, even_shares
from gavelpy.solve.certificate import Candidate, Duals, certified, failed, rate_steps_per_s, repaired
from gavelpy.solve.finish_time_search import Curves, Rising, by_highs
from gavelpy.solve.objective import MaxSum, MinMaxFinishTime
from gavelpy.solve.prices.highest_level import height
from gavelpy.solve.prices.starting_prices import NEWTON_MIN
from gavelpy.solve.program import Program, best_rate_steps_per_s, program_of
from gavelpy.solve.solver import CAREFUL, QUICK, HighsEffort

if TYPE_CHECKING:
    from gavelpy.solve.solver import Solver

_FEW_TYPES = 4  # up to here devex pricing saves a third of the time; with 8 types it takes half as much again
_SLACK = 5e-9
_DECIDES = 1e-9  # jobs whose own bounds are as close are all the worst


def best_finish_time(problem: AllocationProblem, objective: MinMaxFinishTime, solver: Solver) -> Answer:
    """Shares that minimise the largest finish-time ratio, with a warning where they cannot be certified."""
    _check(problem, objective)
    best = best_rate_steps_per_s(problem)
    unit_s = objective.steps / np.where(best > 0, best, 1.0)  # of each job: the time of its steps at its best rate
    isolated, age = objective.isolated_s / unit_s, objective.age_s / unit_s
    program = program_of(problem, isolated / np.where(best > 0, best, 1.0), age * best)
    jobs, (cap, _) = program.jobs, best_alone(program)
    curves = Curves(isolated[jobs], age[jobs], cap)
    prefix = "classes+" if len(program.value) < len(jobs) else ""
    fallen: dict[str, str] = {}  # rung -> why it did not answer
    feasible: list[Answer] = []
    uneven: list[Answer] = []
    for name, kept, rung in _rungs(program, curves):
        try:
            candidate = rung(solver)
        except SolverFailed as failure:
            fallen[name] = failure.status
        else:
            path = " after ".join([prefix + name, *reversed(fallen)])
            answer, evenness = _proved(program, curves, candidate, kept, path)
            c = answer.certificate
            if c.violation <= VIOLATION_MAX:
                if c.gap <= GAP_MAX and evenness <= GAP_MAX:
                    return answer
                (uneven if c.gap <= GAP_MAX else feasible).append(answer)
            fallen[name] = f"gap {c.gap:.1e}, of the rest {evenness:.1e}, violation {c.violation:.1e}"
        solver.falls[name] += 1
    if uneven:  # by a little, and the objective is proved
        return uneven[0]
    if not feasible:
        even = Candidate(even_shares(program), even_duals(program), math.inf)
        even = replace(even, duals=replace(even.duals, floor=even.duals.level, level=even.duals.floor))
        feasible.append(_proved(program, curves, even, 0.0, PATH)[0])
    return best_of(feasible, fallen, GAP_MAX)


def best_alone(program: Program) -> tuple[Floats, Floats]:
    """The most each of the R jobs could have of the cluster, (R,), and what a GPU more of each type adds to it, (R, T).

    Alone or with partners, in units of its best rate alone. A job takes its fastest types first, each as far as its
    GPUs allow, until its time is full; a GPU more displaces the slowest it uses then. For a job that may run on several
    numbers of GPUs the figure is a bound from above.
    """
    return _best_in(program, np.arange(len(program.problem.member_job)))


def _best_by_itself(program: Program) -> Floats:
    """The same without partners, (R,): these rates can all be had together, if there are GPUs enough."""
    problem = program.problem
    return _best_in(program, np.flatnonzero(problem.member_count[problem.member_configuration] == 1))[0]


def _best_in(program: Program, members: Ints) -> tuple[Floats, Floats]:
    """What `best_alone` says, by these memberships only."""
    p = program.problem
    rate, gpus = np.zeros(p.rate_alone_steps_per_s.shape), np.full(p.job_count, np.inf)
    possible = program.admissible[p.member_configuration[members]]
    np.maximum.at(rate, p.member_job[members], np.where(possible, p.member_rate_steps_per_s[members], 0.0))
    np.minimum.at(gpus, p.member_job[members], p.gpus_occupied[p.member_configuration[members]])
    rate = np.maximum(rate, np.where(p.gpu_counts > 0, 0.0, p.rate_alone_steps_per_s))  # what a first GPU would do
    rate = rate[program.jobs] / program.best_rate_steps_per_s[program.jobs, None]
    gpus = gpus[program.jobs, None]
    order = np.argsort(-rate, axis=1, kind="stable")
    fastest = np.take_along_axis(rate, order, axis=1)
    possible_share = np.minimum(p.gpu_counts / gpus, 1.0)
    until = np.cumsum(np.take_along_axis(possible_share, order, axis=1), axis=1)
    share = np.diff(np.minimum(until, 1.0), axis=1, prepend=0.0)
    full = until >= 1.0
    slowest = np.where(full.any(axis=1), np.take_along_axis(fastest, full.argmax(axis=1)[:, None], axis=1)[:, 0], 0.0)
    return (fastest * share).sum(axis=1), np.maximum(rate - slowest[:, None], 0.0) / gpus


Rung = Callable[["Solver"], Candidate]


def _rungs(program: Program, curves: Curves) -> Iterator[tuple[str, float, Rung]]:
    """The ways to an answer, from quick to sure: name, the part of the targets that is kept, and the way."""
    if program.problem.runs_alone and len(program.value) >= NEWTON_MIN:
        yield "prices", 1.0, partial(_by_prices, program, curves)
    exclusive = not program.problem.runs_alone and bool((curves.cap > _best_by_itself(program)).any())
    for effort, slack in _efforts(len(program.problem.gpu_types)):
        kept = 1.0 - slack
        yield effort.name, kept, partial(by_highs, program, curves, effort, kept, exclusive=exclusive)


def _by_prices(program: Program, curves: Curves, solver: Solver) -> Candidate:
    classes, count = curves.taken(program.classes.representative), program.classes.count
    problem, best = program.problem, program.best_rate_steps_per_s
    found = height(program, problem.gpu_counts, Rising(classes), solver, value=count.astype(np.float64))
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
    """How HiGHS is told to work, and the part of the targets that is given up.

    By simplex alone: where a job must have all it can, there is no interior to walk in. Where it can have that on two
    types alike to nine digits, pivots are too small for HiGHS: hence the last rung.
    """
    devex = {"simplex_dual_edge_weight_strategy": 1} if type_count <= _FEW_TYPES else {}
    quick = replace(QUICK, options={**QUICK.options, **devex}, interior_columns=math.inf)
    yield quick, 0.0
    yield replace(CAREFUL, interior_columns=math.inf), 0.0
    yield replace(quick, name="slackened"), _SLACK


def _proved(program: Program, curves: Curves, candidate: Candidate, kept: float, path: str) -> tuple[Answer, float]:
    """The answer with its proof, and the gap to which the jobs that are not at their best rate are as even as can be.

    The bound is valid for any duals (certificate.py): Σ λ_j r_j <= Σ μ_j + p·W for every shares.
    """
    problem, jobs, best = program.problem, program.jobs, program.best_rate_steps_per_s
    share = repaired(program, candidate.share, _per_job(program, kept * curves.targets(candidate.level)) * best)
    zero = MaxSum(np.zeros(problem.job_count))  # the bound of λ's sum alone
    proof, prices = certified(program, zero, share, candidate.duals, path)
    weight = candidate.duals.floor[jobs] * best[jobs]
    worth = float(candidate.duals.price @ problem.gpu_counts)
    root, own = curves.root(weight, proof.bound - worth, worth)[0], float(curves.own.max())
    rates = rate_steps_per_s(problem, share)[jobs] / best[jobs]
    with np.errstate(divide="ignore"):  # no rate, no finish: infinitely bad
        ratios = (curves.age + 1.0 / rates) / curves.isolated
    others = ratios[rates < curves.cap * (1.0 - GAP_MAX)].max(initial=root)
    worst, least = float(ratios.max()), max(root, own)
    per_ratio = root**2 * float(weight @ curves.fall(root))  # d(1 / ratio) = d(GPUs) x price / this
    prices = prices / per_ratio if root > own else _prices_of_own(program, curves)
    certificate = replace(proof, objective=1.0 / worst, bound=1.0 / least, gap=abs(worst - least) / least)
    return Answer(share, prices, certificate), float(others - root) / root


def _prices_of_own(program: Program, curves: Curves) -> Floats:
    """What a GPU more of each type adds to the objective where the best rates of the worst jobs decide it, (T,)."""
    worst = np.flatnonzero(curves.own >= curves.own.max() * (1.0 - _DECIDES))
    c, gain = curves.taken(worst), best_alone(program)[1][worst]
    prices: Floats = (gain * (c.isolated / (c.age * c.cap + 1.0) ** 2)[:, None]).min(axis=0)  # d(1 / own) / d(cap)
    return prices


def _per_job(program: Program, figures: Floats) -> Floats:
    """Figures of the R jobs that can run among zeros for the others, (J,)."""
    all_jobs: Floats = np.zeros(program.problem.job_count)
    all_jobs[program.jobs] = figures
    return all_jobs


def _check(problem: AllocationProblem, objective: MinMaxFinishTime) -> None:
    for name in ("steps", "age_s", "isolated_s"):
        values = getattr(objective, name)
        if len(values) != problem.job_count:
            raise InvalidInput(f"{name} must have one entry for each of {problem.job_count} jobs, got {len(values)}")
