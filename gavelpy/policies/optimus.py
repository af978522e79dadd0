"""Optimus: GPUs by the time that they save, with the steps that are left predicted from reported losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.loss_curves import FEW, fit
from gavelpy.policies.marginal_gains import LonePlaces, by_marginal_gain, named_answer
from gavelpy.solve.solver import Solver

LEAST_LEFT = 0.01  # of the steps done: a job that runs on although it has converged
FITTED_SIZES = 3  # of one job on one type, as many as the model of speeds has parameters


@dataclass(frozen=True)
class Optimus:
    """Move the job with the highest  (t_j(G) - t_j(G')) / (D(G') - D(G))  from G to G', while one gains and fits.

    t_j(G)   q_j / r_j(G), and its last start (`restart_s`) where it does not hold G: the time that is left on the
             bundle G, one of its sizes on one GPU type;  D(G): the dominant share of what G needs in the cluster
    r_j(G)   its rate there; with `speeds=fitted` that of  1 / r(n) = θ0 / n + θ1 + θ2 n,  θ >= 0, by least squares over
             its sizes n on that type, if there are three or more
    q_j      its steps remaining, or fewer if it converges before: by then its loss
             l(k) = 1 / (b k + c) + d,  fitted to what it reported, has fallen to within `converged` of d, relative to
             its first report. 0 = only the stated steps count, as they do with fewer than 4 reports

    Optimus (Peng et al., EuroSys '18), sections 3 and 4: loss curves give the work that is left, speeds the time, and
    resources go one by one to the job whose completion time they reduce the most, after each has its fewest GPUs; here
    these are given by the least time left. Greedy has the least sum of times where they fall convexly with each GPU, on
    one type, with all sizes; elsewhere it is a rule.

    Not here: parameter servers. A size is one number of GPUs, so of the paper's model of speeds the terms of servers
    are left out; a size may state their CPU cores and memory as its demand. The paper's job ends where its loss falls
    by less than a threshold in an epoch; a problem has no epochs, so ours is relative to the whole fall. A job that
    runs on behind that point counts with 1 % of the steps that it has done.

    >>> from gavelpy.model.problem import Size
    >>> p = AllocationProblem.of("ab", ["v100"], [3], [[1.0], [1.0]], steps_remaining=[600.0, 60.0])
    >>> p = p.with_sizes({job: [Size(2, efficiency=0.9)] for job in "ab"})
    >>> Optimus().allocate(p).by_size()["gpus"].tolist()
    [2.0, 1.0]
    """

    converged: float = 0.01
    speeds: Literal["stated", "fitted"] = "stated"

    name: ClassVar[str] = "optimus"
    summary: ClassVar[str] = "Give GPUs to the jobs that they save the most time, by predicted steps (Optimus)."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {
            ProblemInput.LOSSES, ProblemInput.STEPS_REMAINING, ProblemInput.STEPS_TOTAL, ProblemInput.GPU_TYPE_HELD,
            ProblemInput.GPUS_HELD, ProblemInput.RESTART, *COUNTED,
        }
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 <= self.converged < 1:
            raise InvalidInput(f"converged must be in [0, 1), got {self.converged!r}")
        if self.speeds not in ("stated", "fitted"):
            raise InvalidInput(f"speeds must be 'stated' or 'fitted', got {self.speeds!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round. The objective is the number of running jobs."""
        at = LonePlaces(problem)
        left_s = self.left_s(at)
        smallest = at.smallest()
        jobs = np.flatnonzero(smallest >= 0)
        order = [int(job) for job in jobs[np.lexsort((jobs, left_s[smallest[jobs]]))]]
        found = by_marginal_gain(at, -left_s, order)
        return named_answer(at, found, order, float((found >= 0).sum()))

    def left_s(self, at: LonePlaces) -> Floats:
        """t of each place, (K,)."""
        rate = at.rate if self.speeds == "stated" else fitted_rates(at)
        return np.asarray(steps_left(at.problem, self.converged)[at.job] / rate + at.start_s())


def steps_left(problem: AllocationProblem, converged: float) -> Floats:
    """The steps that each job still does, (J,): until its loss has converged, at most those that it states."""
    stated = problem.steps_remaining
    curves = fit(problem.losses, quadratic=False, geometric=False)
    falls = (curves.reports >= FEW) & (curves.coefficients[:, 1] > 0) & (curves.range > 0)
    if converged == 0 or not falls.any():
        return stated
    slope = np.where(falls, curves.coefficients[:, 1], 1.0)
    spans = curves.coefficients[:, 0] * (1.0 / converged - 1.0) / slope  # 1 / (c + b u) = converged / c
    done = np.maximum(problem.steps_total - stated, 0.0)
    left = np.maximum(curves.first_step + curves.span * spans - done, LEAST_LEFT * done)
    return np.where(falls & (left > 0), np.minimum(left, stated), stated)


def fitted_rates(at: LonePlaces) -> Floats:
    """The rate of each place by a model of speeds for its job and type, (K,); as stated where there are few sizes.

    Errors are relative, so that slow sizes count as much as fast ones.

    >>> from gavelpy.model.problem import Size
    >>> sizes = [Size(n, {"v100": 1 / (0.5 / n + 0.1 + 0.02 * n)}) for n in (2, 4, 8)]
    >>> p = AllocationProblem.of("a", ["v100"], [8], [[1 / 0.62]]).with_sizes({"a": sizes})
    >>> (fitted_rates(LonePlaces(p)) / LonePlaces(p).rate).round(6).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    from scipy.optimize import nnls

    found = at.rate.copy()
    of_model = at.job * len(at.problem.gpu_types) + at.gpu_type
    for model in np.unique(of_model[np.bincount(of_model)[of_model] >= FITTED_SIZES] if len(of_model) else of_model):
        own = np.flatnonzero(of_model == model)
        n, rate = at.gpus[own], at.rate[own]
        terms = np.column_stack([1.0 / n, np.ones(len(n)), n])
        theta, _ = nnls(terms * rate[:, None], np.ones(len(n)))
        found[own] = 1.0 / np.maximum(terms @ theta, 1.0 / (1e3 * rate))
    return found
