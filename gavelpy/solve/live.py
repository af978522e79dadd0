"""Solves max-min problems that change by one job at a time, each from the solution of the previous one.

Jobs are rows of arrays that grow. At a point of prices and level every job's mix is known, and how far prices may move
until another mix may be cheaper. One job changes prices very little: so only the few jobs whose mix is in doubt enter
the exact step (prices/crossover.py), and the other rows only contribute to sums of shares and to the certificate. If
that fails, or if jobs are few, the whole problem is solved from the start. All answers are certified.

Where the slowest job limits the level, only the rest of the GPUs is divided again, from the last prices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import VALUE_MAX, Floats, floats, require
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin
from gavelpy.solve.prices import engine
from gavelpy.solve.prices.crossover import exact
from gavelpy.solve.prices.engine import certificate_of
from gavelpy.solve.prices.newton import Dual, Point
from gavelpy.solve.prices.table import Modes, Proportional, Sweep, Table, kernels
from gavelpy.solve.prices.vertex import Mix, as_left
from gavelpy.solve.solver import Solver

_ROWS = 64  # allocated at first
_ATTEMPTS = 3  # of the exact step before the problem is solved from the start
_CENTRED = 1  # attempts after which the point stays


@dataclass(frozen=True, eq=False)
class LiveAnswer:
    """The best shares of the current jobs, certified. Rows are those of `job_ids` at that time."""

    share: Floats  # (J, T)
    shadow_prices: Floats  # (T,) level gained by one more GPU of each type
    certificate: Certificate


@dataclass(eq=False)
class LiveMaxMin:
    """Maximise  min_j scale_j r_j(x)  over jobs that are added and removed; every job runs alone. Not thread-safe.

    >>> live = LiveMaxMin(["v100", "k80"], [1, 1])
    >>> live.add("a", [4.0, 1.0], scale=1.0)
    >>> live.add("b", [3.0, 3.0], scale=1.0)
    >>> live.solve().share.round(6).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> live.remove("a")
    >>> round(live.solve().certificate.objective, 6)
    3.0
    """

    gpu_types: Sequence[str]
    gpu_counts: npt.ArrayLike  # (T,) > 0
    solver: Solver = field(default_factory=Solver)

    def __post_init__(self) -> None:
        T = len(self.gpu_types)
        self._counts = floats("gpu_counts", self.gpu_counts, (T,))
        require("gpu_counts", self._counts, np.isfinite(self._counts) & (self._counts > 0), "finite and > 0")
        self._ids: list[str] = []
        self._row: dict[str, int] = {}
        self._rate = np.zeros((_ROWS, T))  # in units of the best
        self._given = np.zeros((_ROWS, T))  # in steps/s
        self._best, self._gpus, self._scale, self._margin = np.zeros((4, _ROWS))
        self._low, self._high = np.zeros((2, _ROWS), np.int8)
        self._point: Point | None = None  # at which mixes and margins are known
        self._rest_price: Floats | None = None  # (T,) per unit of value, if the slowest job limited the last level

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The current jobs; the last one takes the row of a removed job."""
        return tuple(self._ids)

    def add(self, job_id: str, rates_steps_per_s: npt.ArrayLike, *, scale: float, gpus: float = 1.0) -> None:
        """Adds a job. Rates are (T,) in steps/s, 0 if it cannot run there; one must be positive."""
        if job_id in self._row:
            raise InvalidInput(f"job_id must be new, got {job_id!r} again")
        row = len(self._ids)
        if row == len(self._best):
            self._grow()
        self._write(row, job_id, rates_steps_per_s, scale, gpus)
        self._ids.append(job_id)
        self._row[job_id] = row

    def change(self, job_id: str, rates_steps_per_s: npt.ArrayLike, *, scale: float, gpus: float = 1.0) -> None:
        """Changes rates, scale and GPUs of a job."""
        self._write(self._row_of(job_id), job_id, rates_steps_per_s, scale, gpus)

    def remove(self, job_id: str) -> None:
        """Removes a job."""
        row, last = self._row_of(job_id), len(self._ids) - 1
        for column in self._columns():
            column[row] = column[last]
        moved = self._ids.pop()
        del self._row[job_id]
        if moved != job_id:
            self._ids[row] = moved
            self._row[moved] = row

    def solve(self) -> LiveAnswer:
        """The best shares now. Raises SolverFailed if they cannot be certified."""
        began_s = time.perf_counter()
        answer = self._answer()
        certificate = replace(answer.certificate, solve_s=time.perf_counter() - began_s)
        return replace(answer, certificate=certificate)

    def _answer(self) -> LiveAnswer:
        J, T = len(self._ids), len(self._counts)
        if not J:
            zero = Certificate(0.0, 0.0, gap=0.0, violation=0.0, path="nothing runs", solve_s=0.0)
            return LiveAnswer(np.zeros((0, T)), np.zeros(T), zero)
        table = Table(self._rate[:J], self._gpus[:J], np.ones(J), self._counts, np.zeros((0, T)))
        value = self._scale[:J] * self._best[:J]
        if engine.CLASSES_MIN <= J:
            for method, path in ((self._moved, "live"), (self._still_limited, "live"), (self._from_start, "prices")):
                mix = method(table, value)
                if mix is None:
                    continue
                answer = self._proved(mix, path)
                if answer.certificate.gap <= GAP_MAX and answer.certificate.violation <= VIOLATION_MAX:
                    self.solver.answers[path] += 1
                    return answer
                self.solver.falls[path] += 1
                self._point = self._rest_price = None
        return self._by_the_ladder()

    def _by_the_ladder(self) -> LiveAnswer:
        J = len(self._ids)
        problem = AllocationProblem.of(
            self._ids, self.gpu_types, self._counts, self._given[:J], gpus=self._gpus[:J]
        )  # fmt: skip
        allocation = solve(problem, MaxMin(self._scale[:J].copy()), self.solver)
        return LiveAnswer(allocation.share, allocation.shadow_prices, allocation.certificate)

    def _moved(self, table: Table, value: Floats) -> Mix | None:
        """The answer from the point at which mixes are known; None if the exact step fails."""
        if self._point is None:
            return None
        J, limit = len(value), float(value.min())
        dual = Dual(table, Proportional(1.0 / value), level_max=limit)
        need, slope = dual.needs.at(self._point.level)
        if self._point.level >= limit:
            return None
        low, high = self._low[:J], self._high[:J]
        used, drift = kernels(J).demand(table, low, high, need, slope)
        known = Sweep(low, high, self._margin[:J], used, drift, np.zeros((0, 0)), 0.0, short=0)
        vertex = exact(dual, self._point, self.solver, _ATTEMPTS, known)
        if vertex is None or vertex.level >= limit * (1 - engine.AT_THE_LIMIT):
            return None
        mix = as_left(table, vertex, vertex.level)
        if not (mix.price > 0).all():  # GPUs of free types must be given to some job
            return None
        if vertex.attempts > _CENTRED:
            self._centre(dual, Point(vertex.price, vertex.level))
        return mix

    def _still_limited(self, table: Table, value: Floats) -> Mix | None:
        """The answer if the slowest job limited the last level and still does; None if that is not found."""
        if self._rest_price is None:
            return None
        found = engine.limited_again(table, value, self._rest_price, self.solver)
        mix, self._rest_price = found or (None, None)
        return mix

    def _from_start(self, table: Table, value: Floats) -> Mix | None:
        at, limit = (engine.REST, len(self._counts)), float(value.min())
        self.solver.points.pop(at, None)
        mix = engine.max_min(table, value, self.solver)
        self._point = self._rest_price = None
        if mix is not None and (mix.price > 0).all():
            self._centre(Dual(table, Proportional(1.0 / value), level_max=limit), Point(mix.price, mix.level))
        elif mix is not None and not mix.price.any() and at in self.solver.points:
            self._rest_price = self.solver.points[at].price * value.max()
        return mix

    def _centre(self, dual: Dual, point: Point) -> None:
        """Computes all mixes and margins at a point."""
        s = dual.swept(point.price, point.level)
        J = len(s.margin)
        self._low[:J], self._high[:J], self._margin[:J] = s.low, s.high, s.margin
        self._point = point

    def _proved(self, mix: Mix, path: str) -> LiveAnswer:
        J, T = len(self._ids), len(self._counts)
        best, gpus, scale, none = self._best[:J], self._gpus[:J], self._scale[:J], np.zeros(J)
        weight = mix.steepness / best
        t = kernels(J).tally(
            self._given[:J], gpus, mix.time, weight, none, np.ones(T), mix.price, scale, none, best
        )  # fmt: skip
        certificate, unit = certificate_of(t, mix.price, self._counts, is_level=True, path=path)
        return LiveAnswer(mix.time, mix.price / unit, certificate)

    def _row_of(self, job_id: str) -> int:
        if job_id not in self._row:
            raise InvalidInput(f"job_id must be a current job, got {job_id!r}")
        return self._row[job_id]

    def _write(self, row: int, job_id: str, rates: npt.ArrayLike, scale: float, gpus: float) -> None:
        given = floats(f"rates_steps_per_s of {job_id!r}", rates, (len(self._counts),))
        possible = (given >= 0) & (given <= VALUE_MAX)
        require(f"rates_steps_per_s of {job_id!r}", given, possible & (given.max() > 0), "in [0, 1e18], and one > 0")
        for name, figure in (("scale", scale), ("gpus", gpus)):
            if not 0 < figure <= VALUE_MAX:
                raise InvalidInput(f"{name} of {job_id!r} must be > 0 and at most {VALUE_MAX:g}, got {figure!r}")
        best = float(given.max())
        self._given[row], self._rate[row], self._best[row] = given, given / best, best
        self._scale[row], self._gpus[row] = scale, gpus
        if self._point is not None:
            self._compute_mix(row)

    def _compute_mix(self, row: int) -> None:
        """Computes the mix of one job at the point."""
        assert self._point is not None
        one = slice(row, row + 1)
        table = Table(self._rate[one], self._gpus[one], np.ones(1), self._counts, np.zeros((0, len(self._counts))))
        per_level = 1.0 / (self._scale[one] * self._best[one])
        level = self._point.level
        s = kernels(len(self._ids)).sweep(table, level * per_level, per_level, self._point.price, 0.0, level)
        self._low[row], self._high[row], self._margin[row] = s.low[0], s.high[0], s.margin[0]

    def _columns(self) -> tuple[Floats | Modes, ...]:
        return (
            self._rate, self._given, self._best, self._gpus, self._scale, self._margin, self._low, self._high
        )  # fmt: skip

    def _grow(self) -> None:
        (
            self._rate, self._given, self._best, self._gpus, self._scale, self._margin, self._low, self._high
        ) = (np.concatenate([c, np.zeros_like(c)]) for c in self._columns())  # fmt: skip
