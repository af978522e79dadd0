"""Sia: one configuration of GPU type and number of GPUs for each job, by goodput, restart costs and fairness."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.memory import as_memory
from gavelpy.solve.solver import Solver
from gavelpy.solve.whole_choices import best_whole_choices

GROWTH_MAX = 2.0  # in one round, of the most GPUs that a job has had
LEAST_FACTOR = 1e-3  # of a restart: a job that has only restarted so far can still be moved


@dataclass(frozen=True)
class Sia:
    """Maximise  Σ_j Σ_c A_jc (λ - (f_jc G_jc)^p)  over A_jc in {0, 1}, at most one for each job, within all capacities.

    G_jc    rate of job j in configuration c (a GPU type, and one of its numbers of GPUs), divided by the least rate of
            any of its configurations, times its least number of GPUs
    f_jc    1 for the configuration that the job holds, and for jobs without GPUs; else (T_j - N_j S_j) / (T_j + S_j)
    T_j     age, N_j starts so far, S_j seconds that a start costs (`restart_s`)
    p       `power`: the lower, the more even; above 0 the sum is  Σ A_jc (λ + (f_jc G_jc)^p)
    λ       `waiting`: what a job without GPUs costs. With p < 0, a job in its worst configuration costs 1

    Sia (SOSP '23), section 3.4, with the values of its evaluation (section 4.3: p = -0.5, λ = 1.1, rounds of 60 s). The
    paper minimises the cost with λ for jobs that wait, which is the same. The program is solved as a whole by HiGHS,
    with a bound (the certificate). As in the paper a job begins on its least number of GPUs and gets at most twice the
    most that it has had. The policy names each round, so GPUs that it leaves stay free.

    Goodput is the rate: state rates by size (`--gpus 1,2,4`) in steps that are worth the same. Not here: the choice of
    batch sizes, learning rates from few measurements (the estimator does it for all policies), and Sia's rules for
    nodes; each job is placed as for all policies. A job with one size takes part with each GPU type.

    >>> from gavelpy.model.problem import Size
    >>> p = AllocationProblem.of("ab", ["a100", "t4"], [2, 2], [[8.0, 2.0], [3.0, 2.0]], gpus_held=1, gpu_type_held=1)
    >>> p = p.with_sizes({"a": [Size(2, efficiency=0.9)], "b": [Size(2, efficiency=0.9)]})
    >>> Sia().allocate(p).by_size()[["gpus", "a100", "t4"]].to_numpy().tolist()
    [[2.0, 1.0, 0.0], [2.0, 0.0, 1.0]]
    """

    power: float = -0.5
    waiting: float = 1.1

    name: ClassVar[str] = "sia"
    summary: ClassVar[str] = "Choose a GPU type and a number of GPUs for each job by goodput and restart costs (Sia)."
    optimises: ClassVar[Goal] = Goal("the total value of the chosen configurations")
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.AGE, ProblemInput.GPU_TYPE_HELD, ProblemInput.GPUS_HELD, ProblemInput.RESTART, *COUNTED}
    )

    def __post_init__(self) -> None:
        if not (-1 <= self.power <= 1 and self.power != 0):
            raise InvalidInput(f"power must be in [-1, 1] and not 0, got {self.power!r}")
        if not 1 <= self.waiting <= 1e6:
            raise InvalidInput(f"waiting must be in [1, 1e6], got {self.waiting!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, and what must be known of jobs the next time."""
        past = _Past(problem)
        choices = _Choices(problem, past)
        value = self._value(choices.goodput * choices.factor(past))
        best = best_whole_choices(choices.job, value, choices.demand, problem.row_capacity)
        chosen = best.chosen[np.lexsort((choices.job[best.chosen], -choices.gpus[best.chosen]))]
        share = np.zeros(problem.fits.shape)
        share[choices.row[chosen], choices.gpu_type[chosen]] = 1.0
        over = (problem.used(share) - problem.row_capacity) / np.maximum(problem.row_capacity, 1.0)
        certificate = best.certificate(max(0.0, float(over.max(initial=0.0))))
        found = Allocation.of_known(problem, share, np.full(len(problem.gpu_types), np.nan), certificate)
        places = np.column_stack([choices.row[chosen], choices.gpu_type[chosen]]).reshape(-1, 2)
        return replace(found, next_round=places.astype(np.int64), memory=past.memory())

    def _value(self, goodput: Floats) -> Floats:
        """The value of each choice; choices without one are worse than waiting."""
        sign = -1.0 if self.power < 0 else 1.0
        value: Floats = self.waiting + sign * goodput**self.power
        return value


class _Past:
    """What jobs held before: kept by id, since rows change. `most` and `starts` include what they hold now, (J,)."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        told: dict[str, list[float]] = json.loads(problem.memory or b"{}")  # id -> [type, GPUs, most GPUs, starts]
        held, asked = problem.gpu_type_held, problem.gpus_asked
        self.gpus: Floats = np.where(held >= 0, np.where(problem.gpus_held > 0, problem.gpus_held, asked), 0.0)
        self._before = np.array([told.get(job, [-1, 0, 0, 0]) for job in problem.job_ids]).reshape(-1, 4)
        is_new = (held >= 0) & ((self._before[:, 0] != held) | (self._before[:, 1] != self.gpus))
        self.most: Floats = np.maximum(self._before[:, 2], self.gpus)
        self.starts: Floats = self._before[:, 3] + is_new

    def memory(self) -> bytes:
        """The memory for the next call: of jobs that have run; the latest of them, if it would be too large."""
        ids, held = self._problem.job_ids, self._problem.gpu_type_held
        rows = np.flatnonzero(self.starts > 0).tolist()
        columns = np.column_stack([held, self.gpus, self.most, self.starts])
        kept = {ids[row]: columns[row].tolist() for row in rows}
        return as_memory(kept, kept) if kept else b""


class _Choices:
    """The places (configuration and GPU type) where each job may run next, K of them, with goodput as in the paper."""

    def __init__(self, problem: AllocationProblem, past: _Past) -> None:
        alone = problem.member_count[problem.member_configuration] == 1
        runs = (problem.fits & problem.is_whole)[problem.member_configuration] & alone[:, None]
        member, self.gpu_type = np.nonzero(runs & (problem.member_rate_steps_per_s > 0))
        self.row: Ints = problem.member_configuration[member]
        self.job: Ints = problem.member_job[member]
        self.gpus: Floats = problem.gpus_occupied[self.row]
        rate = problem.member_rate_steps_per_s[member, self.gpu_type]
        J, R = problem.job_count, len(problem.resources)
        worst, fewest = np.full(J, np.inf), np.full(J, np.inf)
        np.minimum.at(worst, self.job, rate)
        np.minimum.at(fewest, self.job, self.gpus)
        self.goodput: Floats = rate / worst[self.job] * fewest[self.job]
        most = np.maximum(GROWTH_MAX * past.most, fewest)
        self._keep(self.gpus <= most[self.job])
        amounts = np.zeros((len(self.row), R, len(problem.gpu_types)))
        amounts[np.arange(len(self.row)), :, self.gpu_type] = problem.occupied[self.row]
        self.demand: Floats = amounts.reshape(len(self.row), R * len(problem.gpu_types))  # (K, R T), as `row_capacity`
        self._problem = problem

    def _keep(self, kept: Bools) -> None:
        for name in ("row", "job", "gpus", "gpu_type", "goodput"):
            setattr(self, name, getattr(self, name)[kept])

    def factor(self, past: _Past) -> Floats:
        """f of each choice, (K,)."""
        p, job = self._problem, self.job
        restart_s, age_s = p.restart_s, p.age_s
        spent = np.divide(
            age_s - past.starts * restart_s, age_s + restart_s, out=np.ones(p.job_count), where=restart_s > 0
        )
        moved = np.clip(spent, LEAST_FACTOR, 1.0)[job]
        stays = (p.gpu_type_held[job] < 0) | ((p.gpu_type_held[job] == self.gpu_type) & (past.gpus[job] == self.gpus))
        return np.where(stays, 1.0, moved)
