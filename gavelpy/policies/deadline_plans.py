"""Plans of jobs over slots of time: which of its sizes a job has in each, so that it is done by its deadline.

A plan is on one GPU type. Slots begin now; the GPUs that are free in each are what other plans leave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.places import PlacesAlone

SLOTS_MAX = 2_000  # that are planned
_ENOUGH = 1 - 1e-9  # of the steps remaining


@dataclass(frozen=True, eq=False)
class DeadlinePlan:
    """GPUs of one type in each slot."""

    gpu_type: int
    units: Ints  # (D,) thousandths of GPUs, 0 = it waits
    begin_age_s: float  # age of the job at the beginning of the first slot


class Choices:
    """The places (type and size) of all jobs alone, K of them; on each type only sizes that are faster than smaller."""

    def __init__(self, problem: AllocationProblem) -> None:
        row, job, gpu_type, rate = PlacesAlone.of(problem)
        units = np.maximum(problem.demand[row, 0], 1)
        order = np.lexsort((-rate, units, gpu_type, job)).tolist()
        kept: list[int] = []
        for k in order:
            same = kept and (job[kept[-1]], gpu_type[kept[-1]]) == (job[k], gpu_type[k])
            if not same or rate[k] > rate[kept[-1]]:
                kept.append(k)
        chosen: Ints = np.array(kept, dtype=np.int64)
        self.row: Ints = row[chosen]
        self.gpu_type: Ints = gpu_type[chosen]
        self.rate: Floats = rate[chosen]
        self.units: Ints = units[chosen]
        ends = np.searchsorted(job[chosen], np.arange(problem.job_count + 1))
        self._of_job = [np.arange(a, b) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]

    def of_job(self, job: int) -> Ints:
        """Places of a job by type, then size."""
        return self._of_job[job]

    def levels(self, job: int) -> list[Ints]:
        """The same, one array for each type on which it can run."""
        own = self._of_job[job]
        return [own[self.gpu_type[own] == t] for t in np.unique(self.gpu_type[own]).tolist()]

    def place(self, job: int, gpu_type: int, units: int) -> int:
        """The place of this type and size, -1 = none."""
        own = self._of_job[job]
        found = own[(self.gpu_type[own] == gpu_type) & (self.units[own] == units)]
        return int(found[0]) if len(found) else -1

    def larger(self, job: int, gpu_type: int, units: int) -> int:
        """The next larger place of this type, -1 = none."""
        own = self._of_job[job]
        found = own[(self.gpu_type[own] == gpu_type) & (self.units[own] > units)]
        return int(found[0]) if len(found) else -1


class Calendar:
    """Plans by job, and what they leave of the GPUs in each slot."""

    def __init__(
        self, choices: Choices, problem: AllocationProblem, slots: Floats, slot_s: float, turn_s: float
    ) -> None:
        self.plans: dict[int, DeadlinePlan] = {}  # from now on
        self.origin: dict[int, DeadlinePlan] = {}  # as they were made
        self._choices, self._slot_s, self._turn_s = choices, slot_s, turn_s
        self._steps, self._age_s, self._deadline_s = problem.steps_remaining, problem.age_s, problem.deadline_s
        self._slots: Ints = np.minimum(slots, SLOTS_MAX).astype(np.int64)
        self._all = np.repeat(problem.capacity[:, :1], SLOTS_MAX, axis=1)  # (T, slots)
        self._left = self._all.copy()

    def resume(self, job: int, plan: DeadlinePlan, slots_gone: int) -> bool:
        """Continues a plan, cut where the job is done; False if it is not enough for the rest or GPUs are missing."""
        own = self._choices.of_job(job)
        own = own[self._choices.gpu_type[own] == plan.gpu_type]
        units = plan.units[slots_gone : slots_gone + SLOTS_MAX]
        rate_of = {0: 0.0} | dict(zip(self._choices.units[own].tolist(), self._choices.rate[own].tolist(), strict=True))
        if not set(units.tolist()) <= rate_of.keys():
            return False
        done = self._done(job, units, np.array([rate_of[u] for u in units.tolist()]))
        units = units[: int(np.searchsorted(done, self._steps[job] * _ENOUGH)) + 1]
        enough = len(done) > 0 and done[-1] >= self._steps[job] * _ENOUGH
        if not enough or (self._left[plan.gpu_type, : len(units)] < units).any():
            return False
        self._book(job, DeadlinePlan(plan.gpu_type, units, float(self._age_s[job])))
        self.origin[job] = plan
        return True

    def possible(self, job: int) -> bool:
        """Whether the job could meet its deadline with all GPUs."""
        return self._best(job, self._all, int(self._slots[job])) is not None

    def fill(self, job: int) -> bool:
        """Plans the job around the others, if it can meet its deadline."""
        plan = self._best(job, self._left, int(self._slots[job]))
        if plan is not None:
            self._book(job, plan)
        return plan is not None

    def finish_soon(self, job: int) -> None:
        """Plans a job that cannot meet its deadline, around the others, as far as the calendar goes."""
        plan = self._best(job, self._left, SLOTS_MAX, hurry=True)
        if plan is not None:
            self._book(job, plan)

    def fill_all(self, job: int) -> bool:
        """Plans this and all other jobs again in order of their deadlines; False, and no change, if one would miss."""
        left, found = self._all.copy(), {}
        for each in sorted([*self.plans, job], key=lambda each: (self._deadline_s[each], each)):
            plan = self._best(each, left, int(self._slots[each]))
            if plan is None:
                return False
            left[plan.gpu_type, : len(plan.units)] -= plan.units
            found[each] = plan
        self._left, self.plans, self.origin = left, found, dict(found)
        return True

    def _book(self, job: int, plan: DeadlinePlan) -> None:
        self._left[plan.gpu_type, : len(plan.units)] -= plan.units
        self.plans[job] = self.origin[job] = plan

    def _done(self, job: int, units: Ints, rate: Floats) -> Floats:
        """Steps at the end of each slot.

        A start costs `turn_s`; a job with several sizes may pay it in each slot, as it gets what others leave.
        """
        several = len(self._choices.of_job(job)) > 1
        pays = np.ones(len(units)) if several else (np.diff(units, prepend=-1) != 0).astype(np.float64)
        done: Floats = np.cumsum(rate * (self._slot_s - self._turn_s * pays))
        return done

    def _best(self, job: int, free: Ints, slots: int, *, hurry: bool = False) -> DeadlinePlan | None:
        """The plan with the least GPU time by progressive filling on each type; with `hurry` the first to end."""
        best: tuple[float, DeadlinePlan] | None = None
        for places in self._choices.levels(job):
            gpu_type = int(self._choices.gpu_type[places[0]])
            units = np.append(0, self._choices.units[places])
            rate = np.append(0.0, self._choices.rate[places])
            most = np.searchsorted(units, free[gpu_type, :slots], side="right") - 1
            for level in range(1, len(units)):
                chosen = np.minimum(most, level)
                done = self._done(job, units[chosen], rate[chosen])
                if not len(done) or done[-1] < self._steps[job] * _ENOUGH:
                    continue
                end = int(np.searchsorted(done, self._steps[job] * _ENOUGH)) + 1
                plan = DeadlinePlan(gpu_type, units[chosen[:end]].astype(np.int64), float(self._age_s[job]))
                cost = float(end) if hurry else float(plan.units.sum())
                if best is None or cost < best[0]:
                    best = (cost, plan)
                if not hurry:
                    break
        return best[1] if best is not None else None
