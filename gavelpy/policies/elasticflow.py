"""ElasticFlow: admits jobs whose deadlines can be met, plans the fewest GPUs for them, and gives the rest by return.

The state between calls is in the allocation's memory: the plans of admitted jobs, and which jobs were refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import MEMORY_BYTES_MAX, Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobId
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Guarantee, ProblemInput, ruled
from gavelpy.policies.deadline_plans import Calendar, Choices, DeadlinePlan
from gavelpy.policies.in_order import places
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver

SLOT_S = 360.0  # without a scheduler


@dataclass(frozen=True)
class ElasticFlow:
    """Admit j if all admitted jobs i, and j, have plans with  Σ_s r_i(x_is) (`slot_s` - u_is) >= n_i  over D_i slots.

    x_is         GPUs of job i in slot s, one of its sizes or 0;  r_i(x): steps/s on them;  n_i: its steps remaining
    u_is         `turn_s` if the job starts in slot s, or has several sizes, so that it may be resized; else 0
    D_i          whole slots until its deadline, less `slack_s`; at most 2,000
    share of i   the least L for which  x_is = the most GPUs <= L that are free in s  is enough (progressive filling)

    ElasticFlow (ASPLOS '23), section 4, algorithms 1 and 2. A new job is admitted if it fits around the plans of the
    admitted ones, or if all fit when they are planned again in order of their deadlines; else it is refused with a
    reason, and again considered when there is room. Plans are promises: later answers keep them, whatever else
    arrives. They hold if rates are as stated and no GPUs are lost; an admitted job that cannot meet its deadline any
    more is finished as early as possible. GPUs that the first slot leaves go to admitted jobs that lose no GPU time by
    them, then to jobs without deadlines in order of arrival, then to the job with the highest marginal return, the
    part of the GPU time spent now that it saves later:  (r(x') - r(x)) / ((x' - x) e) - 1,  e the steps per GPU-second
    of its share. A plan is on one GPU type, the one that costs the least GPU time (the paper has one type).

    A scheduler sets `slot_s` to its round, `turn_s` to the cost of a preemption (at most half a round), and `slack_s`
    to a round and that cost.

    >>> p = AllocationProblem.of("ab", ["v100"], [1], np.ones((2, 1)), steps_remaining=360.0, deadline_s=[400.0, 500.0])
    >>> answer = ElasticFlow().allocate(p)
    >>> answer.share[:, 0].tolist(), list(answer.refused)
    ([1.0, 0.0], ['b'])
    """

    slot_s: float = 0.0
    slack_s: float = 0.0
    turn_s: float = 0.0

    name: ClassVar[str] = "elasticflow"
    summary: ClassVar[str] = "Admit jobs whose deadlines can be met, with the fewest GPUs; refuse others with a reason."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.DEADLINE, ProblemInput.STEPS_REMAINING, ProblemInput.SIZES}
    )
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def __post_init__(self) -> None:
        for name in ("slot_s", "slack_s", "turn_s"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise InvalidInput(f"{name} must be finite and >= 0, got {value!r}")

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> ElasticFlow:  # noqa: ARG002 the protocol's
        """This policy with slots of a round, and slack for a round and a preemption, unless set."""
        if self.slot_s:
            return self
        lost_s = self.turn_s or min(turn_s, round_s / 2)
        return replace(self, slot_s=round_s, slack_s=self.slack_s or round_s + turn_s, turn_s=lost_s)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, the plans, and the jobs that are refused."""
        refuse_unused(self, problem)
        return _Answer(problem, self).allocation()


class _Answer:
    """One answer: remembered plans, admission, the first slot."""

    def __init__(self, problem: AllocationProblem, policy: ElasticFlow) -> None:
        self._problem, self._slot_s = problem, policy.slot_s or SLOT_S
        turn_s = min(policy.turn_s, 0.9 * self._slot_s)
        self._choices = Choices(problem)
        slots = np.floor((problem.deadline_s - policy.slack_s) / self._slot_s + 1e-9)
        self._calendar = Calendar(self._choices, problem, np.maximum(slots, 0.0), self._slot_s, turn_s)
        self._kept: dict[str, Any] = json.loads(problem.memory or b"{}")  # Any: as `memory` writes it
        self._refused: dict[JobId, str] = {}
        self._admit()
        self._place: dict[int, int] = {}  # job -> place in the first slot
        self._free = problem.capacity[:, 0].copy()
        self._fill_first_slot()

    def _admit(self) -> None:
        """Plans for admitted jobs, then for new ones in order of arrival."""
        p, calendar = self._problem, self._calendar
        known: dict[str, list[Any]] = self._kept.get("plans", {})  # id -> age at its beginning, type, units, counts
        before = {row: known[name] for row, name in enumerate(p.job_ids) if name in known}
        late = []
        for job, (age, gpu_type, units, counts) in before.items():
            plan = DeadlinePlan(int(gpu_type), np.repeat(units, counts).astype(np.int64), float(age))
            if not calendar.resume(job, plan, int((float(p.age_s[job]) - age) / self._slot_s + 1e-9)):
                late.append(job)
        for job in late:
            if not calendar.fill(job):
                calendar.finish_soon(job)
        refused = set(self._kept.get("refused", ()))
        for job in np.flatnonzero(np.isfinite(p.deadline_s) & p.can_run & ~p.is_oversized).tolist():
            if job in before:
                continue
            alone = calendar.possible(job)
            if not alone:
                self._refused[p.job_ids[job]] = f"its deadline is in {p.deadline_s[job]:.0f} s, too early on any GPUs"
            elif not calendar.fill(job) and (p.job_ids[job] in refused or not calendar.fill_all(job)):
                self._refused[p.job_ids[job]] = "GPUs before its deadline are promised to jobs that were admitted"

    def _fill_first_slot(self) -> None:
        p, choices = self._problem, self._choices
        for job, plan in self._calendar.plans.items():
            place = choices.place(job, plan.gpu_type, int(plan.units[0]) if len(plan.units) else 0)
            if place >= 0:
                self._take(job, place)
        self._upgrade(self._calendar.plans, at_least=-1e-9)
        waiting = set(self._refused)
        best_effort = [j for j in range(p.job_count) if np.isinf(p.deadline_s[j]) and p.job_ids[j] not in waiting]
        for job in best_effort:
            own = choices.of_job(job)
            own = own[choices.units[own] <= self._free[choices.gpu_type[own]]]
            if job not in self._place and len(own):
                self._take(job, int(own[np.argmax(choices.rate[own])]))
        self._upgrade([*self._calendar.plans, *best_effort], at_least=-math.inf)

    def _upgrade(self, jobs: list[int] | dict[int, DeadlinePlan], at_least: float) -> None:
        """Gives free GPUs to the job with the highest marginal return, one step of its sizes at a time."""
        while best := max((found for job in jobs for found in self._returns(job)), default=None):
            if best[0] < at_least:
                return
            self._take(-best[1], -best[2])

    def _returns(self, job: int) -> Iterator[tuple[float, int, int]]:
        """The return of the next larger size of a job on its type, if it is free: (return, -job, -place)."""
        choices, plan, held = self._choices, self._calendar.plans.get(job), self._place.get(job, -1)
        if plan is None and held < 0:
            return
        gpu_type = plan.gpu_type if plan is not None else int(choices.gpu_type[held])
        units, rate = (int(choices.units[held]), float(choices.rate[held])) if held >= 0 else (0, 0.0)
        place = choices.larger(job, gpu_type, units)
        if place >= 0 and choices.units[place] - units <= self._free[gpu_type]:
            level = choices.place(job, gpu_type, int(plan.units.max(initial=0))) if plan is not None else held
            level = level if level >= 0 else place
            per_gpu = choices.rate[level] / choices.units[level]
            more = float(choices.rate[place] - rate) / float((choices.units[place] - units) * per_gpu) - 1.0
            yield more, -job, -place

    def _take(self, job: int, place: int) -> None:
        held = self._place.get(job, -1)
        if held >= 0:
            self._free[self._choices.gpu_type[held]] += self._choices.units[held]
        self._free[self._choices.gpu_type[place]] -= self._choices.units[place]
        self._place[job] = place

    def allocation(self) -> Allocation:
        """The allocation, with its memory."""
        p, choices = self._problem, self._choices
        share = np.zeros(p.fits.shape)
        taken: Ints = np.array(list(self._place.values()), dtype=np.int64)
        share[choices.row[taken], choices.gpu_type[taken]] = 1.0
        named = np.column_stack([choices.row[taken], choices.gpu_type[taken]])
        rest = [j for j in range(p.job_count) if j not in self._place and p.job_ids[j] not in self._refused]
        return replace(
            ruled(p, share, objective=float(len(self._calendar.plans))),
            next_round=np.concatenate([named, places(p, np.array(rest, dtype=np.int64), share)]).astype(np.int64),
            memory=self._memory(),
            refused=self._refused,
        )

    def _memory(self) -> bytes:
        """The plans and the refused jobs. If they are too large, the next answer makes the longest plans again."""
        origin = self._calendar.origin
        plans = {self._problem.job_ids[job]: _as_lists(plan) for job, plan in origin.items()}
        kept: dict[str, Any] = {"plans": plans, "refused": list(self._refused)}  # Any: JSON
        longest = sorted(plans, key=lambda name: (-len(plans[name][2]), name))
        while len(text := json.dumps(kept, separators=(",", ":")).encode()) > MEMORY_BYTES_MAX and longest:
            for name in longest[: (len(longest) + 1) // 2]:
                plans[name][2:] = [], []
            longest = longest[(len(longest) + 1) // 2 :]
        return text if plans or self._refused else b""


def _as_lists(plan: DeadlinePlan) -> list[Any]:  # Any: JSON
    """Age at its beginning, type, and the units of its slots with how often each follows."""
    begins = np.flatnonzero(np.append(True, np.diff(plan.units) != 0))[: len(plan.units)]
    counts: Floats = np.diff(np.append(begins, len(plan.units)))
    return [plan.begin_age_s, plan.gpu_type, plan.units[begins].tolist(), counts.tolist()]
