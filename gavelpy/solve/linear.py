"""Solves max-min and max-sum objectives as linear programs, rung after rung until an answer is certified.

HiGHS's tolerances are absolute, so the model is scaled here (program.py, and a level of about 1), and HiGHS's own
scaling is off: on these models that alone is 10 to 50 times faster. A second run, from the basis of the first and among
its optima, maximises the sum of scaled rates (the rule for ties).

If the optimum has a kink in the number of GPUs (one GPU per job, for example), prices are not unique: they range from
what the last GPU earned to what the next one would earn. The first run has slightly more GPUs than there are (TRACE),
so that only the latter remain; the second run has the true number. Floors may need the very last GPU: then the first
run has the true number, and a run between the two has the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import (
    EVEN_SPLIT,
    GAP_MAX,
    MARGIN,
    VIOLATION_MAX,
    Answer,
    Candidate,
    Duals,
    FloorsRefused,
    best_of,
    certified,
    contradiction,
    even_duals,
    even_shares,
    failed,
    floors_of,
    repaired,
)
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.program import Program, program_of
from gavelpy.solve.solver import (
    CAREFUL,
    GROWING,
    NUMPY_ROWS_MAX,
    QUICK,
    REFINED,
    HighsEffort,
    Model,
    Optimum,
    Run,
    Solver,
)

MANY = 1000  # entries, and
MANY_FOR_EACH = 8  # entries for each class of jobs: fewer are solved as one model
TRACE = 2e-9  # of a type's GPUs; above HiGHS's tolerance
LEVEL_SLACK = 1e-10  # part of the level that is given up if ties are not resolved on the face of optima
RESCALE_ABOVE = 1e4  # factor between the level and the guess above which it is solved again with a new guess
_UNSEEN, _SEEN = 1e-9, 1e-6  # relative gains: HiGHS's tolerance with a margin, and well above it


def best_linear(problem: AllocationProblem, objective: LinearObjective, solver: Solver) -> Answer:
    """The best shares for an objective that is a linear program.

    If no rung's answer can be certified, the best feasible one has a warning. Raises SolverFailed if none is feasible,
    with status "infeasible" if the floors are. The first Farkas ray that proves this ends the search, and no failure of
    a rung is counted: there was nothing to certify.
    """
    if isinstance(objective, MaxMin) and not objective.scale[problem.can_run].any():  # no job counts in the minimum
        objective = MaxSum(objective.scale, objective.rate_floor_steps_per_s)
    fallen: dict[str, str] = {}  # rung -> reason of its failure
    feasible: list[Answer] = []
    for name, rung in _rungs(problem, objective):
        if name == REFINED.name and not feasible:
            break  # it refines answers, and finds none where the others did not
        try:
            answer = rung(solver)
        except FloorsRefused as refusal:
            excess = contradiction(problem, floors_of(objective, problem.job_count), refusal.ray)
            if excess > MARGIN:
                raise failed(problem, "infeasible", _refuted(name, excess)) from None
            fallen[name] = refusal.status
        except SolverFailed as failure:
            fallen[name] = failure.status
        else:
            if answer is None:
                continue
            certificate = answer.certificate
            path = " after ".join([certificate.path, *reversed(fallen)])
            answer = replace(answer, certificate=replace(certificate, path=path))
            if certificate.violation <= VIOLATION_MAX:
                if certificate.gap <= GAP_MAX:
                    solver.falls.update(fallen.keys())
                    return answer
                feasible.append(answer)
            fallen[name] = f"gap {certificate.gap:.1e}, violation {certificate.violation:.1e}"
    solver.falls.update(fallen.keys())
    if not feasible and fallen.get("careful") != "infeasible":
        feasible = [a for a in [_evenly(problem, objective)] if a.certificate.violation <= VIOLATION_MAX]
    if feasible:
        return best_of(feasible, fallen, GAP_MAX)
    status = "infeasible" if fallen.get("careful") == "infeasible" else "not certified"
    raise failed(problem, status, "; ".join(f"{rung}: {reason}" for rung, reason in fallen.items()))


def _refuted(rung: str, excess: float) -> str:
    return f"no shares give every job its least rate; a Farkas ray of {rung} proves it, by {excess:.1e}"


def _evenly(problem: AllocationProblem, objective: LinearObjective) -> Answer:
    program = _program(problem, objective, floors_of(objective, problem.job_count)).whole()
    share, duals = even_shares(program), even_duals(program)
    if isinstance(objective, MaxSum):
        duals = replace(duals, price=np.zeros(len(duals.price)))
    certificate, prices = certified(program, objective, share, duals, EVEN_SPLIT)
    return Answer(share, prices, certificate)


Rung = Callable[[Solver], Answer | None]  # None: the rung does not apply to this problem


def _rungs(problem: AllocationProblem, objective: LinearObjective) -> Iterator[tuple[str, Rung]]:
    """The rungs, from fast to robust."""
    from gavelpy.solve.prices import engine

    if engine.answers(problem, objective):
        table = cache(lambda: engine.table_of(problem, objective))
        yield "prices", lambda solver: engine.best_of(table(), objective, solver)
        yield "interior", lambda solver: engine.best_of(table(), objective, solver, inside=True)
    if not problem.is_plain and problem.job_count > NUMPY_ROWS_MAX:
        from gavelpy.solve.sizes import engine as of_sizes  # loads numba

        if of_sizes.answers(problem, objective):
            yield "prices", lambda solver: of_sizes.best_by_modes(problem, objective, solver)
    floors = floors_of(objective, problem.job_count)
    program = _program(problem, objective, floors)
    if _has_many_entries(program):
        yield GROWING.name, partial(_by_highs, program, objective, floors, GROWING)
    whole = program.whole()
    for effort in (QUICK, CAREFUL, REFINED):
        yield effort.name, partial(_by_highs, whole, objective, floors, effort)


def _has_many_entries(program: Program) -> bool:
    """Whether the program has so many entries that column generation is faster."""
    E = int(np.count_nonzero(program.columns.fits))
    return not program.problem.runs_alone and max(MANY, MANY_FOR_EACH * len(program.value)) < E


def _by_highs(
    program: Program, objective: LinearObjective, floors: Floats, effort: HighsEffort, solver: Solver
) -> Answer:

    optimum: Callable[[Program, Solver, HighsEffort], Candidate] = max_min if isinstance(objective, MaxMin) else max_sum
    if effort is GROWING:
        from gavelpy.solve.packing import column_generation

        optimum = column_generation.max_min if isinstance(objective, MaxMin) else column_generation.max_sum
    candidate = optimum(program, solver, effort)
    base = objective.base_steps_per_s if isinstance(objective, MaxMin) and len(objective.base_steps_per_s) else None
    share = repaired(program, candidate.share, np.maximum(floors, _held(objective, candidate.level)), base)
    prefix = "classes+" if len(program.value) < len(program.jobs) else ""
    certificate, prices = certified(program, objective, share, candidate.duals, prefix + effort.name)
    return Answer(share, prices, certificate)


def _program(problem: AllocationProblem, objective: LinearObjective, floors: Floats) -> Program:
    match objective:
        case MaxMin(scale=scale, base_steps_per_s=base, count=count):
            bases, weight = base if len(base) else None, count if len(count) else None
            return program_of(
                problem, scale, floors, base_steps_per_s=bases, weight=weight, aggregate=weight is None, together=False
            )
        case MaxSum(gain=gain, gpu_type_worth=worth):
            return program_of(problem, gain, floors, type_worth=worth if len(worth) else None, together=False)


def _held(objective: LinearObjective, level: float) -> Floats:
    """Rate of each job at this level, (J,); 0 for a job without a level."""
    if isinstance(objective, MaxSum):
        return np.zeros(len(objective.gain))
    scale, base = objective.scale, objective.base_steps_per_s
    held: Floats = np.where(scale > 0, level / np.where(scale > 0, scale, 1.0) + (base if len(base) else 0.0), 0.0)
    return held


def max_min(program: Program, solver: Solver, effort: HighsEffort) -> Candidate:
    """Maximise the least value over the jobs, then the sum of values. Raises SolverFailed if HiGHS finds no optimum."""
    level = program.even_level
    answer = _max_min_near(program, solver, effort, level)
    trusted = 1.0 if effort.refines else RESCALE_ABOVE
    if abs(answer.level) > trusted * level:  # the guess is feasible, but bases may be far out of reach
        answer = _max_min_near(program, solver, effort, abs(answer.level))
    return answer


def max_sum(program: Program, solver: Solver, effort: HighsEffort) -> Candidate:
    """Maximise the sum of values. Raises SolverFailed if HiGHS finds no optimum."""
    floored = program.floor > 0
    model = model_of(program, np.flatnonzero(floored), program.floor[floored], np.zeros(0))
    gains = entry_values(program) * program.type_worth[program.entry_type]
    unit = gains.max(initial=0.0) or 1.0
    run = Run(program.problem, solver, effort, model)
    first, row_dual = _first(program, run, effort, model, -gains / unit, np.zeros(0, dtype=np.int64))
    final = run.on_face(first, -_seen(gains / unit)) if effort.on_face else first
    duals = duals_of(program, row_dual, np.zeros(0, dtype=np.int64), floored, unit=unit)
    return Candidate(program.shares(final.column), duals, level=0.0)


def _seen(gain: Floats) -> Floats:
    """Gains relative to the highest; those below HiGHS's tolerance are raised above it.

    Among optima that costs nothing, and without it a job of few steps/s would idle next to free GPUs.
    """
    unseen = (gain > 0) & (gain < _UNSEEN)
    return np.where((gain > 0) & (gain < _SEEN), _SEEN, gain) if unseen.any() else gain


def _max_min_near(program: Program, solver: Solver, effort: HighsEffort, level: float) -> Candidate:
    E, leveled, floored = len(program.entry_type), np.flatnonzero(program.value > 0), program.floor > 0
    rated = np.concatenate([leveled, np.flatnonzero(floored)])
    lower = np.concatenate([program.base[leveled], program.floor[floored]])
    model = model_of(program, rated, lower, level / program.value[leveled])
    model.column_lower[E] = -(program.value * program.base).max() / level  # where no job runs
    run = Run(program.problem, solver, effort, model)
    cost = np.zeros(E + 1)
    cost[E] = -float(len(leveled))  # so that their duals are about 1
    first, row_dual = _first(program, run, effort, model, cost, leveled)
    gains = entry_values(program)
    ties = np.append(-gains / gains.max(), 0.0)
    reached = first.column[E] - LEVEL_SLACK * abs(first.column[E])
    if effort.refines:
        final = first  # ties would be broken to HiGHS's tolerance only
    elif effort.on_face:
        final = run.on_face(first, ties)
    else:
        final = run.above(ties, E, reached)
    duals = duals_of(program, row_dual, leveled, floored, unit=1.0)
    return Candidate(program.shares(final.column[:E]), duals, float(final.column[E]) * level)


def _first(
    program: Program, run: Run, effort: HighsEffort, model: Model, cost: Floats, leveled: Ints
) -> tuple[Optimum, Floats]:
    """An optimum, and the rows' duals with a trace more GPUs. Raises FloorsRefused if HiGHS has a ray.

    An effort that refines has the duals without it: where the level bends within the trace, the others prove less.
    """
    more = model.row_upper.copy()
    more[-len(program.problem.row_capacity) :] += TRACE if effort.on_face and not effort.refines else 0.0
    try:
        first = run.solve(cost, model.row_upper if program.floor.any() else more)
    except SolverFailed as failure:
        if run.row_ray is None:
            raise
        ray = duals_of(program, run.row_ray, leveled, program.floor > 0, unit=1.0)
        raise FloorsRefused(program.problem, failure.status, ray) from failure
    if effort.refines:
        first = run.refined(first, cost, model.row_lower, model.row_upper if program.floor.any() else more)
    priced = run.again(more) if effort.on_face and program.floor.any() else first
    return first, priced.row_dual


def model_of(program: Program, rated: Ints, rated_lower: Floats, level_weight: Floats) -> Model:
    """Rows: the rates of the classes `rated` (R,), the first of which have the level; time budgets; capacities.

    Columns: entries, and the level if there is one.
    """
    K, T = len(program.value), len(program.problem.row_capacity)
    L, R = len(level_weight), len(rated)
    start, row, value = matrix_of(program, rated[:L], rated[L:])
    if L:
        start, row = np.append(start, start[-1] + L), np.concatenate([row, np.arange(L)])
        value = np.concatenate([value, -level_weight])
    return Model(
        start=start.astype(np.int32),
        row=row.astype(np.int32),
        value=value,
        column_lower=np.zeros(len(start) - 1),
        row_lower=np.concatenate([rated_lower, np.full(K + T, -np.inf)]),
        row_upper=np.concatenate([np.full(R, np.inf), np.ones(K + T)]),
    )


def matrix_of(program: Program, leveled: Ints, floored: Ints) -> tuple[Ints, Ints, Floats]:
    """Entries by column (starts, rows, values); rows: rates of `leveled`, of `floored`, time budgets, capacities."""
    K, E = len(program.value), len(program.entry_type)
    R = len(leveled) + len(floored)
    load_row, load_entry, load = program.loads()
    row, column, value = [program.member_class + R], [program.member_entry], [program.member_time]
    for first, classes in ((0, leveled), (len(leveled), floored)):
        row_of_class = np.full(K, -1)
        row_of_class[classes] = first + np.arange(len(classes))
        rows = row_of_class[program.member_class]
        here = (rows >= 0) & (program.member_rate > 0)
        row.append(rows[here])
        column.append(program.member_entry[here])
        value.append(program.member_rate[here])
    row.append(R + K + load_row)
    column.append(load_entry)
    value.append(load)
    columns = np.concatenate(column)
    order = np.argsort(columns, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=E))])
    return start, np.concatenate(row)[order], np.concatenate(value)[order]


def entry_values(program: Program) -> Floats:
    """Objective units of each entry at share 1, over all members of its class, (E,)."""
    per_member = program.member_rate * (program.value * program.weight * program.classes.count)[program.member_class]
    return np.bincount(program.member_entry, weights=per_member, minlength=len(program.entry_type)).astype(np.float64)


def duals_of(program: Program, row_dual: Floats, leveled: Ints, floored: Bools, *, unit: float) -> Duals:
    """Duals by job and type in objective units (up to a common factor if the objective is a level)."""
    amount = program.problem.row_capacity
    K, T, levels = len(program.value), len(amount), len(leveled)
    rated = np.maximum(row_dual, 0.0) * unit
    count, best = program.classes.count, program.best_rate_steps_per_s
    per_step_per_s = 1.0 / np.where(best > 0, best, 1.0)
    floor = np.zeros(K)
    floor[floored] = rated[levels : levels + int(floored.sum())]
    level = np.zeros(K)
    level[leveled] = rated[:levels]
    budget, capacity = -row_dual[-K - T : -T] * unit, -row_dual[-T:] * unit
    return Duals(
        level=program.per_job(level / count) * per_step_per_s,
        floor=program.per_job(floor / count) * per_step_per_s,
        budget=program.per_job(np.maximum(budget, 0.0) / count),
        price=np.maximum(capacity, 0.0) / np.where(amount > 0, amount, 1.0),
    )
