"""Linear objectives of many jobs whose problem differs by a few jobs from the last one that the `Solver` answered.

Of every job that stays it is known what it can do, its modes at the prices of a *centre*, and how far prices may move
until it has others. So only the jobs that are new, and those whose modes are in doubt, are looked at until the optimum
is known; three passes over all jobs follow: to sum up what they use, to write their times, and for the certificate. The
answer is a function of the structure of a unique optimum (vertex.py), so a search from the start finds the same bytes.
If the optimum is not unique, or the problem is not of this kind, there is no answer, and the usual search follows.

What is decided by comparing all jobs (whether some are nearly equal, or equal) is not decided again: a few jobs cannot
change it, or all are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import ladder
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX, Answer
from gavelpy.solve.linear import TRACE
from gavelpy.solve.near_numbers import nearness
from gavelpy.solve.objective import LinearObjective, MaxMin
from gavelpy.solve.prices import engine
from gavelpy.solve.prices.certified import proved
from gavelpy.solve.prices.crossover import first_in_doubt
from gavelpy.solve.prices.newton import PRICE_FLOOR, Point
from gavelpy.solve.prices.table import Jobs, Table, fixed
from gavelpy.solve.prices.vertex import Mix, by_kernels
from gavelpy.solve.program import APART
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver

_NEW_MAX = 64  # jobs; for more, the usual search takes as long
_IN_DOUBT, _IN_DOUBT_PER_TYPE, _MANY = 32, 8, 16384  # as in live.py
_CENTRES_MAX = 4  # of an answer
_FAILURES_MAX = 3  # one after the other, until nothing is kept any more
_NONE: Floats = np.zeros(0)


class _Given(NamedTuple):
    """A problem as it is given."""

    rate: Floats  # (J, T)
    gpus: Floats  # (J,)
    value: Floats  # (J,) scale or gain
    floor: Floats  # (J,) or empty
    worth: Floats  # (T,) or empty
    gpu_counts: Floats  # (T,)


class _Rows(NamedTuple):
    """What is known of each job by itself."""

    best: Floats  # (J,) steps/s
    rate: Floats  # (J, T) in units of it
    value: Floats  # (J,) of the best rate
    total: Floats  # (J,) differs between jobs
    source: Ints  # (J,) row in the last problem, -1 = new
    range_of_values: Floats  # (2,) least and highest
    changes_left: int  # jobs that may change until nearly equal numbers must be counted again
    equal_values: bool  # whether the values that are given are equal


@dataclass(frozen=True, eq=False)
class _Goal:
    """A dual problem: the highest level, or the highest gain beyond needs."""

    kind: str  # of the prices that are kept
    gain: Floats  # (J, T), or (0, T)
    need: Floats  # (J,) at level 0
    slope: Floats  # (J,)
    limit: float  # of the level
    common: tuple[float, ...]  # numbers on which needs or gains of all jobs depend

    @property
    def is_level(self) -> bool:
        """Whether the level is sought."""
        return not len(self.gain)

    def at(self, level: float) -> Floats:
        """Needs at a level, (J,)."""
        return self.slope * level if self.is_level else self.need


@dataclass(eq=False)
class _Box:
    """Prices, and the box around a centre in which the jobs that are not in doubt keep their modes."""

    price: Floats  # (T,)
    level: float
    centre: Floats  # (T,)
    centre_level: float
    radius: Floats  # (T,)
    half: float  # jobs with at most this margin are in doubt
    low: Ints  # (J,) modes at the centre
    high: Ints
    margin: Floats  # (J,)
    ties: Ints  # (T, 5)
    ties_count: int = 0


@dataclass(frozen=True, eq=False)
class Kept:
    """The last problem with its answer."""

    given: _Given
    rows: _Rows
    goal: _Goal
    box: _Box


def kept_answer(problem: AllocationProblem, objective: LinearObjective, solver: Solver) -> Answer | None:
    """The answer from the last one of this kind; None if there is none, or if it is not certified."""
    key = (type(objective).__name__, len(problem.gpu_types))
    last = solver.kept.get(key)
    if last is None or (isinstance(last, int) and last >= _FAILURES_MAX) or not engine.answers(problem, objective):
        return None
    failures = last if isinstance(last, int) else 0
    solver.kept[key] = failures + 1
    found = _found(problem, objective, solver, last if isinstance(last, Kept) else None)
    if found is None:
        return None
    solver.kept[key], answer = found
    return answer


def _found(
    problem: AllocationProblem, objective: LinearObjective, solver: Solver, last: Kept | None
) -> tuple[Kept, Answer] | None:
    given = _given(problem, objective)
    kind = _kind(objective, len(problem.gpu_types), solver)
    if given is None or kind is None:
        return None
    rows = None
    if last is not None and _may_follow(given, last, kind):
        rows = _rows(given, last, last.rows.changes_left, equal_values=last.rows.equal_values)
    if rows is None:
        last, rows = None, _new_rows(problem, given, objective)
    if rows is None:
        return None
    goal = _goal(given, rows, objective, kind)
    box = _box(given, rows, goal, solver, last)
    mix = _moved(given, rows, goal, box)
    if mix is None or not mix.price.any() or (goal.is_level and mix.level > goal.limit * (1 - engine.AT_THE_LIMIT)):
        return None
    solver.points[kind, len(mix.price)] = Point(_floored(mix.price), mix.level, 0.0)
    table = Table(rows.rate, given.gpus, np.ones(len(given.gpus)), given.gpu_counts, _NONE.reshape(0, len(mix.price)))
    answered: Mix | None = mix
    if kind == engine.REST:
        answered = engine.limited(mix, rows.value)
    elif goal.is_level and not (mix.price > 0).all():
        answered = engine.with_the_rest_spent(table, rows.value, mix.level / rows.value, mix, solver)
    if answered is None:
        return None
    jobs = Jobs(problem, rows.best, None, None, None, table, rows.value, _NONE)
    answer = proved(jobs, objective, answered.time, answered.steepness, answered.price)
    if not (answer.certificate.gap <= GAP_MAX and answer.certificate.violation <= VIOLATION_MAX):
        return None
    return Kept(given, rows, goal, box), answer


def _given(problem: AllocationProblem, objective: LinearObjective) -> _Given | None:
    """The problem's arrays; None if it is not one of many jobs that can run on types with GPUs."""
    rate, counts = problem.member_rate_steps_per_s, problem.gpu_counts
    if len(rate) <= NUMPY_ROWS_MAX or not rate.flags.c_contiguous or not counts.min() > 0:
        return None
    value = objective.scale if isinstance(objective, MaxMin) else objective.gain
    worth = _NONE if isinstance(objective, MaxMin) else objective.gpu_type_worth
    floor = objective.rate_floor_steps_per_s
    return _Given(rate, problem.gpus_occupied, value, floor if floor.any() else _NONE, worth, counts)


def _kind(objective: LinearObjective, gpu_types: int, solver: Solver) -> str | None:
    kinds = ("level", engine.REST) if isinstance(objective, MaxMin) else ("sum",)
    return next((kind for kind in kinds if (kind, gpu_types) in solver.points), None)


def _may_follow(given: _Given, last: Kept, kind: str) -> bool:
    """Whether the cluster and the goal are those of the last problem."""
    was = last.given
    return (
        last.goal.kind == kind
        and len(was.floor) == (len(was.gpus) if len(given.floor) else 0)
        and was.gpu_counts.tobytes() == given.gpu_counts.tobytes()
        and was.worth.tobytes() == given.worth.tobytes()
    )


def _rows(given: _Given, last: Kept | None, changes_left: int, *, equal_values: bool) -> _Rows | None:
    """What is known of each job, from the last ones; None if too many are new, or some are equal."""
    from gavelpy.solve.prices.kept_kernels import followed

    J, T = given.rate.shape
    (best, value, total), rate, source, ends = np.empty((3, J)), np.empty((J, T)), np.empty(J, np.int64), np.empty(2)
    was = (given.rate[:0], _NONE, _NONE, _NONE) if last is None else last.given[:4]
    old = (best, rate, value, total) if last is None else last.rows[:4]
    new = followed(
        *map(fixed, was), *map(fixed, given[:4]), APART, _NEW_MAX, *old, source, best, rate, value, total, ends
    )
    left = changes_left
    if last is not None:
        left -= new + len(last.given.gpus) - (J - new)
        if left < 0 or (equal_values and new > 0 and (given.value[source < 0] != last.given.value[0]).any()):
            return None
    return _Rows(best, rate, value, total, source, ends, left, equal_values) if new >= 0 else None


def _new_rows(problem: AllocationProblem, given: _Given, objective: LinearObjective) -> _Rows | None:
    """What is known of each job; None if some are equal, or nearly equal."""
    if not ladder.asks_for_nearly_equal(problem, objective):
        return _rows(given, None, _NEW_MAX, equal_values=False)
    of_rates, of_values = nearness(given.rate), nearness(given.value)
    equal_values = not of_values.differs
    left = of_rates.changes_left() // given.rate.shape[1]
    if not equal_values:
        left = min(left, of_values.changes_left())
    return _rows(given, None, left, equal_values=equal_values) if left >= 0 else None


def _goal(given: _Given, rows: _Rows, objective: LinearObjective, kind: str) -> _Goal:
    value, none = rows.value, np.zeros(len(rows.value))
    if isinstance(objective, MaxMin):
        limit, most = rows.range_of_values.tolist()
        if kind == "level":
            return _Goal(kind, np.zeros((0, rows.rate.shape[1])), none, 1.0 / value, limit, ())
        gain = rows.rate * (value / most)[:, None]
        return _Goal(kind, gain, np.minimum(limit / value, 1.0), none, limit, (limit, most))
    gain = rows.rate * value[:, None]
    if len(given.worth):
        gain *= given.worth
    return _Goal(kind, gain, given.floor / rows.best if len(given.floor) else none, none, 0.0, ())


def _box(given: _Given, rows: _Rows, goal: _Goal, solver: Solver, last: Kept | None) -> _Box:
    """The box of the last answer for these jobs, or one around the prices that are kept."""
    from gavelpy.solve.prices.kept_kernels import copied

    J, T = rows.rate.shape
    low, high = np.empty((2, J), np.int64)
    margin = np.empty(J)
    if last is None or last.goal.common != goal.common:
        point = solver.points[goal.kind, T]
        price = np.where(point.price > 2 * PRICE_FLOOR * point.price.max(), point.price, 0.0)
        ties = np.zeros((T, 5), np.int64)
        box = _Box(price, point.level, np.empty(T), point.level, np.empty(T), 0.0, low, high, margin, ties)
        _centre(given, rows, goal, box, _doubted(J, T))
        return box
    was = last.box
    ties, level = was.ties.copy(), was.centre_level
    count = copied(
        rows.source, rows.rate, goal.gain, given.gpus, goal.at(level), goal.slope, level, was.centre, was.radius,
        low, high, margin, was.low, was.high, was.margin, ties, was.ties_count,
    )  # fmt: skip
    centre = was.centre, was.centre_level, was.radius, was.half
    return _Box(was.price.copy(), was.level, *centre, low, high, margin, ties, count)


def _centre(given: _Given, rows: _Rows, goal: _Goal, box: _Box, doubted: int) -> None:
    """Moves the centre to the last prices: computes the modes and margins of all jobs there."""
    from gavelpy.solve.prices.kept_kernels import centred

    box.centre_level = box.level
    box.half = centred(
        rows.rate, goal.gain, given.gpus, goal.at(box.level), goal.slope, box.level, box.price, box.centre, box.radius,
        doubted, box.low, box.high, box.margin,
    )  # fmt: skip


def _moved(given: _Given, rows: _Rows, goal: _Goal, box: _Box) -> Mix | None:
    """The answer from the prices of the box; None if it is not unique, or is not found."""
    from gavelpy.solve.prices.descent_kernels import AT_THE_EDGE, FOUND
    from gavelpy.solve.prices.kept_kernels import moved

    (J, T), is_level, ones = rows.rate.shape, goal.is_level, np.ones(len(rows.best))
    more, doubted, price = given.gpu_counts * (1.0 + TRACE), _doubted(J, T), np.empty(T)
    low, high, some, first = np.empty(J, np.int8), np.empty(J, np.int8), np.empty(J, np.int64), first_in_doubt(J, T)
    for _ in range(_CENTRES_MAX):
        end, box.level, box.ties_count, count = moved(
            rows.rate, goal.gain, given.gpus, goal.need, goal.slope, box.level, is_level, more, box.low, box.high,
            box.margin, box.half, box.centre_level, box.centre, box.radius, box.price, box.ties, box.ties_count,
            PRICE_FLOOR, first, price, low, high, some,
        )  # fmt: skip
        if end == FOUND:
            break
        if end != AT_THE_EDGE:
            return None
        doubted *= 2
        _centre(given, rows, goal, box, doubted)
    else:
        return None
    table, near = Table(rows.rate, given.gpus, ones, more, goal.gain), Point(price, box.level)
    return by_kernels(table, goal.need, goal.slope, is_level, near, low, high, some[:count], given.gpu_counts)


def _doubted(jobs: int, gpu_types: int) -> int:
    """Jobs in doubt around a centre: with fewer, a step takes less time, and the centre must move more often."""
    return int((_IN_DOUBT + _IN_DOUBT_PER_TYPE * gpu_types) * max(1.0, math.sqrt(jobs / _MANY)))


def _floored(price: Floats) -> Floats:
    floored: Floats = np.maximum(price, PRICE_FLOOR * price.max())
    return floored
