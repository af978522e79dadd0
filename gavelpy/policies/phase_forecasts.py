"""Forecasts of the remaining time of jobs whose rates change in phases, from the phases seen so far.

A policy sees the rates of a job's current phase only. `PhaseForecasts` keeps which rates each job has had, and from
which part of its steps on; it does not see a phase before the job is in it. Parts are parts of the job's steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.program import best_rate_steps_per_s

CHANGE = 0.1  # of the rate: a new phase. Smaller changes are those of an estimate
PHASES_MAX = 50  # kept of one job: the last ones

Phase = tuple[float, float]  # seconds for all steps of the job at its rate, and the part of the steps at which it began


@dataclass(frozen=True, eq=False)
class PhaseForecasts:
    """The phases seen of each job, and what follows for its time, (J,) each."""

    seen: tuple[tuple[Phase, ...], ...]
    changed: Bools  # whether the job is in another phase than at the last call
    done: Floats  # part of the steps that are done
    spent_s: Floats  # seconds that these took, or would take, on the fastest GPUs
    mean_s: Floats  # seconds for all steps at the mean speed so far
    remaining_s: Floats  # R, the forecast

    @classmethod
    def of(
        cls, problem: AllocationProblem, kept: Mapping[str, Any], known: Mapping[str, Sequence[float]]
    ) -> PhaseForecasts:  # Any: JSON of `as_json`
        """The forecasts from what was kept of the jobs before, and their current rates.

        `known`: steps/s of the phases that a job may enter, by id, in any order, where profiles state them.
        """
        rate = best_rate_steps_per_s(problem)
        done = 1.0 - np.minimum(problem.steps_remaining / problem.steps_total, 1.0)
        whole_s = problem.steps_total / np.where(rate > 0, rate, 1.0)
        seen: list[tuple[Phase, ...]] = []
        changed = np.zeros(problem.job_count, dtype=np.bool_)
        columns = np.zeros((problem.job_count, 3))
        for row, job in enumerate(problem.job_ids):
            phases = [(float(a), float(b)) for a, b in kept.get(job, ())]
            at, now_s = float(done[row]), float(whole_s[row])
            if not phases or abs(phases[-1][0] - now_s) > CHANGE * now_s:
                changed[row] = bool(phases)
                phases.append((now_s, at if phases else 0.0))
            seen.append(tuple(phases[-PHASES_MAX:]))
            profiled_s = [float(problem.steps_total[row]) / one for one in known.get(job, ()) if one > 0]
            columns[row] = forecast(seen[row], at, profiled_s)
        return cls(tuple(seen), changed, done, *columns.T)

    def as_json(self, problem: AllocationProblem) -> dict[str, Any]:  # Any: JSON
        """What must be kept for the next call, by job."""
        return {job: [list(phase) for phase in phases] for job, phases in zip(problem.job_ids, self.seen, strict=True)}


def forecast(phases: Sequence[Phase], done: float, profiled_s: Sequence[float]) -> tuple[float, float, float]:
    """Seconds spent, seconds for all steps at the mean speed so far, and the forecast of the seconds that remain.

    The kinds k of phases are the m distinct speeds that were seen or profiled; f_k is the part of the steps done in k.
    With a Dirichlet prior of 1/m for each, the posterior mean of its part of all steps is  (1/m + f_k) / (1 + done);
    less f_k, and scaled to the part that remains, it is what is expected of k. Shockwave (NSDI '23), section 5, with
    epochs as parts.

    >>> [round(one) for one in forecast([(1000.0, 0.0), (500.0, 0.5)], 0.75, [])]  # half at 1,000 s a job, then 500 s
    [625, 833, 161]
    """
    kinds: list[float] = []
    of_phase = [_kind(kinds, whole_s) for whole_s, _ in phases]
    for whole_s in profiled_s:
        _kind(kinds, whole_s)
    ends = [begin for _, begin in phases[1:]] + [done]
    part = np.zeros(len(kinds))
    for k, (_, begin), end in zip(of_phase, phases, ends, strict=True):
        part[k] += max(end - begin, 0.0)
    whole = np.array(kinds)
    spent_s = float(part @ whole)
    mean_s = spent_s / part.sum() if part.sum() > 0 else phases[-1][0]
    left = np.maximum((1.0 / len(kinds) + part) / (1.0 + part.sum()) - part, 0.0)
    left *= (1.0 - done) / left.sum() if left.sum() > 0 else 0.0
    remaining_s = float(left @ whole) if left.sum() > 0 else (1.0 - done) * phases[-1][0]
    return spent_s, float(mean_s), remaining_s


def _kind(kinds: list[float], whole_s: float) -> int:
    """The kind of phase with this speed, which is added if it is new."""
    for k, known_s in enumerate(kinds):
        if abs(known_s - whole_s) <= CHANGE * known_s:
            return k
    kinds.append(whole_s)
    return len(kinds) - 1
