"""Water filling: all rates rise together, and a job that cannot rise keeps its rate. The rungs and the certificate.

Objective, bound and prices of the certificate are those of the least level, at which the first job stops. The gap is
the largest part of its rate by which any job could rise unless another falls (gaps.py): over all levels, not of a sum
in which late ones hardly count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Bools, Floats, floats, require
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import (
    DUST,
    EVEN_SPLIT,
    GAP_MAX,
    NOISE,
    VIOLATION_MAX,
    Answer,
    best_of,
    even_shares,
    prices_of,
    rate_steps_per_s,
    repaired,
    violation_of,
)
from gavelpy.solve.filling.gaps import CLASSES_MAX, gaps_of_classes, limits, proof_of_prices
from gavelpy.solve.filling.resolved import filled_up
from gavelpy.solve.filling.saturation import ITS_OWN_BEST, Filled, by_type, fill_residuals, fill_whole
from gavelpy.solve.filling.targets import EvenTargets, PiecewiseTargets, Targets
from gavelpy.solve.filling.water_level import BY_PRICES, Proof, is_for_prices
from gavelpy.solve.objective import MaxMinLexicographic, ProgressiveFilling
from gavelpy.solve.program import Program, best_rate_steps_per_s, program_of
from gavelpy.solve.solver import CAREFUL, IN_UNITS, QUICK, REFINED, Solver

if TYPE_CHECKING:
    from scipy.sparse import csr_array

GAP_MAX_LAST = 1e-6  # of the last rung: late levels may depend on differences that doubles cannot represent
WHOLE = " on the whole"
_FINE_DUST = 1e-15  # of a rate: what is negligible for an early job may be much for late ones
_DUST_UNUSED = 1e-8  # of the rates of all members
_IN_UNITS_MAX = 128  # classes; with more, it takes as long as all rungs before, and none is known that it proves
_ALIKE = 1e-9  # relative: speeds that differ by rounding are equal

FillingObjective = MaxMinLexicographic | ProgressiveFilling


def best_filling(problem: AllocationProblem, objective: FillingObjective, solver: Solver, blur: float = 0.0) -> Answer:
    """Shares at which no job's rate can rise, with a warning if that cannot be certified.

    `blur` is the relative error of the jobs' numbers if nearly equal jobs are treated as equal.
    """
    program, targets = _start(problem, objective, blur)
    fallen: dict[str, str] = {}  # rung -> reason of its failure
    feasible: list[Answer] = []
    for name, fill, last_resort in _rungs(program, blur):
        if last_resort and feasible:
            break
        try:
            filled = fill(program, targets, solver)
        except SolverFailed as failure:
            fallen[name] = failure.status
        else:
            answer, together = _answer(program, targets, filled, narrowed=not name.endswith(WHOLE), blur=blur)
            found = answer.certificate
            if found.gap <= (GAP_MAX_LAST if _is_large(program) else GAP_MAX) and found.violation <= VIOLATION_MAX:
                return answer
            if _is_large(program) and max(together, found.violation) <= VIOLATION_MAX:
                fallen[name] = f"gap {found.gap:.1e} by the rounding of {len(program.value)} classes' rates"
                return best_of([answer], fallen, GAP_MAX_LAST)
            if name != IN_UNITS.name + WHOLE or found.gap <= GAP_MAX_LAST:  # without a proof, levels may be far too low
                feasible.append(answer)
            fallen[name] = filled.failure or f"gap {found.gap:.1e}, violation {found.violation:.1e}"
        solver.falls[name] += 1
    if not feasible:
        feasible.append(_evenly(program, targets))
    proved = [
        answer
        for answer in feasible
        if answer.certificate.gap <= GAP_MAX_LAST and answer.certificate.violation <= VIOLATION_MAX
    ]
    return min(proved, key=lambda answer: answer.certificate.gap) if proved else best_of(feasible, fallen, GAP_MAX_LAST)


def _is_large(program: Program) -> bool:
    """Whether there are too many classes to polish shares that are proved; others may be polished, too."""
    return len(program.value) > CLASSES_MAX


def _evenly(program: Program, targets: Targets) -> Answer:
    """An even split, certified by the jobs' own limits only."""
    share, K = even_shares(program), len(program.value)
    rate = _rates(program, share)
    rising = np.flatnonzero(rate < targets.limit)
    filled = Filled(np.zeros(len(program.entry_type)), rate, (), np.full(K, ITS_OWN_BEST), (), rising, targets.limit)
    objective, bound, prices = _least_level(program, targets, filled, rate)
    gaps, _ = gaps_of_classes(program, filled, program.entry_shares(share), by_prices=False, blur=0.0)
    gap = float(gaps.max(initial=0.0))
    unproved = int(program.classes.count[gaps > GAP_MAX_LAST].sum())
    return Answer(share, prices, Certificate(objective, bound, gap, 0.0, EVEN_SPLIT, 0.0), unproved)


Filler = Callable[[Program, Targets, Solver], Filled]


def _rungs(program: Program, blur: float) -> Iterator[tuple[str, Filler, bool]]:
    """Functions that fill, from fast to robust, and whether they are a last resort; only fast ones if there is a blur.

    On the whole program, jobs that run alone take a level for each job, not for each type.
    """
    if program.problem.runs_alone:
        if is_for_prices(program.problem, len(program.value)):
            yield BY_PRICES, partial(fill_residuals, effort=QUICK, by_prices=True), False
        yield QUICK.name, partial(fill_residuals, effort=QUICK, by_prices=False), False
        if not blur:
            yield REFINED.name, partial(fill_residuals, effort=REFINED, by_prices=False), False
            yield CAREFUL.name, partial(fill_residuals, effort=CAREFUL, by_prices=False), False
    else:
        yield QUICK.name + WHOLE, partial(fill_whole, effort=QUICK), False
        if not blur:
            for effort in (REFINED, IN_UNITS) if len(program.value) <= _IN_UNITS_MAX else (REFINED,):
                yield effort.name + WHOLE, partial(fill_whole, effort=effort), False
    if not blur:
        yield CAREFUL.name + WHOLE, partial(fill_whole, effort=CAREFUL), True


def _start(problem: AllocationProblem, objective: FillingObjective, blur: float) -> tuple[Program, Targets]:
    none = np.zeros(problem.job_count)
    match objective:
        case MaxMinLexicographic(scale=scale):
            program = program_of(problem, scale, none)
            return program, EvenTargets.of(1.0 / program.value, limits(program))
        case ProgressiveFilling(alike=alike):
            best = best_rate_steps_per_s(problem)
            label = 1.0 + alike if len(alike) else np.ones(problem.job_count)
            value = label / np.where(best > 0, best, 1.0)  # so that the jobs of a class have the same label
            program = program_of(problem, value, none, aggregate=len(alike) > 0)
            return program, PiecewiseTargets.of(partial(_speeds, program, objective, blur), limits(program))


def _speeds(program: Program, objective: ProgressiveFilling, blur: float, saturated: Bools) -> Floats:
    """Speeds of classes (K,), in units of their best rates, if the classes `saturated` do not rise."""
    J, classes, best = program.problem.job_count, program.classes, program.best_rate_steps_per_s
    stopped = np.ones(J, dtype=np.bool_)
    stopped[program.jobs] = saturated[classes.of_job]
    speeds = floats("speed", objective.speed(stopped), (J,))
    require("speed", speeds, np.isfinite(speeds) & (speeds >= 0), "finite and >= 0")
    relative = speeds[program.jobs] / best[program.jobs]
    of_class: Floats = relative[classes.representative]
    if not (np.abs(relative - of_class[classes.of_job]) <= (_ALIKE + 2.0 * blur) * relative).all():
        raise InvalidInput("speed must be equal for jobs with equal `alike`, got different speeds")
    return of_class


def _answer(program: Program, targets: Targets, filled: Filled, *, narrowed: bool, blur: float) -> tuple[Answer, float]:
    """The answer, polished if that has a smaller gap, and by how much jobs might rise together (gaps.py)."""
    found = _proved(program, targets, filled, narrowed=narrowed, blur=blur)
    enough = GAP_MAX_LAST if _is_large(program) else GAP_MAX
    if found[0].certificate.gap <= enough or len(program.value) > _UNPROVED_MAX:
        return found
    for used in (filled.share, _without_dust(program, filled.share)):
        better = polished(program, used, filled.rate)
        finer = replace(filled, share=filled_up(program, [done.proof for done in filled.levels], better))
        other = _proved(program, targets, finer, narrowed=narrowed, blur=blur, dust=_FINE_DUST)
        a, b = found[0].certificate, other[0].certificate
        if b.gap < a.gap and b.violation <= max(a.violation, VIOLATION_MAX):
            found = other
        if found[0].certificate.gap <= GAP_MAX:
            break
    return found


def _without_dust(program: Program, share: Floats) -> Floats:
    """Shares of entries (E,) without those that HiGHS's tolerance leaves in configurations that are not in use."""
    adds = program.member_rate * share[program.member_entry]
    rates = np.bincount(program.member_class, weights=adds, minlength=len(program.value))
    matters = np.zeros(len(share), dtype=np.bool_)
    np.logical_or.at(matters, program.member_entry, adds > _DUST_UNUSED * rates[program.member_class])
    return np.where(matters, share, 0.0)


def _proved(
    program: Program, targets: Targets, filled: Filled, *, narrowed: bool, blur: float, dust: float = DUST
) -> tuple[Answer, float]:
    problem = program.problem
    claimed = program.per_job(filled.rate) * program.best_rate_steps_per_s
    has_rate = np.zeros(len(filled.share), dtype=np.bool_)  # time of jobs without a rate is rounding
    np.logical_or.at(has_rate, program.member_entry, (filled.rate > 0)[program.member_class])
    share = repaired(program, program.shares(np.where(has_rate, filled.share, 0.0)), claimed, dust=dust)
    rate = _rates(program, share)
    objective, bound, prices = _least_level(program, targets, filled, rate)
    by_prices = narrowed and problem.runs_alone
    gaps, together = gaps_of_classes(program, filled, program.entry_shares(share), by_prices=by_prices, blur=blur)
    gap = max(float(gaps.max(initial=0.0)), (bound - objective) / objective if bound > objective else 0.0)
    prefix = "classes+" if len(program.value) < len(program.jobs) else ""
    path = f"{prefix}{'+'.join(dict.fromkeys(filled.rungs))} x {len(filled.rungs)}" if filled.rungs else "nothing rises"
    certificate = Certificate(
        objective, bound, gap, violation_of(program, np.zeros(problem.job_count), share), path, 0.0
    )
    unproved = int(program.classes.count[gaps > GAP_MAX_LAST].sum())
    return Answer(share, prices, certificate, unproved), together


def _rates(program: Program, share: Floats) -> Floats:
    """Rate of each class under `share`, (K,), in units of its best rate."""
    first = program.jobs[program.classes.representative]
    rates: Floats = rate_steps_per_s(program.problem, share)[first] / program.best_rate_steps_per_s[first]
    return rates


def _least_level(program: Program, targets: Targets, filled: Filled, rate: Floats) -> tuple[float, float, Floats]:
    """The level at which the first job stops, a bound on it, and its increase per GPU of each type, (T,)."""
    problem, rising = program.problem, np.flatnonzero(targets.speed > 0)
    amount = problem.row_capacity
    if not len(rising):
        return 0.0, 0.0, np.zeros(len(amount))
    objective = float((rate[rising] / targets.speed[rising]).min())
    proof, bound = _own_best(targets, len(amount)), targets.first_limit
    if filled.levels:
        done = filled.levels[0]
        of_gpus = done.proof
        if problem.runs_alone:
            of_gpus = proof_of_prices(program, by_type(program, program.member_rate), done.proof.price, done.target)
        level = of_gpus.level(targets, np.ones(len(amount)))
        if level < bound:
            proof, bound = of_gpus, level
    unit = float(proof.worth @ targets.speed)
    best = program.best_rate_steps_per_s
    count = program.classes.count
    worth = program.per_job(proof.worth / count) / np.where(best > 0, best, 1.0)
    price = proof.price / np.where(amount > 0, amount, 1.0)
    budget = program.per_job(proof.budget / count)
    prices = prices_of(problem, np.repeat(worth[:, None], len(problem.gpu_types), axis=1), price, budget) / unit
    return objective, bound, prices


def _own_best(targets: Targets, prices: int) -> Proof:
    """The proof that the first job has reached its own best rate."""
    reached = np.where(targets.speed > 0, targets.limit / np.where(targets.speed > 0, targets.speed, 1.0), np.inf)
    first = np.arange(len(reached)) == np.argmin(reached)
    return Proof(first.astype(np.float64), np.where(first, targets.limit, 0.0), np.zeros(prices))


# The last digits ------------------------------------------------------------------------------------------------------
#
# Shares are corrected from HiGHS's tolerance to rounding error. The last levels of a filling may depend on small
# differences: if 1e-10 of the early jobs' rates is worth 1 % of a late job's rate, shares right to 1e-10 are not
# enough. The rates are known up to rounding, and so are the tight constraints. The shares in use change by the smallest
# relative amounts that satisfy these equations (Newton's method on a linear system, by least squares). All other shares
# stay, so the vertex stays the same. A class that runs alone and uses one type has its share from its rate and is not
# in the system: only some classes per type use more.

_TIGHT = 1e-8  # relative: a budget or a type with less left is tight
_STEPS = 2  # the second one corrects the rounding of the first
_UNPROVED_MAX = 1100  # classes; for more, the system takes seconds


def polished(program: Program, share: Floats, rate: Floats) -> Floats:
    """Shares of entries (E,) near `share` that give the classes `rate` (K,); `share` itself for too many classes."""
    used = share > NOISE
    if len(program.value) > _UNPROVED_MAX or not used.any():
        return share
    equations = _equations(program, np.where(used, share, 0.0), rate)
    single, better = _singles(program, used, rate), share.copy()
    if single.any():
        better[single] = rate[program.member_class[single]] / program.member_rate[single]
    moving = used & ~single
    if moving.any():
        better[moving] = _moved(equations, better, moving)
    before, after = (float(np.abs(equations.missing(x)).max(initial=0.0)) for x in (share, better))
    return better if after < before else share  # NaN, too


@dataclass(frozen=True, eq=False)
class _Equations:
    """Rows (R, E): classes with a rate, full budgets and full types, in units of their targets, which are 1."""

    matrix: csr_array

    def missing(self, share: Floats) -> Floats:
        """By how much each row is below its target, (R,)."""
        return np.asarray(1.0 - self.matrix @ share)


def _moved(equations: _Equations, share: Floats, moving: Bools) -> Floats:
    """Shares of the entries `moving` that satisfy the equations; the others stay."""
    from scipy.linalg import lstsq

    columns = equations.matrix[:, np.flatnonzero(moving)]
    rows = np.flatnonzero(np.diff(columns.indptr))
    matrix, x, share = columns[rows].toarray(), share[moving], share.copy()
    for _ in range(_STEPS):
        missing = equations.missing(share)[rows]
        step, *_ = lstsq(matrix * x, missing, lapack_driver="gelsy", check_finite=False)
        x = x * np.maximum(1.0 + step, 0.0)
        share[moving] = x
    return x


def _singles(program: Program, used: Bools, rate: Floats) -> Bools:
    """Entries of classes that run alone and use one type, (E,)."""
    at, entry = program.member_class, program.member_entry
    if not program.problem.runs_alone:
        return np.zeros(len(used), dtype=np.bool_)
    types = np.bincount(at, weights=used[entry], minlength=len(rate))
    single: Bools = used & ((types == 1) & (rate > 0))[at] & (program.member_rate > 0)  # entries are memberships
    return single


def _equations(program: Program, share: Floats, rate: Floats) -> _Equations:
    from scipy.sparse import csr_array, vstack

    K, T, E = len(program.value), len(program.problem.row_capacity), len(share)
    load_row, load_entry, load = program.loads()
    at, entry = program.member_class, program.member_entry
    rates = csr_array((program.member_rate / np.where(rate > 0, rate, 1.0)[at], (at, entry)), shape=(K, E))
    times = csr_array((program.member_time, (at, entry)), shape=(K, E))
    loads = csr_array((load, (load_row, load_entry)), shape=(T, E))
    full = [rows[np.flatnonzero(np.asarray(rows @ share) >= 1.0 - _TIGHT)] for rows in (times, loads)]
    return _Equations(csr_array(vstack([rates[np.flatnonzero(rate > 0)], *full])))
