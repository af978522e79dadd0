"""Pollux: a number of GPUs for each job, for the highest mean of speed-ups in goodput."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.goodput_choices import GoodputChoices, PastOfJobs
from gavelpy.solve.solver import Solver
from gavelpy.solve.whole_choices import best_whole_choices


@dataclass(frozen=True)
class Pollux:
    """Maximise the fitness  ((1/J) Σ_j S_j^p)^(1/p)  over one number of GPUs for each job, within all capacities.

    S_j     speed-up:  f_j(n_j) GOODPUT_j(n_j) / GOODPUT_j(n_fair);  `waiting` for a job without GPUs
    n_fair  an equal part of the GPUs, W / J, rounded down to a number on which the job can run; at least its least one
    f_j     1 if the job keeps its GPUs, and for jobs without; else (T_j - N_j δ_j) / (T_j + δ_j), with the age T_j,
            N_j starts so far, and δ_j seconds that a start costs (`restart_s`)
    p       `power`, -1: the lower, the more even

    Pollux (OSDI '21), section 4.2, equations 11 to 13, with p = -1 of its evaluation. GOODPUT is throughput times
    statistical efficiency, at the batch size where it is highest: the rate, if it counts steps of equal worth. A job
    may list several batch sizes for one number of GPUs (sizes with a `plan`); the best is chosen. A job begins on its
    least number of GPUs and gets at most twice the most that it has had.

    GPUs of all types count alike, as in the paper: a job's goodput is the mean over the types on which it can run.
    Types still limit which GPUs are free together. The paper searches by a genetic algorithm; with one power for all
    jobs the best fitness has the best sum of powers, so it is found by branch and bound, with a bound (the certificate
    is of that sum). In the paper the fitness is 0 if some job waits; with p < 0 a waiting job here counts as 1/100 of
    its fair goodput, so that as many jobs run as can. The policy names each round, so GPUs that it leaves stay free.

    >>> from gavelpy.model.problem import Size
    >>> p = AllocationProblem.of("ab", ["v100"], [4], [[1.0], [1.0]], gpu_type_held=0, gpus_held=2)
    >>> p = p.with_sizes({"a": [Size(2, {"v100": 1.2})], "b": [Size(2, {"v100": 1.9}), Size(3, {"v100": 2.7})]})
    >>> Pollux().allocate(p).by_size().query("v100 > 0")["gpus"].tolist()
    [1.0, 3.0]
    """

    power: float = -1.0
    waiting: float = 0.01

    name: ClassVar[str] = "pollux"
    summary: ClassVar[str] = "Choose a number of GPUs for each job by the mean speed-up of goodput (Pollux)."
    optimises: ClassVar[Goal] = Goal("the sum of powers of speed-ups")
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    relative_to_cluster: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.AGE, ProblemInput.GPU_TYPE_HELD, ProblemInput.GPUS_HELD, ProblemInput.RESTART, *COUNTED}
    )

    def __post_init__(self) -> None:
        if not (-3 <= self.power <= 1 and self.power != 0):
            raise InvalidInput(f"power must be in [-3, 1] and not 0, got {self.power!r}")
        if not 1e-3 <= self.waiting < 1:
            raise InvalidInput(f"waiting must be in [0.001, 1), got {self.waiting!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, and what must be known of jobs the next time."""
        past, view = PastOfJobs(problem), problem.blind_to_type()
        choices = GoodputChoices(view, past)
        speedup = choices.factor(past) * choices.rate / fair_rate(view)[choices.job]
        best = best_whole_choices(choices.job, self.value(speedup), choices.demand, problem.row_capacity)
        chosen = best.chosen[np.lexsort((choices.job[best.chosen], -choices.gpus[best.chosen]))]
        share = np.zeros(problem.fits.shape)
        share[choices.row[chosen], choices.gpu_type[chosen]] = 1.0
        over = (problem.used(share) - problem.row_capacity) / np.maximum(problem.row_capacity, 1.0)
        certificate = best.certificate(max(0.0, float(over.max(initial=0.0))))
        found = Allocation.of_known(problem, share, np.full(len(problem.gpu_types), np.nan), certificate)
        places = np.column_stack([choices.row[chosen], choices.gpu_type[chosen]]).reshape(-1, 2)
        return replace(found, next_round=places.astype(np.int64), memory=past.memory())

    def value(self, speedup: Floats) -> Floats:
        """What each choice adds to the sum of powers, compared with waiting; a choice that is no better has none."""
        sign = -1.0 if self.power < 0 else 1.0
        value: Floats = sign * (np.maximum(speedup, self.waiting) ** self.power - self.waiting**self.power)
        return value


def fair_rate(problem: AllocationProblem) -> Floats:
    """Each job's highest rate on at most an equal part of the GPUs, or on its least number, (J,); 1 if it cannot run.

    Where GPU types differ, on its best one.
    """
    alone = problem.member_count[problem.member_configuration] == 1
    runs = (problem.fits & problem.is_whole)[problem.member_configuration] & alone[:, None]
    rate = np.where(runs, problem.member_rate_steps_per_s, 0.0).max(axis=1, initial=0.0)
    member = np.flatnonzero(rate > 0)
    job, gpus = problem.member_job[member], problem.gpus_occupied[problem.member_configuration[member]]
    fewest = np.full(problem.job_count, np.inf)
    np.minimum.at(fewest, job, gpus)
    part = problem.gpu_counts.sum() / max(len(np.unique(job)), 1)
    is_fair = gpus <= np.maximum(fewest, part)[job]
    found = np.zeros(problem.job_count)
    np.maximum.at(found, job[is_fair], rate[member[is_fair]])
    return np.where(found > 0, found, 1.0)
