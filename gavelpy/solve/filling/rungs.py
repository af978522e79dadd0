"""Fillings: all rates rise together, and who cannot follow keeps what it has. Rungs, and the proof.

The certificate. Objective, bound and prices are the least level's, the first at which a job can rise no more. The gap
is the most by which any job could rise unless another fell, as a part of its rate (levels.py): of all levels, not of a
sum in which late ones hardly count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Bools, Floats, floats, require
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import GAP_MAX, PATH, VIOLATION_MAX, Answer, best_of, even_shares
from gavelpy.solve.certificate import DUST, prices_of, rate_steps_per_s, repaired, violation_of
from gavelpy.solve.filling.gaps import gaps_of_classes, limits, proofs_of_prices
from gavelpy.solve.filling.polishing import CLASSES_MAX, polished
from gavelpy.solve.filling.saturation import ITS_OWN_BEST, Filled, by_type, narrowing_rounds, whole_rounds
from gavelpy.solve.filling.targets import Changing, Even, Rise
from gavelpy.solve.filling.water_level import BY_PRICES, Proof, is_for_prices
from gavelpy.solve.objective import MaxMinLexicographic, ProgressiveFilling
from gavelpy.solve.program import Program, best_rate_steps_per_s, program_of
from gavelpy.solve.solver import CAREFUL, QUICK, REFINED, Solver

GAP_MAX_LAST = 1e-6  # of the last rung: late levels may hang on differences that no double holds
WHOLE = " on the whole"
_FINE_DUST = 1e-15  # of a rate: what is dust to an early job may be much to late ones
_ALIKE = 1e-9  # relative: speeds that differ by rounding are equal

FillingObjective = MaxMinLexicographic | ProgressiveFilling


def best_filling(problem: AllocationProblem, objective: FillingObjective, solver: Solver, blur: float = 0.0) -> Answer:
    """Shares in which nobody's rate can rise, with a warning where that cannot be certified.

    `blur` is the part by which figures of jobs may be off, where jobs that are nearly equal are taken for equal.
    """
    program, rise = _start(problem, objective, blur)
    fallen: dict[str, str] = {}  # rung -> why it did not answer
    feasible: list[Answer] = []
    for name, fill, last_resort in _rungs(problem, blur):
        if last_resort and feasible:
            break
        try:
            filled = fill(program, rise, solver)
        except SolverFailed as failure:
            fallen[name] = failure.status
        else:
            answer, together = _answer(program, rise, filled, narrowed=not name.endswith(WHOLE), blur=blur)
            found = answer.certificate
            if found.gap <= GAP_MAX_LAST and found.violation <= VIOLATION_MAX:
                return answer
            if _is_large(program) and max(together, found.violation) <= VIOLATION_MAX:
                fallen[name] = f"gap {found.gap:.1e} by the rounding of {len(program.value)} classes' rates"
                return best_of([answer], fallen, GAP_MAX_LAST)
            feasible.append(answer)
            fallen[name] = filled.failure or f"gap {found.gap:.1e}, violation {found.violation:.1e}"
        solver.falls[name] += 1
    if not feasible:
        feasible.append(_evenly(program, rise))
    return best_of(feasible, fallen, GAP_MAX_LAST)


def _is_large(program: Program) -> bool:
    """Whether there are too many classes to polish their shares: another rung would prove no more."""
    return len(program.value) > CLASSES_MAX


def _evenly(program: Program, rise: Rise) -> Answer:
    """An even split, of which only the jobs' own limits are proved."""
    share, K = even_shares(program), len(program.value)
    rate = _rates(program, share)
    rising = np.flatnonzero(rate < rise.limit)
    filled = Filled(np.zeros(len(program.entry_type)), rate, (), np.full(K, ITS_OWN_BEST), (), rising, rise.limit)
    objective, bound, prices = _least_level(program, rise, filled, rate)
    gaps, _ = gaps_of_classes(program, filled, program.entry_shares(share), by_prices=False, blur=0.0)
    gap = float(gaps.max(initial=0.0))
    unproved = int(program.classes.count[gaps > GAP_MAX_LAST].sum())
    return Answer(share, prices, Certificate(objective, bound, gap, 0.0, PATH, 0.0), unproved)


Filler = Callable[[Program, Rise, Solver], Filled]


def _rungs(problem: AllocationProblem, blur: float) -> Iterator[tuple[str, Filler, bool]]:
    """Ways to fill, from quick to sure, and whether they are a last resort; only the quick ones of a blurred problem.

    A filling on the whole of jobs that run alone takes a round for each job, not for each type.
    """
    if problem.runs_alone:
        if is_for_prices(problem):
            yield BY_PRICES, partial(narrowing_rounds, effort=QUICK, by_prices=True), False
        yield QUICK.name, partial(narrowing_rounds, effort=QUICK, by_prices=False), False
        if not blur:
            yield REFINED.name, partial(narrowing_rounds, effort=REFINED, by_prices=False), False
            yield CAREFUL.name, partial(narrowing_rounds, effort=CAREFUL, by_prices=False), False
    else:
        yield QUICK.name + WHOLE, partial(whole_rounds, effort=QUICK), False
        if not blur:
            yield REFINED.name + WHOLE, partial(whole_rounds, effort=REFINED), False
    if not blur:
        yield CAREFUL.name + WHOLE, partial(whole_rounds, effort=CAREFUL), True


def _start(problem: AllocationProblem, objective: FillingObjective, blur: float) -> tuple[Program, Rise]:
    none = np.zeros(problem.job_count)
    match objective:
        case MaxMinLexicographic(scale=scale):
            program = program_of(problem, scale, none)
            return program, Even.of(1.0 / program.value, limits(program))
        case ProgressiveFilling(alike=alike):
            best = best_rate_steps_per_s(problem)
            label = 1.0 + alike if len(alike) else np.ones(problem.job_count)
            value = label / np.where(best > 0, best, 1.0)  # so that only jobs of one label are of one class
            program = program_of(problem, value, none, aggregate=len(alike) > 0)
            return program, Changing.of(partial(_speeds, program, objective, blur), limits(program))


def _speeds(program: Program, objective: ProgressiveFilling, blur: float, saturated: Bools) -> Floats:
    """Speeds of classes (K,), in units of their best rates, once the classes `saturated` are."""
    J, classes, best = program.problem.job_count, program.classes, program.best_rate_steps_per_s
    stopped = np.ones(J, dtype=np.bool_)
    stopped[program.jobs] = saturated[classes.of_job]
    speeds = floats("speed", objective.speed(stopped), (J,))
    require("speed", speeds, np.isfinite(speeds) & (speeds >= 0), "finite and >= 0")
    relative = speeds[program.jobs] / best[program.jobs]
    of_class: Floats = relative[classes.representative]
    if not (np.abs(relative - of_class[classes.of_job]) <= (_ALIKE + 2.0 * blur) * relative).all():
        raise InvalidInput("speed must be equal for jobs that are said to be alike, got different speeds")
    return of_class


def _answer(program: Program, rise: Rise, filled: Filled, *, narrowed: bool, blur: float) -> tuple[Answer, float]:
    """The answer as it is, or polished where that proves more, and by how much jobs might rise together (levels.py)."""
    found = _proved(program, rise, filled, narrowed=narrowed, blur=blur)
    if found[0].certificate.gap <= GAP_MAX or _is_large(program):
        return found
    finer = replace(filled, share=polished(program, filled.share, filled.rate))
    other = _proved(program, rise, finer, narrowed=narrowed, blur=blur, dust=_FINE_DUST)
    a, b = found[0].certificate, other[0].certificate
    return other if b.gap < a.gap and b.violation <= max(a.violation, VIOLATION_MAX) else found


def _proved(
    program: Program, rise: Rise, filled: Filled, *, narrowed: bool, blur: float, dust: float = DUST
) -> tuple[Answer, float]:
    problem = program.problem
    claimed = program.per_job(filled.rate) * program.best_rate_steps_per_s
    for_somebody = np.zeros(len(filled.share), dtype=np.bool_)  # a trace of time for one who has no rate is rounding
    np.logical_or.at(for_somebody, program.member_entry, (filled.rate > 0)[program.member_class])
    share = repaired(program, program.shares(np.where(for_somebody, filled.share, 0.0)), claimed, dust=dust)
    rate = _rates(program, share)
    objective, bound, prices = _least_level(program, rise, filled, rate)
    by_prices = narrowed and problem.runs_alone
    gaps, together = gaps_of_classes(program, filled, program.entry_shares(share), by_prices=by_prices, blur=blur)
    gap = max(float(gaps.max(initial=0.0)), (bound - objective) / objective if bound > objective else 0.0)
    prefix = "classes+" if len(program.value) < len(program.jobs) else ""
    path = f"{prefix}{'+'.join(dict.fromkeys(filled.rungs))} x {len(filled.rungs)}" if filled.rungs else "nobody rises"
    certificate = Certificate(
        objective, bound, gap, violation_of(program, np.zeros(problem.job_count), share), path, 0.0
    )
    unproved = int(program.classes.count[gaps > GAP_MAX_LAST].sum())
    return Answer(share, prices, certificate, unproved), together


def _rates(program: Program, share: Floats) -> Floats:
    """What `share` gives each class, (K,), in units of its best rate."""
    first = program.jobs[program.classes.representative]
    rates: Floats = rate_steps_per_s(program.problem, share)[first] / program.best_rate_steps_per_s[first]
    return rates


def _least_level(program: Program, rise: Rise, filled: Filled, rate: Floats) -> tuple[float, float, Floats]:
    """The level at which the first job can rise no more, a bound on it, and what it gains by one more GPU, (T,)."""
    problem, rising = program.problem, np.flatnonzero(rise.speed > 0)
    if not len(rising):
        return 0.0, 0.0, np.zeros(len(problem.gpu_types))
    objective = float((rate[rising] / rise.speed[rising]).min())
    proof, bound = _own_best(rise, len(problem.gpu_types)), rise.first_limit
    if filled.rounds:
        done = filled.rounds[0]
        of_gpus = done.proof
        if problem.runs_alone:
            rates, price = by_type(program, program.member_rate), done.proof.price[None, :]
            of_gpus = proofs_of_prices(program, rates, price, done.target)[0]
        level = of_gpus.level(rise, np.ones(len(problem.gpu_types)))
        if level < bound:
            proof, bound = of_gpus, level
    unit = float(proof.worth @ rise.speed)
    gpus, best = problem.gpu_counts, program.best_rate_steps_per_s
    count = program.classes.count
    worth = program.per_job(proof.worth / count) / np.where(best > 0, best, 1.0)
    price = proof.price / np.where(gpus > 0, gpus, 1.0)
    budget = program.per_job(proof.budget / count)
    prices = prices_of(program, np.repeat(worth[:, None], len(gpus), axis=1), price, budget) / unit
    return objective, bound, prices


def _own_best(rise: Rise, gpu_types: int) -> Proof:
    """What it proves that the first job to do so has reached its own best rate."""
    reached = np.where(rise.speed > 0, rise.limit / np.where(rise.speed > 0, rise.speed, 1.0), np.inf)
    first = np.arange(len(reached)) == np.argmin(reached)
    return Proof(first.astype(np.float64), np.where(first, rise.limit, 0.0), np.zeros(gpu_types))
