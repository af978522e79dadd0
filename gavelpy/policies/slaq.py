"""SLAQ: GPUs where losses fall the most in the next round, as the reports of jobs predict."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.loss_curves import LossCurves, fit
from gavelpy.policies.marginal_gains import LonePlaces, by_marginal_gain, named_answer
from gavelpy.solve.solver import Solver

QUANTUM_S = 360.0  # without a scheduler
LEFTOVER = 1e-9  # what the highest rate is worth to a job whose loss is not predicted to fall
TRIED = 0.05  # of all steps, in which a job must report for the first time


@dataclass(frozen=True)
class Slaq:
    """Maximise  Σ_j (l_j(k_j) - l_j(k_j + r_j(G_j) T)) / Δ_j  greedily, with whole bundles G_j within all capacities.

    l_j(k)   the loss of job j after k steps: a curve through what it reported, newer reports weighing more (`decay`)
    k_j      its steps so far;  r_j(G): its rate on the bundle G, one of its sizes on one GPU type
    T        `quantum_s`, less what the last start took (`restart_s`, at most T / 2) if the job does not hold G
    Δ_j      the largest loss that it reported less the least one, so that losses of all units count alike

    SLAQ (Zhang et al., SoCC '17), section 4: all jobs get their fewest GPUs, then the job with the highest marginal
    gain gets more, until none is free. Curves and fits are those of `gavelpy.policies.loss_curves`. Greedy is optimal
    where gains fall with each GPU, on one type, with all sizes; elsewhere it is a rule.

    Ours: the paper divides by the largest fall of one iteration; reports here are of unequal numbers of steps, so it is
    the range of all. Nothing can be predicted from fewer than two reports: a job with one, or with none before it has
    done 5 % of its steps, comes first, and its gain is assumed to be r_j(G) over its highest rate (the first fall is
    the largest, so 1 in the paper's unit). With too few GPUs for all, the highest gain per GPU comes first: a job that
    has converged, or that reports nothing, waits for GPUs that others leave. These go to jobs in proportion to rates.

    A scheduler sets `quantum_s` to its round.

    >>> from gavelpy.model.problem import Size
    >>> young, old = [(k, 1 / (1 + k)) for k in range(5)], [(k, 1 / (1 + k)) for k in range(0, 500, 100)]
    >>> p = AllocationProblem.of("ab", ["v100"], [3], [[1.0], [1.0]], steps_remaining=1e4, losses=[young, old],
    ...     steps_total=[1e4 + 4, 1e4 + 400])
    >>> p = p.with_sizes({job: [Size(2, efficiency=1.0)] for job in "ab"})
    >>> Slaq(quantum_s=1.0).allocate(p).by_size()["gpus"].tolist()
    [2.0, 1.0]
    """

    decay: float = 0.95
    quantum_s: float = 0.0

    name: ClassVar[str] = "slaq"
    summary: ClassVar[str] = "Give GPUs where the losses that jobs report are predicted to fall the most (SLAQ)."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {
            ProblemInput.LOSSES, ProblemInput.STEPS_REMAINING, ProblemInput.STEPS_TOTAL, ProblemInput.GPU_TYPE_HELD,
            ProblemInput.GPUS_HELD, ProblemInput.RESTART, *COUNTED,
        }
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise InvalidInput(f"decay must be in (0, 1], got {self.decay!r}")
        if not 0 <= self.quantum_s < math.inf:
            raise InvalidInput(f"quantum_s must be finite and >= 0, got {self.quantum_s!r}")

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> Slaq:  # noqa: ARG002 the protocol's
        """This policy with the round as its quantum, unless set."""
        return self if self.quantum_s else replace(self, quantum_s=round_s)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round. The objective is the sum of the predicted falls, in ranges so far."""
        at, curves = LonePlaces(problem), fit(problem.losses, self.decay)
        fall = self.falls(at, curves)
        value = fall + LEFTOVER * self._speed(at)
        order = _first_order(at, curves, value)
        found = by_marginal_gain(at, value, order)
        return named_answer(at, found, order, float(fall[found[found >= 0]].sum()))

    def falls(self, at: LonePlaces, curves: LossCurves) -> Floats:
        """The fall of the loss that each place gives its job in the next quantum, in ranges so far, (K,)."""
        p, job = at.problem, at.job
        steps = np.minimum(at.rate * self._useful_s(at), p.steps_remaining[job])
        done = np.maximum(p.steps_total - p.steps_remaining, 0.0)[job]
        predicted = curves.fall(job, done, done + steps)
        return np.where(_is_tried(at, curves)[job], self._speed(at), predicted)

    def _speed(self, at: LonePlaces) -> Floats:
        """Steps of the next quantum in each place over those at the job's highest rate, (K,)."""
        best = np.zeros(at.problem.job_count)
        np.maximum.at(best, at.job, at.rate)
        return np.asarray(at.rate / best[at.job] * self._useful_s(at) / (self.quantum_s or QUANTUM_S))

    def _useful_s(self, at: LonePlaces) -> Floats:
        """T of each place, (K,)."""
        quantum_s = self.quantum_s or QUANTUM_S
        return np.asarray(quantum_s - np.minimum(at.start_s(), quantum_s / 2))


def _first_order(at: LonePlaces, curves: LossCurves, value: Floats) -> list[int]:
    """The jobs that can run, as they take their fewest GPUs: those to be tried, then by the highest gain per GPU."""
    smallest = at.smallest()
    jobs = np.flatnonzero(smallest >= 0)
    gain = value[smallest[jobs]] / at.part[smallest[jobs]]
    first = np.where(_is_tried(at, curves)[jobs], -np.inf, -gain)
    return [int(job) for job in jobs[np.lexsort((jobs, first))]]


def _is_tried(at: LonePlaces, curves: LossCurves) -> Bools:
    """Whether each job has too few reports for a prediction, and time to give more, (J,)."""
    p = at.problem
    is_young = p.steps_total - p.steps_remaining <= TRIED * p.steps_total
    return np.asarray((curves.reports == 1) | ((curves.reports == 0) & is_young))
