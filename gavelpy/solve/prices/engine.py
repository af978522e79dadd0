"""Max-min and max-sum by prices: the rung for many distinct jobs that run alone, with its certificate.

Newton's method finds approximate prices (newton.py), small linear programs make them exact (crossover.py), and GPUs of
free types that are left are given to the jobs with the highest sum of scaled rates (the rule for ties). The certificate
uses the arithmetic of certificate.py for jobs that run alone, in one pass over the problem's own arrays.

*Infeasible floors.* The sum of gains then has no finite prices: they rise without end, and gains become negligible. At
such prices, the marginal cost of each job's floor, without gains, is its weight in a Farkas ray, which certificate.py
checks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import Answer, FloorsRefused, failed, floors_of
from gavelpy.solve.linear import TRACE
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.prices.certified import proved, ray_at
from gavelpy.solve.prices.crossover import ATTEMPTS, exact
from gavelpy.solve.prices.newton import PRICE_FLOOR, Dual, Point, near
from gavelpy.solve.prices.pivots import has_few_pivots, most_gain, most_gain_of_whole_jobs
from gavelpy.solve.prices.starting_prices import NEWTON_MIN, near_level, near_sum, roughly_level
from gavelpy.solve.prices.table import (
    INTERPRETED,
    Fixed,
    Jobs,
    Proportional,
    Table,
    compiled,
    fixed,
    jobs_of,
    kernels,
    search_kernels,
)
from gavelpy.solve.prices.vertex import Mix, as_left, from_prices, read_off, unique
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver

CLASSES_MIN = 64  # below, pivots or HiGHS on the whole program are as fast, unless each class is many jobs
AT_THE_LIMIT = 1e-12
_SPENT = 1e-12  # part of a type's GPUs that is negligible
_NEXT_TO_NOTHING = 1e-300  # a price that only breaks ties
_RECALLED_ATTEMPTS, _RECALLED_IN_DOUBT = 3, 0.5  # from the prices of a problem that differs by a few jobs
_BEYOND = 1e-6  # relative: closer than rounding and the tolerances of pivots, the pivots decide
_FAR_BELOW = 0.9  # of the cost: the prices will hardly make up for that
_PRICE_STEPS, _SLOWEST = 12, 0.25  # 20 µs each for 128 jobs; least square of a price's change in one step
_COLUMNS_ENTRIES_MAX = 6200  # classes x types; with more, Newton's method needs fewer passes over the jobs
_COLUMNS_GAP = 1e-9
REST = "rest"  # kind of the prices of what a level leaves


def answers(problem: AllocationProblem, objective: LinearObjective) -> bool:
    """Whether this rung applies to the problem."""
    if not problem.is_plain:
        return False
    match objective:
        case MaxMin():
            plain = not (objective.rate_floor_steps_per_s.any() or objective.base_steps_per_s.any())
            return plain and bool((objective.scale > 0).all())
        case MaxSum():
            return True


def table_of(problem: AllocationProblem, objective: LinearObjective) -> Jobs:
    """The table of a problem to which this rung applies."""
    floors = floors_of(objective, problem.job_count)
    if isinstance(objective, MaxSum):
        return jobs_of(problem, objective.gain, floors)
    return jobs_of(problem, objective.scale, floors, objective.count if len(objective.count) else None)


@INTERPRETED.search()
def best_of(jobs: Jobs, objective: LinearObjective, solver: Solver, *, inside: bool = False) -> Answer | None:
    """The best certified shares of a table's problem, or None if there are few classes.

    See `answers`; `inside`: see starting_prices.py. Raises SolverFailed if no prices are found: FloorsRefused with a
    ray if there are floors.
    """
    table, floor, problem = jobs.table, jobs.floor, jobs.problem
    if isinstance(objective, MaxSum):
        gains = table.rate * jobs.value[:, None]
        if len(objective.gpu_type_worth):
            gains *= objective.gpu_type_worth if jobs.types is None else objective.gpu_type_worth[jobs.types]
        table = replace(table, gain=gains)
    if inside and len(jobs.value) <= NUMPY_ROWS_MAX:  # HiGHS is as fast
        return None
    if len(jobs.value) < CLASSES_MIN:
        mix = _of_few(table, jobs.value, floor)
        if mix is None and isinstance(objective, MaxMin) and len(objective.count):
            mix = _without_ties(max_min(table, jobs.value, solver))
        return None if mix is None else proved(jobs, objective, mix.time, mix.steepness, mix.price)
    last: Point | None = None
    if len(table.gain):
        mix = None
        if has_few_pivots(table) and not (inside or _is_large(table)):
            mix = most_gain_of_whole_jobs(table, floor) or most_gain(table, floor)
        if mix is None or not mix.has_unique_times:  # others are as good: which of them must not depend on the method
            mix, last = _max_sum(table, floor, solver, inside=inside)
    else:
        mix = max_min(table, jobs.value, solver, inside=inside)
    if mix is not None and mix.price.any() and not mix.is_unique:  # nor are prices: take the value of the next GPU
        mix = _with_prices_of_the_next_gpu(table, jobs.value, floor, mix, solver)
    if mix is None and last is not None and floor.any():  # unbounded prices: the floors may be infeasible
        raise FloorsRefused(problem, "not found", ray_at(jobs, last.price))
    if mix is None:
        raise failed(problem, "not found", "prices")
    return proved(jobs, objective, mix.time, mix.steepness, mix.price, by="interior" if inside else "prices")


def _of_few(table: Table, value: Floats, floor: Floats) -> Mix | None:
    """The answer for few classes, if pivots find it."""
    if not len(table.gain):
        return _limited_few(table, value)
    mix = most_gain_of_whole_jobs(table, floor) or most_gain(table, floor)
    if mix is None or mix.is_unique or not mix.price.any():
        return mix
    return _with_prices_of_a_trace_more(table, floor, mix)


def _without_ties(mix: Mix | None) -> Mix | None:
    """The mix if all types have prices, which nothing else has. Else HiGHS breaks ties among large classes exactly."""
    return mix if mix is not None and mix.is_unique and mix.price.all() else None


def _with_prices_of_a_trace_more(table: Table, floor: Floats, mix: Mix) -> Mix | None:
    """The mix with the prices of slightly more GPUs, if they are unique and pivots find them."""
    more = most_gain(replace(table, gpu_counts=table.gpu_counts * (1 + TRACE)), floor)
    return replace(mix, price=more.price, steepness=more.steepness) if more is not None and more.is_unique else None


def _limited_few(table: Table, value: Floats) -> Mix | None:
    """The answer for few classes if the slowest job limits the level and pivots find it."""
    need = np.minimum(float(value.min()) / value, 1.0)
    if _is_out_of_reach(table, need):
        return None
    rest = most_gain(replace(table, gain=table.rate * (value / value.max())[:, None]), need)
    return None if rest is None else limited(rest, value)


def _is_out_of_reach(table: Table, need: Floats) -> bool:
    """Whether prices (T,) prove that no shares give every job its need (K,): the GPUs cost less than the needs do.

    A need costs at least its cheapest type, even if time were without limit. Pivots need milliseconds to find that out.
    The prices follow the demand; False proves nothing.
    """
    W, load = table.gpu_counts, table.load * need
    if search_kernels() is not None:
        from gavelpy.solve.prices.problem_kernels import is_out_of_reach

        given = map(fixed, (table.rate, table.gpus, table.count, need, W))
        return bool(is_out_of_reach(*given, _PRICE_STEPS, _BEYOND, _FAR_BELOW, _SLOWEST))
    with np.errstate(divide="ignore"):
        gpus = np.where(table.rate > 0, 1.0 / table.rate, np.inf)  # for a unit of rate
    price, rows = np.ones(len(W)), np.arange(len(need))
    for step in range(_PRICE_STEPS):
        cost = gpus * price
        cheapest = cost.argmin(axis=1)
        least = load * cost[rows, cheapest]
        part = least.sum() / (price @ W)
        if part > 1.0 + _BEYOND:
            return True
        if step and part < _FAR_BELOW:
            return False
        spent = np.bincount(cheapest, weights=least, minlength=len(W))
        price = price * np.sqrt(np.maximum(spent / (price * W), _SLOWEST))
    return False


def _with_prices_of_the_next_gpu(table: Table, value: Floats, floor: Floats, mix: Mix, solver: Solver) -> Mix | None:
    """The mix with the duals for slightly more GPUs, which change nothing else, from the duals without."""
    found = None
    if len(table.gain) and has_few_pivots(table):
        found = _with_prices_of_a_trace_more(table, floor, mix)
    if found is None:
        table = replace(table, gpu_counts=table.gpu_counts * (1 + TRACE))
        more = _near_these_prices(table, value, floor, mix, solver)
        found = more and replace(mix, price=more.price, steepness=more.steepness)
    return found


def _near_these_prices(table: Table, value: Floats, floor: Floats, mix: Mix, solver: Solver) -> Mix | None:
    price = np.maximum(mix.price, PRICE_FLOOR * mix.price.max())
    if len(table.gain):
        dual = Dual(table, Fixed(floor))
    else:
        dual = Dual(table, Proportional(1.0 / value), level_max=float(value.min()))
    vertex = exact(dual, Point(price, mix.level), solver)
    return None if vertex is None else as_left(table, vertex, vertex.level)


def max_min(table: Table, value: Floats, solver: Solver, *, inside: bool = False) -> Mix | None:
    """Times with the highest least value_k rate_k, then the highest sum. `inside`: see starting_prices.py."""
    limit = float(value.min())
    dual = Dual(table, Proportional(1.0 / value), level_max=limit)
    W = table.gpu_counts
    mix = None
    if _is_large(table) and not inside:
        if (REST, len(W)) in solver.points and ("level", len(W)) not in solver.points:
            mix = _at_the_limit(table, value, limit, solver)
            if mix is not None:
                return mix
        mix = _recalled(dual, "level", solver)
    if mix is None:
        mix = None if inside else _by_columns(dual, value, solver)
    if mix is not None and mix.level >= limit * (1 - AT_THE_LIMIT):
        return mix
    if mix is None and not inside:
        mix = _recalled(dual, "level", solver)
    if mix is None:
        mix = _limited_few(table, value) if len(value) < NEWTON_MIN else None
        if mix is not None:
            solver.points.pop(("level", len(W)), None)  # the next level is probably also at its limit
            return mix
        start = None if inside or len(value) < NEWTON_MIN else roughly_level(dual, value)
        if start is not None and start.bound > limit:
            mix = _at_the_limit(table, value, limit, solver)
            if mix is not None:
                return mix
        found = near_level(dual, value, solver, start, inside=inside)
        if found.bound >= limit * (1 - AT_THE_LIMIT):
            mix = _at_the_limit(table, value, limit, solver, inside=inside)
            if mix is not None:
                return mix
        mix = _found(dual, found, "level", solver)
        if mix is None:
            return None
        if mix.level > limit * (1 - AT_THE_LIMIT):
            return _at_the_limit(table, value, limit, solver, inside=inside)
    return with_the_rest_spent(table, value, mix.level / value, mix, solver, inside=inside)


def _by_columns(dual: Dual, value: Floats, solver: Solver) -> Mix | None:
    """The highest level from prices by compiled columns, if kernels are loaded and no search could find another answer.

    At the limit of the slowest job, the GPUs that are left are spent too.
    """
    table, search = dual.table, search_kernels()
    if search is None or table.rate.size > _COLUMNS_ENTRIES_MAX:
        return None
    price, limit = np.zeros(len(table.gpu_counts)), float(value.min())
    gpu_counts = table.gpu_counts.copy()  # writable, as numba compiles another function for read-only arrays
    level, bound, _ = search.level_by_columns(table.rate, table.gpus, table.count, value, gpu_counts, price)
    if level >= limit * (1 - AT_THE_LIMIT):
        solver.points.pop(("level", len(price)), None)
        return _at_the_limit(table, value, limit, solver)
    if bound - level > _COLUMNS_GAP * level or not price.max() > 0:
        return None
    near = Point(np.maximum(price, PRICE_FLOOR * price.max()), level)
    mix = from_prices(replace(dual, loops=compiled), near)
    if mix is None:
        return None
    solver.points["level", len(price)] = Point(mix.price, mix.level, 0.0)
    return mix


def max_sum(table: Table, floor: Floats, solver: Solver, kind: str = "sum", *, inside: bool = False) -> Mix | None:
    """Times with the highest sum of gains that give every job its floor, (K,) in units of its best rate."""
    return _max_sum(table, floor, solver, kind, inside=inside)[0]


def _max_sum(
    table: Table, floor: Floats, solver: Solver, kind: str = "sum", *, inside: bool
) -> tuple[Mix | None, Point | None]:
    """The mix, and the approximate prices from which the search began."""
    W = table.gpu_counts
    dual = Dual(table, Fixed(floor))
    mix = None if inside else _recalled(dual, kind, solver)
    if mix is not None:
        return mix, None
    s = None if _all_exceed(table) else dual.swept(np.full(len(W), _NEXT_TO_NOTHING), 0.0)
    if s is not None and (s.used <= W).all():
        time, steepness = kernels(len(floor)).settle(table, s.low, s.high, floor, np.zeros(len(W)))
        return Mix(time, steepness, np.zeros(len(W)), level=0.0, is_unique=False), None
    found = near_sum(dual, floor, solver, inside=inside)
    return _found(dual, found, kind, solver), found


def _all_exceed(table: Table) -> bool:
    """Whether all jobs would gain by running all the time, and there are too few GPUs for that."""
    if not float(table.load.sum()) > (1.0 + _BEYOND) * float(table.gpu_counts.sum()):
        return False
    return bool(reduce(np.maximum, table.gain.T).min() > 0)


def _recalled(dual: Dual, kind: str, solver: Solver) -> Mix | None:
    """The answer from the last prices of this kind, if it is unique, and so does not depend on them."""
    point = solver.points.get((kind, dual.table.rate.shape[1]))
    if point is None:
        return None
    if _is_large(dual.table):
        mix = unique(dual, point, doubted=_RECALLED_IN_DOUBT)
        if mix is None or not mix.price.any():
            return None
        if dual.level_max is not None and mix.level > dual.level_max * (1 - AT_THE_LIMIT):
            return None
        return _remembered(kind, mix, solver)
    vertex = exact(dual, point, solver, attempts=_RECALLED_ATTEMPTS)
    if vertex is None or (dual.level_max is not None and vertex.level > dual.level_max * (1 - AT_THE_LIMIT)):
        return None
    mix = read_off(dual.table, vertex)
    if not mix.is_unique:
        return None
    solver.points[kind, len(mix.price)] = Point(vertex.price, mix.level, 0.0)
    return mix


def _is_large(table: Table) -> bool:
    """Whether there are so many classes that compiled steps answer, cold and warm."""
    return len(table.gpus) > NUMPY_ROWS_MAX


def _remembered(kind: str, mix: Mix, solver: Solver) -> Mix:
    price = np.maximum(mix.price, PRICE_FLOOR * mix.price.max())
    solver.points[kind, len(mix.price)] = Point(price, mix.level, 0.0)
    return mix


def _found(dual: Dual, start: Point, kind: str, solver: Solver) -> Mix | None:
    mix = unique(dual, start) if _is_large(dual.table) else None
    if mix is None and _is_large(dual.table):  # prices were too rough: a search from kept ones may find it
        mix = unique(dual, near(dual, start))
    if mix is not None and mix.price.any():
        return _remembered(kind, mix, solver)
    vertex = exact(dual, start, solver, ATTEMPTS)
    if vertex is None:
        return None
    solver.points[kind, len(vertex.price)] = Point(vertex.price, vertex.level, 0.0)
    return read_off(dual.table, vertex)


def _at_the_limit(table: Table, value: Floats, limit: float, solver: Solver, *, inside: bool = False) -> Mix | None:
    """The answer if the slowest job limits the level: it runs all the time."""
    rest = _spent(table, value, np.minimum(limit / value, 1.0), table.gpu_counts, solver, inside=inside)
    return None if rest is None else limited(rest, value)


def limited(rest: Mix, value: Floats) -> Mix:
    """Times with the duals of a level that the slowest job limits: only its own time has a price."""
    slowest = np.zeros(len(value))
    slowest[int(np.argmin(value))] = 1.0
    return Mix(rest.time, slowest, np.zeros(len(rest.price)), float(value.min()), is_unique=False)


def with_the_rest_spent(
    table: Table, value: Floats, need: Floats, mix: Mix, solver: Solver, *, inside: bool = False
) -> Mix | None:
    """Gives the GPUs left of free types to jobs on free types only, for the highest sum of values; needs stay met.

    `value` (K,) is that of a job's best rate.
    """
    free = (mix.price <= 0) & (table.load @ mix.time < table.gpu_counts * (1 - _SPENT))
    rows = np.flatnonzero((mix.time[:, ~free] <= 0).all(axis=1) & (table.rate[:, free] > 0).any(axis=1))
    if not len(rows):
        return mix
    least = np.minimum(need[rows], (table.rate[rows][:, free] * mix.time[rows][:, free]).sum(axis=1))
    need = need.copy()
    need[rows] = least
    return with_free_types_spent(table, value, need, mix, rows, free, solver, inside=inside)


def with_free_types_spent(
    table: Table, value: Floats, need: Floats, mix: Mix, rows: Ints, free: Bools, solver: Solver, *,
    inside: bool = False,
) -> Mix | None:  # fmt: skip
    """The mix with new times of the classes `rows`, on the types `free` (T,) only: the highest sum of values."""
    some = Table(
        np.ascontiguousarray(table.rate[rows][:, free]), table.gpus[rows], table.count[rows], table.gpu_counts[free],
        table.gain,
    )  # fmt: skip
    taken = table.load @ mix.time - some.load @ mix.time[rows]
    rest = _spent(some, value[rows], need[rows], np.maximum(table.gpu_counts - taken, 0.0)[free], solver, inside=inside)
    if rest is None:
        return None
    time = mix.time.copy()
    time[np.ix_(rows, np.flatnonzero(free))] = rest.time
    return replace(mix, time=time)


def _spent(
    table: Table, value: Floats, need: Floats, gpu_counts: Floats, solver: Solver, *, inside: bool
) -> Mix | None:
    table = _rest(table, value, need, gpu_counts).table
    few = len(value) < NEWTON_MIN or (has_few_pivots(table) and not inside)
    mix = most_gain(table, need) if few and not _is_large(table) else None
    if mix is None:
        return max_sum(table, need, solver, REST, inside=inside)
    if mix.price.any():
        solver.points[REST, len(mix.price)] = Point(np.maximum(mix.price, PRICE_FLOOR * mix.price.max()), 0.0)
    return mix


def _rest(table: Table, value: Floats, need: Floats, gpu_counts: Floats) -> Dual:
    """The highest sum of values that gives each job its need (K,) on these GPUs (T,); unit: the highest value."""
    gains = table.rate * (value / value.max())[:, None]
    return Dual(replace(table, gain=gains, gpu_counts=gpu_counts), Fixed(need))
