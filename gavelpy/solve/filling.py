"""Fillings: all rates rise together, and who cannot follow keeps what it has. Rungs, and the proof.

The certificate. The prices of a round, with a multiple of those of the rounds before, prove by weak duality at the
final rates f that the jobs which the round holds cannot all rise by more than the part

    (Σ budgets + Σ prices - Σ worth f) / Σ_held worth f

of their rates unless some other falls: the gap is the largest such part of any round. Objective, bound and prices are
the least level's, the first at which a job can rise no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Bools, Floats, floats, require
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import GAP_MAX, VIOLATION_MAX, Answer
from gavelpy.solve.certificate import failed, prices_of, rate_steps_per_s, violation_of
from gavelpy.solve.costs import worths_of
from gavelpy.solve.objective import MaxMinLexicographic, ProgressiveFilling
from gavelpy.solve.program import Program, best_rate_steps_per_s, program_of
from gavelpy.solve.raising import BY_PRICES, Proof, is_for_prices
from gavelpy.solve.repair import repaired
from gavelpy.solve.rise import Changing, Even, Rise
from gavelpy.solve.rounds import Filled, by_type, narrowing_rounds, whole_rounds
from gavelpy.solve.solver import Solver

GAP_MAX_LAST = 1e-6  # of the last rung: late levels may hang on differences that no double holds
WHOLE = " on the whole"
_ALIKE = 1e-9  # relative: speeds that differ by rounding are equal
_MULTIPLES = 10.0 ** np.arange(-1, 10)

FillingObjective = MaxMinLexicographic | ProgressiveFilling


def best_filling(problem: AllocationProblem, objective: FillingObjective, solver: Solver) -> Answer:
    """Shares in which nobody's rate can rise. Raises SolverFailed when no rung's answer can be certified."""
    program, rise = _start(problem, objective)
    reasons = []
    for name, fill, gap_max in _rungs(problem):
        try:
            filled = fill(program, rise, solver)
        except SolverFailed as failure:
            reasons.append(f"{name}: {failure.status}")
        else:
            answer = _answer(program, rise, filled, narrowed=not name.endswith(WHOLE))
            found = answer.certificate
            if found.gap <= gap_max and found.violation <= VIOLATION_MAX:
                return answer
            reasons.append(f"{name}: gap {found.gap:.1e}, violation {found.violation:.1e}")
        solver.falls[name] += 1
    raise failed(problem, "not certified", "; ".join(reasons))


Filler = Callable[[Program, Rise, Solver], Filled]


def _rungs(problem: AllocationProblem) -> Iterator[tuple[str, Filler, float]]:
    """Ways to fill, from quick to sure, and the gap that is accepted of each."""
    from gavelpy.solve.highs import CAREFUL, QUICK

    if problem.runs_alone:
        if is_for_prices(problem):
            yield BY_PRICES, partial(narrowing_rounds, effort=QUICK, by_prices=True), GAP_MAX
        yield QUICK.name, partial(narrowing_rounds, effort=QUICK, by_prices=False), GAP_MAX
        yield CAREFUL.name, partial(narrowing_rounds, effort=CAREFUL, by_prices=False), GAP_MAX
    else:
        yield QUICK.name + WHOLE, partial(whole_rounds, effort=QUICK), GAP_MAX
    yield CAREFUL.name + WHOLE, partial(whole_rounds, effort=CAREFUL), GAP_MAX_LAST


def _start(problem: AllocationProblem, objective: FillingObjective) -> tuple[Program, Rise]:
    none = np.zeros(problem.job_count)
    match objective:
        case MaxMinLexicographic(scale=scale):
            program = program_of(problem, scale, none)
            return program, Even.of(1.0 / program.value, _limits(program))
        case ProgressiveFilling(alike=alike):
            best = best_rate_steps_per_s(problem)
            label = 1.0 + alike if len(alike) else np.ones(problem.job_count)
            value = label / np.where(best > 0, best, 1.0)  # so that only jobs of one label are of one class
            program = program_of(problem, value, none, aggregate=len(alike) > 0)
            return program, Changing.of(partial(_speeds, program, objective), _limits(program))


def _speeds(program: Program, objective: ProgressiveFilling, saturated: Bools) -> Floats:
    """Speeds of classes (K,), in units of their best rates, once the classes `saturated` are."""
    J, classes, best = program.problem.job_count, program.classes, program.best_rate_steps_per_s
    stopped = np.ones(J, dtype=np.bool_)
    stopped[program.jobs] = saturated[classes.of_job]
    speeds = floats("speed", objective.speed(stopped), (J,))
    require("speed", speeds, np.isfinite(speeds) & (speeds >= 0), "finite and >= 0")
    relative = speeds[program.jobs] / best[program.jobs]
    of_class: Floats = relative[classes.representative]
    if not (np.abs(relative - of_class[classes.of_job]) <= _ALIKE * relative).all():
        raise InvalidInput("speed must be equal for jobs that are said to be alike, got different speeds")
    return of_class


def _limits(program: Program) -> Floats:
    """The best rate of each class in any configuration, (K,)."""
    limit: Floats = np.zeros(len(program.value))
    np.maximum.at(limit, program.member_class, program.member_rate)
    return limit


def _answer(program: Program, rise: Rise, filled: Filled, *, narrowed: bool) -> Answer:
    problem, best = program.problem, program.best_rate_steps_per_s
    claimed = program.per_job(filled.rate) * best
    for_somebody = np.zeros(len(filled.share), dtype=np.bool_)  # a trace of time for one who has no rate is rounding
    np.logical_or.at(for_somebody, program.member_entry, (filled.rate > 0)[program.member_class])
    share = repaired(program, program.shares(np.where(for_somebody, filled.share, 0.0)), claimed)
    first = program.jobs[program.classes.representative]
    rate = rate_steps_per_s(problem, share)[first] / best[first]
    objective, bound, prices = _least_level(program, rise, filled, rate)
    parts = _parts_by_prices(program, filled) if narrowed else _parts(filled)
    gap = max(0.0, *parts, (bound - objective) / objective if bound > objective else 0.0)
    prefix = "classes+" if len(program.value) < len(program.jobs) else ""
    path = f"{prefix}{'+'.join(dict.fromkeys(filled.rungs))} x {len(filled.rungs)}" if filled.rungs else "nobody rises"
    return Answer(share, prices, Certificate(objective, bound, gap, violation_of(program, claimed, share), path, 0.0))


def _parts(filled: Filled) -> Iterator[float]:
    """By what part of their rates the jobs that each round holds might rise, by its own proof."""
    for number, done in enumerate(filled.rounds):
        held = filled.round_of == number
        yield _part(done.proof, done.target, held)


def _parts_by_prices(program: Program, filled: Filled) -> Iterator[float]:
    """The same by prices alone, at the final rates: where jobs run alone prices say all there is to say."""
    rate, rates, before = filled.rate, by_type(program, program.member_rate), np.zeros(len(program.problem.gpu_types))
    for number, done in enumerate(filled.rounds):
        price, held = done.proof.price, filled.round_of == number
        unit = price.max() / before.max() if before.any() else 0.0
        tried = [price + m * unit * before for m in (_MULTIPLES if number else _MULTIPLES[:1])]
        parts = [_part(_proof(program, rates, p, rate), rate, held) for p in tried]
        least = int(np.argmin(parts))
        before = tried[least]
        yield parts[least]


def _part(proof: Proof, rate: Floats, held: Bools) -> float:
    worth = float(proof.worth[held] @ rate[held]) or float(
        proof.worth[held].sum()
    )  # of best rates, where they have none
    excess = max(0.0, float(proof.budget.sum() + proof.price.sum() - proof.worth @ rate))
    return excess / worth if worth > 0 else np.inf if held.any() else 0.0


def _proof(program: Program, rates: Floats, price: Floats, need: Floats) -> Proof:
    cost = by_type(program, program.entry_load * price[program.entry_type])
    return Proof(*worths_of(rates, cost, need), price)


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
            of_gpus = _proof(program, by_type(program, program.member_rate), done.proof.price, done.target)
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
