"""Solves max-min problems that change by one job at a time, each from the solution of the previous one.

Jobs are rows of arrays that grow. At a point of prices and level every job's mix is known, and how far prices may move
until another mix may be cheaper. One job changes prices very little: so only the few jobs whose mix is in doubt enter
the exact step (prices/descent_kernels.py), and the other rows only contribute to sums of shares and to the certificate.
The step stays in a box of prices in which that is right; at its edge, a new point is chosen. If that fails, or if jobs
are few, the whole problem is solved from the start. All answers are certified.

Where the slowest job limits the level, its need and that of the others are fixed, and only the rest of the GPUs is
divided again, for the highest sum of values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import VALUE_MAX, Floats, Ints, floats, require
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin
from gavelpy.solve.prices import engine
from gavelpy.solve.prices.certified import certificate_of
from gavelpy.solve.prices.table import Modes, Table, Tally, kernels
from gavelpy.solve.prices.vertex import Mix
from gavelpy.solve.solver import Solver

_ROWS = 64  # allocated at first
_ATTEMPTS = 16  # of the exact step before the problem is solved from the start
_IN_DOUBT, _IN_DOUBT_PER_TYPE = 32, 8  # jobs whose mixes may change before all are computed again
_MANY = 16384  # jobs; with more, more are in doubt
_GROWTH = 2
_RADIUS = 0.05  # of the highest price: least unit of distance of a price
_TIED = 1e-10
_BOX_MAX = 0.3  # relative
_FREE = 4e-12  # of the highest price: a type that costs no more is free


@dataclass(eq=False)
class _State:
    """The last answer, and the point at which all mixes and margins are known."""

    level: float
    is_level: bool  # whether GPUs limit the level; if not, the slowest job does
    money: float  # gain of a unit of value beyond the needs; 0 if GPUs limit the level
    price: Floats  # (T,)
    centre: Floats  # (T,) prices of the point
    centre_level: float
    radius: Floats  # (T,) of prices
    half: float  # how far prices may move from there, as a part of the radius; jobs with a lower margin are in doubt
    used: Floats  # (T,) GPUs of the jobs that are not in doubt, at `level`
    drift: Floats  # (T,) more GPUs of them for a unit of level
    ties: Ints  # (T, 5) row of each job with two corners, and their modes
    ties_count: int = 0


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
        self._best, self._gpus, self._scale, self._value, self._per_level = np.zeros((5, _ROWS))
        self._margin, self._climb, self._base = np.zeros((3, _ROWS))
        self._low, self._high = np.zeros((2, _ROWS), np.int8)
        self._state: _State | None = None

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
        if self._state is not None:
            self._forget(row, last)
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
        c, solve_s = answer.certificate, time.perf_counter() - began_s
        certificate = Certificate(c.objective, c.bound, c.gap, c.violation, c.path, solve_s, c.warning)
        return LiveAnswer(answer.share, answer.shadow_prices, certificate)

    def _answer(self) -> LiveAnswer:
        J, T = len(self._ids), len(self._counts)
        if not J:
            zero = Certificate(0.0, 0.0, gap=0.0, violation=0.0, path="nothing runs", solve_s=0.0)
            return LiveAnswer(np.zeros((0, T)), np.zeros(T), zero)
        if engine.CLASSES_MIN <= J:
            for method in (self._moved, self._from_start):
                answer = method(J)
                if answer is None:
                    continue
                found = answer.certificate
                if found.gap <= GAP_MAX and found.violation <= VIOLATION_MAX:
                    self.solver.answers[found.path] += 1
                    return answer
                self.solver.falls[found.path] += 1
                self._state = None
        return self._by_the_ladder()

    def _by_the_ladder(self) -> LiveAnswer:
        J = len(self._ids)
        problem = AllocationProblem.of(
            self._ids, self.gpu_types, self._counts, self._given[:J], gpus=self._gpus[:J]
        )  # fmt: skip
        allocation = solve(problem, MaxMin(self._scale[:J].copy()), self.solver)
        return LiveAnswer(allocation.share, allocation.shadow_prices, allocation.certificate)

    def _moved(self, J: int) -> LiveAnswer | None:
        """The answer from the last one; None if there is none, or if the exact step fails."""
        from gavelpy.solve.prices.descent_kernels import AT_THE_EDGE, FOUND
        from gavelpy.solve.prices.event_kernels import vertex

        s, T = self._state, len(self._counts)
        if s is None:
            return None
        value = self._value[:J]
        limit = float(value.min())
        in_doubt = self._in_doubt()
        if not s.is_level and limit != s.level:  # all needs change
            s.level = limit
            self._centre(s, in_doubt)
        time, figures, spent = np.empty((J, T)), np.empty(5), np.empty(T)
        for _ in range(_ATTEMPTS):
            if s.is_level and s.level >= limit:
                return None
            end, level, s.ties_count = vertex(
                self._rate[:J], self._gpus, value, self._per_level, self._low, self._high, self._margin, self._climb,
                self._base, self._counts,
                s.money, s.level, s.is_level, s.half, s.centre, s.radius, s.centre_level, s.used, s.drift, s.price,
                s.ties, s.ties_count, time, figures, spent,
            )  # fmt: skip
            s.level = level
            if end == FOUND:
                is_at_the_limit = s.is_level and level >= limit * (1 - engine.AT_THE_LIMIT)
                return None if is_at_the_limit else self._live(s, time, figures, spent, value)
            if end != AT_THE_EDGE:
                return None
            in_doubt *= _GROWTH
            self._centre(s, in_doubt)
        return None

    def _live(self, s: _State, time: Floats, figures: Floats, spent: Floats, value: Floats) -> LiveAnswer:
        """The answer with its certificate: if the slowest job limits the level, only its own time has a price."""
        least, budgets, weights, sign, over = figures.tolist()
        price = s.price.copy() if s.is_level else np.zeros(len(s.price))
        if not s.is_level:
            budgets, weights = 1.0, float(self._per_level[value.argmin()])
        t = Tally(least, 0.0, spent, budgets, 0.0, weights, sign, over, 0.0)
        certificate, unit = certificate_of(t, price, self._counts, is_level=True, path="live")
        return LiveAnswer(time, price / unit, certificate)

    def _from_start(self, J: int) -> LiveAnswer | None:
        table = Table(self._rate[:J], self._gpus[:J], np.ones(J), self._counts, np.zeros((0, len(self._counts))))
        at, value = (engine.REST, len(self._counts)), self._value[:J]
        self.solver.points.pop(at, None)
        mix = engine.max_min(table, value, self.solver)
        self._state = None
        if mix is None:
            return None
        if (mix.price > 0).all():
            self._begin(mix.level, mix.price, money=0.0)
        elif not mix.price.any() and at in self.solver.points:
            price = self.solver.points[at].price
            self._begin(mix.level, np.where(price > _FREE * price.max(), price, 0.0), money=1.0 / float(value.max()))
        return self._proved(mix)

    def _begin(self, level: float, price: Floats, *, money: float) -> None:
        T = len(price)
        ties = np.zeros((T, 5), dtype=np.int64)
        self._state = _State(
            level, money == 0.0, money, price.copy(), price, level, price, 0.0, np.zeros(T), np.zeros(T), ties
        )
        self._centre(self._state, self._in_doubt())

    def _in_doubt(self) -> int:
        more = max(1.0, (len(self._ids) / _MANY) ** 0.5)
        return int((_IN_DOUBT + _IN_DOUBT_PER_TYPE * len(self._counts)) * more)

    def _centre(self, state: _State, in_doubt: int) -> None:
        """Computes all mixes and margins at the prices of the last answer."""
        J = len(self._ids)
        price = state.centre = state.price.copy()
        state.centre_level, state.radius, state.half = state.level, np.maximum(price, _RADIUS * price.max()), np.inf
        self._compute_mixes(0, J)
        if in_doubt < J:
            margin = np.sort(self._margin[:J])
            tied = int(np.searchsorted(margin, _TIED))  # equal jobs: all have the same choice
            edge = margin[min(max(in_doubt, 2 * tied), J - 1)]
            state.half = min(float(edge) * (1 - 1e-9), _BOX_MAX)
        state.used[:] = state.drift[:] = 0.0
        self._count(0, J, 1.0)

    def _count(self, first: int, last: int, factor: float) -> None:
        """Adds the GPUs of some rows to the sums, or takes them away."""
        from gavelpy.solve.prices.event_kernels import count

        s = self._state
        assert s is not None
        count(
            self._gpus, first, last, s.level, s.is_level, self._low, self._high, self._margin, self._climb, self._base,
            s.half, factor, s.used, s.drift,
        )  # fmt: skip

    def _proved(self, mix: Mix) -> LiveAnswer:
        J, T = len(self._ids), len(self._counts)
        best, gpus, scale, none = self._best[:J], self._gpus[:J], self._scale[:J], np.zeros(J)
        t = kernels(J).tally(
            self._given[:J], gpus, mix.time, mix.steepness / best, none, np.ones(T), mix.price, scale, none, best
        )  # fmt: skip
        certificate, unit = certificate_of(t, mix.price, self._counts, is_level=True, path="prices")
        return LiveAnswer(mix.time, mix.price / unit, certificate)

    def _row_of(self, job_id: str) -> int:
        if job_id not in self._row:
            raise InvalidInput(f"job_id must be a current job, got {job_id!r}")
        return self._row[job_id]

    def _write(self, row: int, job_id: str, rates: npt.ArrayLike, scale: float, gpus: float) -> None:
        given = floats(f"rates_steps_per_s of {job_id!r}", rates, (len(self._counts),))
        best = max(numbers := given.tolist())
        if not (best > 0 and all(0 <= rate <= VALUE_MAX for rate in numbers)):
            possible = (given >= 0) & (given <= VALUE_MAX) & (given.max() > 0)
            require(f"rates_steps_per_s of {job_id!r}", given, possible, "in [0, 1e18], and one > 0")
        for name, figure in (("scale", scale), ("gpus", gpus)):
            if not 0 < figure <= VALUE_MAX:
                raise InvalidInput(f"{name} of {job_id!r} must be > 0 and at most {VALUE_MAX:g}, got {figure!r}")
        if self._state is not None and row < len(self._ids):
            self._forget(row)
        self._given[row], self._rate[row], self._best[row] = given, given / best, best
        self._scale[row], self._gpus[row], self._value[row] = scale, gpus, scale * best
        self._per_level[row] = 1.0 / self._value[row]
        if self._state is not None:
            self._compute_mixes(row, row + 1)
            self._count(row, row + 1, 1.0)

    def _compute_mixes(self, first: int, last: int) -> None:
        """Computes mixes and margins of some rows at the point."""
        from gavelpy.solve.prices.event_kernels import mixes

        s = self._state
        assert s is not None
        mixes(
            self._rate, self._gpus, self._value, first, last, s.money, s.centre_level, s.is_level, s.centre, s.radius,
            self._low, self._high, self._margin, self._climb, self._base,
        )  # fmt: skip

    def _forget(self, row: int, moved: int | None = None) -> None:
        """Takes a row out of the sums and the ties; those of the row `moved` are then its."""
        self._count(row, row + 1, -1.0)
        s = self._state
        assert s is not None
        count = 0
        for n in range(s.ties_count):
            at = int(s.ties[n, 0])
            if at != row:
                s.ties[count] = s.ties[n]
                s.ties[count, 0] = row if at == moved else at
                count += 1
        s.ties_count = count

    def _columns(self) -> tuple[Floats | Modes, ...]:
        return (
            self._rate, self._given, self._best, self._gpus, self._scale, self._value, self._per_level, self._margin,
            self._climb, self._base, self._low, self._high,
        )  # fmt: skip

    def _grow(self) -> None:
        (
            self._rate, self._given, self._best, self._gpus, self._scale, self._value, self._per_level, self._margin,
            self._climb, self._base, self._low, self._high,
        ) = (np.concatenate([c, np.zeros_like(c)]) for c in self._columns())  # fmt: skip
