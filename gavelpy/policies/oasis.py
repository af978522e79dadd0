"""OASiS: admits jobs whose value exceeds the price of their best schedule, and keeps the schedules of admitted jobs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import AGAIN_MIN_S, MEMORY_BYTES_MAX, Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.completion_value import values_at
from gavelpy.model.job import JobId
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput, ruled
from gavelpy.policies.places import PlacesAlone
from gavelpy.policies.slot_prices import Offer, SlotPrices
from gavelpy.solve.solver import Solver

_ROUNDING = 1e-9
_OTHER_BYTES = 4_096  # of the memory, for all but schedules and refusals


@dataclass(frozen=True)
class Oasis:
    """Admit job i if  μ_i = max over schedules l of  f_i(end of l) - Σ_s Σ_r p_rs w_irs(l)  is positive.

    f_i      the job's value of completion (`--completion-value`), by the time from its submission to its end
    w_irs    what the schedule uses of resource r at a GPU type in slot s: in each slot one of the job's sizes, or none
    p_rs     the price,  L (U_r / L)^(used_rs / W_r);  W_r: all of it
    U_r      max_i f_i(soonest end) / least of r that i needs, the highest value of a unit: in one slot, as in the
             paper, or in all slots (`highest=job`)
    L        min_i f_i(end in the last slot) / (4 η units_i),  η = max_i  S Σ_r W_r / units_i,  S the number of slots
    units_i  units of all resources in all slots that the job needs on its least size

    OASiS (Bao et al., INFOCOM '18), equations (12) and (13), algorithms 1 and 2. An admitted job keeps its schedule,
    whatever arrives later; another one is refused with a reason, for good. The best schedule is found by dynamic
    programming over `slots` slots and up to `chunks` equal parts of the job's steps. U and L are those of the jobs seen
    so far (the paper assumes them known), and U / L is at most `ratio`. With U of one slot, a full slot is too dear for
    all jobs. Jobs of many slots are worth far less per unit, so many units stay free. With `highest=job` more is used,
    and the paper's bound is not proved. A size is the paper's number of workers: its GPUs and other resources are those
    of the workers and of their parameter servers, which need not be in proportion. Jobs that state no value, and
    admitted jobs that are later than planned, use what is free in order of arrival.

    A slot is `slot_s` seconds, of which a job loses `turn_s` for a start; a scheduler sets `turn_s`, and `slot_s` to at
    least a round. All schedules have the same slots; a job that arrives within one can use what is left of it. Promises
    hold if rates are as stated, starts cost at most `turn_s`, and no GPUs are lost. While a job is admitted, the policy
    is due at the next slot (`again_s`), even if nothing runs until then.

    >>> p = AllocationProblem.of(
    ...     "ab", ["v100"], [1], np.ones((2, 1)), steps_remaining=3600.0,
    ...     completion_value=["step:worth=1:time_s=3600", "step:worth=1:time_s=3600"],
    ... )
    >>> answer = Oasis().allocate(p)
    >>> answer.share[:, 0].tolist(), list(answer.refused)
    ([1.0, 0.0], ['b'])
    """

    slot_s: float = 3600.0
    slots: float = 100
    chunks: float = 200
    turn_s: float = 0.0
    highest: Literal["slot", "job"] = "slot"
    ratio: float = 1e6  # so that values that vanish do not make prices vanish

    name: ClassVar[str] = "oasis"
    summary: ClassVar[str] = "Admit jobs whose value exceeds the price of their best schedule; refuse others (OASiS)."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.COMPLETION_VALUE, ProblemInput.STEPS_REMAINING, ProblemInput.AGE, *COUNTED}
    )

    def __post_init__(self) -> None:
        if not (1 <= self.slot_s < math.inf and 0 <= self.turn_s < self.slot_s):
            raise InvalidInput(f"slot_s must be >= 1 and above turn_s >= 0, got {self.slot_s!r} and {self.turn_s!r}")
        for name in ("slots", "chunks"):
            if not (1 <= (value := getattr(self, name)) <= 1_000 and value == int(value)):
                raise InvalidInput(f"{name} must be a whole number in [1, 1000], got {value!r}")
        if self.highest not in ("slot", "job"):
            raise InvalidInput(f"highest must be slot or job, got {self.highest!r}")
        if not 10 <= self.ratio <= 1e12:
            raise InvalidInput(f"ratio must be in [10, 1e12], got {self.ratio!r}")

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> Oasis:  # noqa: ARG002 the protocol's
        """This policy with slots of at least a round, and the cost of a preemption."""
        slot_s = max(self.slot_s, round_s)
        return replace(self, slot_s=slot_s, turn_s=self.turn_s or min(turn_s, slot_s / 2))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, the schedules of admitted jobs, and the jobs that are refused."""
        return _Admission(problem, self).allocation()


class _Admission:
    """One answer: the schedules of admitted jobs, then those of new ones, then what the first slot leaves."""

    def __init__(self, problem: AllocationProblem, policy: Oasis) -> None:
        self._problem, self._policy = problem, policy
        self._slots = int(policy.slots)
        self._row, self._job, self._type, self._rate = PlacesAlone.of(problem)
        K, R, T = len(self._row), len(problem.resources), len(problem.gpu_types)
        amounts = np.zeros((K, R, T))
        amounts[np.arange(K), :, self._type] = problem.occupied[self._row]
        self._demand: Floats = amounts.reshape(K, R * T)  # as `row_capacity`
        self._kept: dict[str, Any] = json.loads(problem.memory or b"{}")  # Any: as `_memory` writes it
        self._plans: dict[JobId, list[Any]] = {}  # age when its first slot began; (GPUs, type, how many slots) in order
        self._refused: dict[JobId, str] = {}
        self._now: dict[int, int] = {}  # job -> place in the first slot, in the order of admission
        self._passed_s = self._since_slot_began()
        has_value = problem.completion_value[:, 0] > 0
        self._bounds = self._seen(np.flatnonzero(has_value & problem.can_run).tolist())
        highest, thin, eta = self._bounds
        high = np.repeat(np.array(highest), T)  # each resource at each type
        lowest = max(thin / (4.0 * eta), max(highest, default=1.0) / policy.ratio) if eta > 0 else 0.0
        self._prices = SlotPrices(problem.row_capacity, self._slots, high, lowest or 1.0)
        self._resume()
        self._bytes = len(json.dumps(self._plans))
        for job in np.flatnonzero(has_value & problem.can_run & ~problem.is_oversized).tolist():
            if problem.job_ids[job] not in self._plans:
                self._decide(job)

    def _seen(self, jobs: list[int]) -> tuple[list[float], float, float]:
        """Highest value of a unit by resource, least value over units, and η, of the jobs seen so far."""
        p, slot_s = self._problem, self._policy.slot_s
        R, T = len(p.resources), len(p.gpu_types)
        highest, thin, eta = self._kept.get("bounds", ([0.0] * R, 0.0, 0.0))
        highest = list(highest) if len(highest) == R else [0.0] * R
        decided = {*self._kept.get("plans", {}), *self._kept.get("refused", {})}
        for job in jobs:
            own = np.flatnonzero(self._job == job)
            if p.job_ids[job] in decided or not len(own):
                continue
            need = self._demand[own].reshape(-1, R, T).sum(axis=2)  # (K, R)
            slots = np.ceil(p.steps_remaining[job] / (self._rate[own] * slot_s) - _ROUNDING)
            units = float((np.maximum(slots, 1.0) * need.sum(axis=1)).min())
            values = self._values(job)
            soonest, latest = float(values[min(int(max(slots.min(), 1.0)), len(values)) - 1]), float(values[-1])
            if self._policy.highest == "job":
                need = need * np.maximum(slots, 1.0)[:, None]
            least = np.where(need > 0, need, np.inf).min(axis=0)
            highest = [max(high, soonest / unit) for high, unit in zip(highest, least.tolist(), strict=True)]
            thin = min(thin, latest / units) if eta else latest / units
            eta = max(eta, self._slots * float(p.row_capacity.sum()) / units)
        return highest, thin, eta

    def _values(self, job: int) -> Floats:
        """The job's value if it ends with each slot, (S,)."""
        p, ends = self._problem, self._policy.slot_s * np.arange(1, self._slots + 1) - self._passed_s
        return values_at(np.repeat(p.completion_value[[job]], self._slots, axis=0), p.age_s[job] + ends)

    def _since_slot_began(self) -> float:
        """Seconds of the present slot that are over, by any admitted job; 0 without one."""
        p, known = self._problem, self._kept.get("plans", {})
        for job, name in enumerate(p.job_ids):
            if name in known:
                passed = (float(p.age_s[job]) - float(known[name][0])) / self._policy.slot_s
                return max(passed - math.floor(passed + _ROUNDING), 0.0) * self._policy.slot_s
        return 0.0

    def _resume(self) -> None:
        """Reserves what admitted jobs were promised."""
        p, known = self._problem, self._kept.get("plans", {})
        for job, name in enumerate(p.job_ids):
            if name not in known:
                continue
            self._plans[name] = known[name]
            age, runs = known[name]
            first = int((float(p.age_s[job]) - age) / self._policy.slot_s + _ROUNDING)
            plan = [self._place(job, units, t) for units, t, count in runs for _ in range(count)][first:]
            for s, place in enumerate(plan[: self._slots]):
                if place >= 0 and self._prices.reserve(s, self._demand[place]) and s == 0:
                    self._now[job] = place

    def _place(self, job: int, units: int, gpu_type: int) -> int:
        """The place of a job on so many thousandths of a GPU of a type; -1 = none."""
        found = (self._job == job) & (self._type == gpu_type) & (self._problem.demand[self._row, 0] == units)
        return int(np.argmax(found)) if found.any() else -1

    def _offer(self, job: int) -> Offer:
        """What the job needs of the slots, and its value."""
        policy, own = self._policy, np.flatnonzero(self._job == job)
        part = self._rate[own] / max(float(self._problem.steps_remaining[job]), _ROUNDING)  # of the job, per second
        useful_s, left_s = policy.slot_s - policy.turn_s, policy.slot_s - self._passed_s
        Q = chunk_count(part * useful_s, int(policy.chunks))
        chunks, now = (
            np.floor(np.minimum(part * max(seconds, 0.0), 1.0) * Q + _ROUNDING).astype(np.int64)
            for seconds in (useful_s, left_s - policy.turn_s)
        )
        return Offer(self._demand[own], chunks, Q, self._values(job), now, left_s / policy.slot_s)

    def _decide(self, job: int) -> None:
        p, policy, name = self._problem, self._policy, self._problem.job_ids[job]
        if name in self._kept.get("refused", {}):
            self._refused[name] = self._kept["refused"][name]
            return
        schedule, own = self._prices.best(self._offer(job)), np.flatnonzero(self._job == job)
        if schedule.payoff <= 0:
            too_long = schedule.payoff == -math.inf
            short = f"it cannot end within {self._slots} slots of {policy.slot_s:g} s around jobs that were admitted"
            self._refused[name] = short if too_long else "its value is below the price of the GPUs that it needs"
            return
        places = np.where(schedule.place >= 0, own[schedule.place], -1)
        runs: list[list[int]] = []
        for place in places[: int(np.flatnonzero(places >= 0).max()) + 1].tolist():
            units, t = (int(p.demand[self._row[place], 0]), int(self._type[place])) if place >= 0 else (0, -1)
            if runs and runs[-1][:2] == [units, t]:
                runs[-1][2] += 1
            else:
                runs.append([units, t, 1])
        plan = [float(p.age_s[job]) - self._passed_s, runs]
        self._bytes += len(json.dumps({name: plan}))
        if self._bytes > MEMORY_BYTES_MAX - _OTHER_BYTES:  # no promise that is not remembered
            self._refused[name] = "no more schedules can be remembered"
            return
        for s in np.flatnonzero(places >= 0).tolist():
            self._prices.reserve(s, self._demand[places[s]])
        if places[0] >= 0:
            self._now[job] = int(places[0])
        self._plans[name] = plan

    def _fill(self) -> None:
        """Late jobs, then jobs without a value, on what the first slot leaves, each at its highest rate that fits."""
        p = self._problem
        late = [j for j, name in enumerate(p.job_ids) if name in self._plans and self._is_late(j)]
        rest = np.flatnonzero(p.completion_value[:, 0] == 0).tolist()
        left = self._prices.capacity - self._prices.used[:, 0]
        for job in [*late, *rest]:
            own = np.flatnonzero(self._job == job)
            own = own[(self._demand[own] <= left + _ROUNDING).all(axis=1)]
            if job not in self._now and len(own):
                self._now[job] = int(own[np.argmax(self._rate[own])])
                left = left - self._demand[self._now[job]]

    def _is_late(self, job: int) -> bool:
        age, runs = self._plans[self._problem.job_ids[job]]
        return bool(self._problem.age_s[job] - age >= self._policy.slot_s * sum(count for _, _, count in runs))

    def allocation(self) -> Allocation:
        """The allocation, with its memory."""
        self._fill()
        p, share = self._problem, np.zeros(self._problem.fits.shape)
        taken: Ints = np.array(list(self._now.values()), dtype=np.int64)
        share[self._row[taken], self._type[taken]] = 1.0
        named = np.column_stack([self._row[taken], self._type[taken]]).reshape(-1, 2).astype(np.int64)
        kept = {"plans": self._plans, "refused": self._refused, "bounds": self._bounds}
        memory = json.dumps(kept, separators=(",", ":")).encode() if self._plans or self._refused else b""
        if len(memory) > MEMORY_BYTES_MAX:  # jobs that were refused are considered again
            memory = json.dumps(kept | {"refused": {}}, separators=(",", ":")).encode()
        found = ruled(p, share, objective=float(len(self._plans)))
        again_s = max(self._policy.slot_s - self._passed_s, AGAIN_MIN_S) if self._plans else math.inf
        return replace(found, next_round=named, memory=memory, refused=self._refused, again_s=again_s)


def chunk_count(part: Floats, most: int) -> int:
    """Into how many chunks to divide a job, from half of `most` to `most`: least is lost as slots do whole chunks.

    `part` (K,) of the job in a slot at each place. Ties: the fewest chunks.

    >>> chunk_count(np.array([1 / 17, 1 / 8.5]), 50)
    34
    """
    tried = np.arange((most + 1) // 2, most + 1)
    done = np.minimum(part, 1.0)[:, None] * tried
    lost = 1.0 - np.floor(done + _ROUNDING) / np.maximum(done, _ROUNDING)  # (K, tried)
    return int(tried[np.argmin(lost.max(axis=0, initial=0.0).round(9))])
