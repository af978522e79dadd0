"""Sia: one configuration of GPU type and number of GPUs for each job, by goodput, restart costs and fairness."""

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
        past = PastOfJobs(problem)
        choices = GoodputChoices(problem, past)
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
