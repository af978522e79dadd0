"""Shockwave: a market over a window of rounds, for jobs whose batch sizes change as they train."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput
from gavelpy.policies.memory import as_memory
from gavelpy.policies.phase_forecasts import PhaseForecasts
from gavelpy.policies.places import PlacesAlone
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.window_plans import GAP, WindowProblem, best_numbers, rounds_of
from gavelpy.solve.solver import Solver

ROUND_S = 360.0  # without a scheduler
ROUNDS_MAX = 200
LATEST = 0.1  # weight of the latest fair finish time, next to the average over time
PRIORITY_MAX = 1e6  # so that the program stays within the precision of the solver
LAST_ROUND_POWER = 100.0  # in place of λ for late jobs that end within a round
FAR_ROUNDS = 1e7  # longer times count as this many rounds


@dataclass(frozen=True)
class Shockwave:
    """Maximise  Σ_j p_j log(u_j) / (J N) - k max_j (R_j - q_j)  over the next N rounds, as a plan of whole rounds.

    u_j      part of its steps that job j has done after the window, if it gets q_j seconds of its rounds
    R_j      forecast of its remaining time, from the phases seen so far (`phase_forecasts`)
    k        `longest`: weight of the longest remaining time after the window, per second
    p_j      1, if all jobs can keep  N h + (R_j - q_j) n / W <= `fairness` F_j - age_j;  these are constraints then.
             Else they are dropped, and a job whose ratio  ρ_j = (age_j + R_j n / W) / F_j  exceeds `fairness` has
             p_j = ρ_j^λ (`power`), or ρ_j^100 if it ends within a round; at most 1e6
    F_j      its fair finish time from its arrival, (spent + R_j) n / W with n jobs on W GPUs (n / W at least 1): 0.9 of
             the average over time of what it was at each change of the jobs, and 0.1 of the latest

    Shockwave (NSDI '23), sections 5 and 6, with the window, λ, k and pieces of the logarithm that its artifact has for
    32 GPUs. The plan is kept until a job arrives, ends or enters another phase, GPUs change, or the window ends. GPUs
    that it leaves go to the jobs with the longest remaining time. Rounds are alike, so the program has the number of
    rounds of each job (`window_plans`), not a binary variable for each; the certificate has the bound of that program.
    Departures: ratios count from a job's arrival (in the artifact, from the start of the cluster), p_j has a limit, and
    with several GPU types a round counts by the speed of its type (the paper has one type). Only the phases that a job
    has been in are known, so forecasts know no batch size before its first step.

    A scheduler sets `round_s`. Raises InvalidInput for sizes and other resources.

    >>> p = AllocationProblem.of("ab", ["v100"], [1], np.ones((2, 1)), steps_remaining=[720.0, 3600.0])
    >>> Shockwave(rounds=2).allocate(p).share[:, 0].tolist()
    [1.0, 0.0]
    """

    rounds: int = 20
    power: float = 12.0
    longest: float = 1e-3
    fairness: float = 1.0
    round_s: float = 0.0

    name: ClassVar[str] = "shockwave"
    summary: ClassVar[str] = "Plan a window of rounds as a market, by forecasts over changing batch sizes (Shockwave)."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    relative_to_cluster: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.STEPS_REMAINING, ProblemInput.STEPS_TOTAL, ProblemInput.AGE, ProblemInput.GPU_TYPE_HELD}
    )

    def __post_init__(self) -> None:
        if not (1 <= self.rounds <= ROUNDS_MAX and self.rounds == int(self.rounds)):
            raise InvalidInput(f"rounds must be whole, in [1, {ROUNDS_MAX}], got {self.rounds!r}")
        object.__setattr__(self, "rounds", int(self.rounds))
        for name, most in (("power", 100.0), ("longest", 1e9), ("round_s", math.inf)):
            if not 0 <= (value := getattr(self, name)) <= most or math.isinf(value):
                raise InvalidInput(f"{name} must be finite and in [0, {most:g}], got {value!r}")
        if not 0 < self.fairness <= 1e3:
            raise InvalidInput(f"fairness must be in (0, 1000], got {self.fairness!r}")

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> Shockwave:  # noqa: ARG002 the protocol's
        """This policy with the rounds of the scheduler, unless `round_s` is set."""
        return self if self.round_s else replace(self, round_s=round_s)

    def known_rates(self) -> Mapping[str, Sequence[float]]:
        """Steps/s of the phases that jobs may enter, by id, where profiles state them: none here."""
        return {}

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, and what must be known of jobs and of the plan the next time."""
        refuse_unused(self, problem)
        return _Answer(problem, self).allocation()


class _Answer:
    """One answer: forecasts, fair finish times, the plan that is kept or a new one, and its round."""

    def __init__(self, problem: AllocationProblem, policy: Shockwave) -> None:
        self._problem, self._policy = problem, policy
        self._round_s = policy.round_s or ROUND_S
        self._kept: dict[str, Any] = json.loads(problem.memory or b"{}")  # Any: as `allocation` writes it
        self._forecasts = PhaseForecasts.of(problem, self._kept.get("phases", {}), policy.known_rates())
        self._row, self._job, self._type, rate = PlacesAlone.of(problem)
        fastest = np.zeros(problem.job_count)
        np.maximum.at(fastest, self._job, rate)
        self._speed: Floats = rate / np.where(fastest > 0, fastest, 1.0)[self._job]
        self._jobs: Ints = np.unique(self._job)  # that can run
        plan = self._kept.get("plan", {})
        same = list(self._kept.get("fair", {})) == list(problem.job_ids) and bool(plan)
        same = same and plan["gpus"] == problem.gpu_counts.tolist()
        self._at = self._rounds_since(plan) if same else policy.rounds
        self._fair: Floats = self._fair_finish(same)
        if same and not self._forecasts.changed.any() and self._at < policy.rounds:
            self._plan = plan
        else:
            self._at = 0
            self._plan = self._new_plan()

    def _rounds_since(self, plan: Mapping[str, Any]) -> int:  # Any: JSON
        """Rounds since the plan was made, to the nearest: jobs of a plan have become as much older."""
        if not len(self._problem.age_s):
            return 0
        elapsed_s = float(self._problem.age_s[0]) - plan["age_s"]
        return max(int(elapsed_s / self._round_s + 0.5), 0)

    def _stretch(self) -> float:
        """n / W, at least 1: how much longer an equal part of the cluster takes."""
        return max(self._problem.job_count / max(float(self._problem.gpu_counts.sum()), 1.0), 1.0)

    def _fair_finish(self, same: bool) -> Floats:
        """F, (J,), from each job's arrival; a change of the jobs or GPUs adds the present estimate to the average."""
        p, f = self._problem, self._forecasts
        kept, self._series = self._kept.get("fair", {}), {}
        latest = (f.spent_s + f.remaining_s) * self._stretch()
        found = np.zeros(p.job_count)
        for row, job in enumerate(p.job_ids):
            age, now_s = float(p.age_s[row]), float(latest[row])
            total, time_s, last_s, since = kept.get(job, (0.0, 0.0, now_s, age))
            if not same or job not in kept:
                total, time_s, last_s, since = total + last_s * (age - since), time_s + age - since, now_s, age
            self._series[job] = [total, time_s, last_s, since]
            total, time_s = total + last_s * (age - since), time_s + age - since
            mean_s = total / time_s if time_s > 0 else last_s
            found[row] = (1.0 - LATEST) * mean_s + LATEST * last_s
        return found

    def _new_plan(self) -> dict[str, Any]:  # Any: JSON
        """A plan: the types of each job in each round, and the objective with its bound."""
        p, window = self._problem, self._window()
        numbers = best_numbers(window) if (window.least < math.inf).all() else None
        if numbers is None:
            window = replace(window, least=np.zeros(len(window.gpus)), priority=self._priority())
            numbers = best_numbers(window)
        assert numbers is not None, "a plan without rounds is possible"
        types = rounds_of(window, numbers.number, p.gpu_type_held[self._jobs])
        placed = np.array([float((types[j] == t).sum()) for j, t in zip(window.job, window.gpu_type, strict=True)])
        of_jobs = {p.job_ids[row]: each for row, each in zip(self._jobs.tolist(), types.tolist(), strict=True)}
        age_s = float(p.age_s[0]) if p.job_count else 0.0
        value = window.value(window.progress(placed))
        plan = {"types": of_jobs, "gpus": p.gpu_counts.tolist(), "age_s": age_s}
        return {**plan, "value": value, "bound": max(value, numbers.bound)}

    def _window(self) -> WindowProblem:
        """The window with the constraints of fairness; infinite `least` = the window ends too late for a job."""
        p, f, h, jobs = self._problem, self._forecasts, self._round_s, self._jobs
        row = np.full(p.job_count, -1)
        row[jobs] = np.arange(len(jobs))
        left_s = self._policy.fairness * self._fair - p.age_s - self._policy.rounds * h  # for R - q, stretched
        least = np.where(left_s >= 0, np.maximum(f.remaining_s - left_s / self._stretch(), 0.0), math.inf)
        return WindowProblem(
            rounds=self._policy.rounds,
            job=row[self._job],
            gpu_type=self._type,
            speed=self._speed,
            gpus=p.gpus_asked[jobs],
            counts=p.gpu_counts,
            done=f.done[jobs],
            whole=np.clip(f.mean_s[jobs] / h, 1e-3, FAR_ROUNDS),
            remaining=np.minimum(f.remaining_s[jobs] / h, FAR_ROUNDS),
            priority=np.ones(len(jobs)),
            least=least[jobs] / h,
            longest_weight=self._policy.longest * h,
        )

    def _priority(self) -> Floats:
        """p of the jobs that can run."""
        p, f = self._problem, self._forecasts
        ratio = (p.age_s + f.remaining_s * self._stretch()) / np.where(self._fair > 0, self._fair, 1.0)
        power = np.where(f.remaining_s < self._round_s, LAST_ROUND_POWER, self._policy.power)
        most = math.log(PRIORITY_MAX)
        late = np.exp(np.minimum(power * np.log(np.maximum(ratio, 1.0)), most))
        return np.where(ratio > self._policy.fairness, late, 1.0)[self._jobs]

    def allocation(self) -> Allocation:
        """The present round of the plan, with the memory."""
        p = self._problem
        order = self._round()
        share, free = np.zeros(p.fits.shape), p.gpu_counts.copy()
        started: set[int] = set()
        for k in order:
            job, t, gpus = int(self._job[k]), int(self._type[k]), float(p.gpus_occupied[self._row[k]])
            if job not in started and gpus <= free[t]:
                started.add(job)
                free[t] -= gpus
                share[self._row[k], t] = 1.0
        value, bound = self._plan["value"], self._plan["bound"]
        gap = (bound - value) / max(abs(value), abs(bound), np.finfo(np.float64).tiny)
        warning = f"feasible, but the plan is proved to a gap of {gap:.1e} only, not to {GAP:g}" if gap > GAP else ""
        certificate = Certificate(value, bound, gap, 0.0, "rule", solve_s=0.0, warning=warning)
        named = np.column_stack([self._row[order], self._type[order]]).reshape(-1, 2).astype(np.int64)
        found = Allocation.of_known(p, share, np.full(len(p.gpu_types), np.nan), certificate)
        phases, fair = self._forecasts.as_json(p), self._series
        kept = {"phases": phases, "fair": fair, "plan": self._plan}
        memory = as_memory(kept, fair, phases, self._plan["types"]) if p.job_count else b""
        return replace(found, next_round=named, memory=memory)

    def _round(self) -> Ints:
        """Places of the round: those planned, the largest gangs first, then all of others by the longest remaining."""
        p, types = self._problem, self._plan["types"]
        planned = np.array([types[p.job_ids[job]][self._at] for job in self._job.tolist()], dtype=np.int64)
        is_planned = planned == self._type
        waits = planned < 0
        largest = np.where(is_planned, p.gpus_asked[self._job], self._forecasts.remaining_s[self._job])
        order = np.lexsort((self._type, -self._speed, self._job, -largest, ~is_planned))
        found: Ints = order[(is_planned | waits)[order]]
        return found
