"""Deadline outcomes: which deadlines an allocation meets, and why it misses the others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.arrays import Bools, Floats, floats
from gavelpy.model.ids import JobId
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.isolated import fastest_alone
from gavelpy.solve.feasible_floors import KEPT

if TYPE_CHECKING:
    import pandas as pd


class DeadlineVerdict(StrEnum):
    """Outcome of a job's deadline under the current shares."""

    NONE = "none"  # it has no deadline
    KEPT = "kept"  # it gets the rate that it needs
    MISSED = "missed"  # the deadline has passed
    CANNOT_RUN = "cannot_run"  # the job runs on no GPU type of the cluster
    TOO_SLOW = "too_slow"  # the job would be late even with the whole cluster
    CROWDED_OUT = "crowded_out"  # it could be met, but only if at least as many others were missed


@dataclass(frozen=True, eq=False)
class DeadlineVerdicts:
    """The deadline outcome of each job.

    `most` is a proved upper bound on the number of deadlines that any shares meet. Up to a size that the policy
    documents it equals `kept_count`; above, the difference bounds the loss.
    """

    job_ids: tuple[JobId, ...]  # J labels
    verdicts: tuple[DeadlineVerdict, ...]  # J
    needed_steps_per_s: Floats  # (J,) steps remaining over time left; 0 = no deadline, infinite = it has passed
    possible_steps_per_s: Floats  # (J,) the highest rate with the whole cluster
    most: int

    def __post_init__(self) -> None:
        for name in ("needed_steps_per_s", "possible_steps_per_s"):
            object.__setattr__(self, name, floats(name, getattr(self, name), (len(self.job_ids),)))

    @property
    def kept_count(self) -> int:
        """Number of deadlines met."""
        return self.verdicts.count(DeadlineVerdict.KEPT)

    def of(self, verdict: DeadlineVerdict) -> tuple[JobId, ...]:
        """The jobs with that verdict, in row order."""
        return tuple(job for job, mine in zip(self.job_ids, self.verdicts, strict=True) if mine is verdict)

    def by_job(self) -> pd.DataFrame:
        """A frame with one row per job: verdict, needed rate, possible rate."""
        import pandas as pd

        columns = {
            "verdict": [str(verdict) for verdict in self.verdicts],
            "needed_steps_per_s": self.needed_steps_per_s,
            "possible_steps_per_s": self.possible_steps_per_s,
        }
        return pd.DataFrame(columns, index=pd.Index(list(self.job_ids), name="job"))


def needed_steps_per_s(problem: AllocationProblem) -> Floats:
    """Least rate with which each job meets its deadline, (J,); 0 = no deadline, infinite = it has passed."""
    left_s = problem.deadline_s
    rate = np.divide(problem.steps_remaining, left_s, out=np.full(len(left_s), np.inf), where=left_s > 0)
    return np.where(np.isposinf(left_s), 0.0, rate)


def possible_steps_per_s(problem: AllocationProblem) -> Floats:
    """Highest rate of each job with the whole cluster, (J,).

    That is its best type all of the time. A gang larger than its best type has that type, in the papers' sense, for the
    fraction W / g of its time, and its next best types for the rest.
    """
    configuration = fastest_alone(problem)
    here = (configuration >= 0) & (problem.gpu_counts > 0)
    gpus = np.where(here, problem.gpus_occupied[configuration], 1.0)
    rates = np.where(here, problem.rate_alone_steps_per_s, 0.0)
    order = np.argsort(-rates, axis=1, kind="stable")
    part = np.take_along_axis(np.where(here, np.minimum(problem.gpu_counts / gpus, 1.0), 0.0), order, axis=1)
    before = np.cumsum(part, axis=1) - part
    best: Floats = (np.take_along_axis(rates, order, axis=1) * np.clip(1.0 - before, 0.0, part)).sum(axis=1)
    if not problem.runs_alone:  # rates may be higher with a co-located job
        fits = problem.fits[problem.member_configuration]
        np.maximum.at(best, problem.member_job, np.where(fits, problem.member_rate_steps_per_s, 0.0).max(axis=1))
    return np.where(problem.can_run, best, 0.0)


def keepable_floors(problem: AllocationProblem, slack_s: float = 0.0, work: float = 1.0) -> Floats:
    """Rate floors, (J,), for the deadlines that each job could meet with the whole cluster; 0 = none.

    The floors plan for a finish `slack_s` before the deadline, with the fraction `work` of a job's time spent on steps.
    A job that cannot finish that early even alone gets its highest possible rate as floor.
    """
    needed, possible = needed_steps_per_s(problem), possible_steps_per_s(problem)
    left_s = (problem.deadline_s - slack_s) * work
    planned = np.divide(problem.steps_remaining, left_s, out=np.full(len(left_s), np.inf), where=left_s > 0)
    planned = np.where(needed == 0, 0.0, np.maximum(np.minimum(planned, possible), needed))
    return np.where(needed * KEPT <= possible, planned, 0.0)


def verdicts_of(problem: AllocationProblem, kept: Bools, most: int) -> DeadlineVerdicts:
    """The verdict of each job, given which deadlines are `kept`, (J,)."""
    needed, possible = needed_steps_per_s(problem), possible_steps_per_s(problem)
    reasons = [
        (needed == 0, DeadlineVerdict.NONE),
        (kept, DeadlineVerdict.KEPT),
        (np.isinf(needed), DeadlineVerdict.MISSED),
        (~problem.can_run, DeadlineVerdict.CANNOT_RUN),
        (needed * KEPT > possible, DeadlineVerdict.TOO_SLOW),
    ]
    first = np.select([holds for holds, _ in reasons], list(range(len(reasons))), default=len(reasons))
    names = [*(verdict for _, verdict in reasons), DeadlineVerdict.CROWDED_OUT]
    return DeadlineVerdicts(problem.job_ids, tuple(names[i] for i in first.tolist()), needed, possible, most)
