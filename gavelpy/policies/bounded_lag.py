"""Bounded lag: short jobs first, while no job falls behind its equal part of the cluster by more than a bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput
from gavelpy.policies.finish_time_fairness import isolated_s
from gavelpy.policies.turns import UNKNOWN_START_S, StartTurns
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class BoundedLag:
    """Maximise  Σ_j w_j Σ_t c_jt r_jt(x) / n_j   subject to   r_j(x) >= f_j i_j.

    r_jt(x)    steps/s of job j on GPU type t under shares x, r_j(x) their sum
    n_j, w_j   its steps remaining, its weight
    i_j        its rate on an equal part of the GPUs of every type (the policy `isolated`)
    c_jt       1 on the GPUs that the job holds, else  R_j / (R_j + s_j);  R_j: time to its end at its best rate,
               s_j: seconds that a start costs it (measured; `start_s` before its first one)
    f_j        0 while the job's lag is below (1 - ramp) λ T_j, 1 from λ T_j on, and linear between
    lag        its age less h_j, the time that the steps done would have taken on an equal part
    T_j        h_j + n_j / i_j, the time from submission to finish on an equal part;  λ = `lag`

    With equal rates the sum serves the jobs with the least remaining GPU time first, which is what a low average
    completion time needs; c_jt keeps a running job unless the other is shorter by more than its start. The floors
    bound what that costs a job: lag grows only while f_j < 1, so a job finishes within  (1 + λ) T_j  if the number of
    jobs is constant, and λ = 0 is the sharing incentive. Equal parts satisfy all floors at once, so the program is
    always feasible. docs/bounded-lag.md has the proofs, and a counterexample for what is not true.

    A job with a floor counts with c_jt = 1, so that the floor is on its true rates.

    Shares are delivered in slices of at least `slice_s` seconds (the longer of a round and `move_lag_s`). If starts
    cost time, and one of 300 s or of `start_s` takes more than half of a slice, the policy names the rounds: a job that
    got GPUs keeps them until it has trained for s_j seconds; then come jobs with floors by lag / T_j, then the shares.

    >>> p = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]], steps_remaining=[400.0, 40.0], age_s=[90.0, 0.0])
    >>> BoundedLag(lag=1.0).allocate(p).share.round(6).tolist()
    [[0.0], [1.0]]
    >>> BoundedLag(lag=0.25).allocate(p).share.round(6).tolist()
    [[0.5], [0.5]]
    """

    lag: float = 1.0
    ramp: float = 0.25
    start_s: float = field(default=0.0)
    slice_s: float = field(default=0.0)

    name: ClassVar[str] = "bounded_lag"
    summary: ClassVar[str] = "Finish short jobs first; let no job lag behind an equal part by more than a bound."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = True
    relative_to_cluster: ClassVar[bool] = True  # the floors are parts of the cluster
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {
            ProblemInput.WEIGHT, ProblemInput.STEPS_REMAINING, ProblemInput.AGE, ProblemInput.ISOLATED,
            ProblemInput.GPU_TYPE_HELD, ProblemInput.GPUS_HELD, ProblemInput.RESTART, ProblemInput.PAIRS, *COUNTED,
        }
    )  # fmt: skip
    optimises: ClassVar[Goal] = Goal("the rate at which jobs finish")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT})

    def __post_init__(self) -> None:
        if not 0 <= self.lag <= 1e6:
            raise InvalidInput(f"lag must be in [0, 1e6], got {self.lag!r}")
        if not 0 <= self.ramp <= 1:
            raise InvalidInput(f"ramp must be in [0, 1], got {self.ramp!r}")
        if not 0 <= self.start_s < np.inf:
            raise InvalidInput(f"start_s must be finite and >= 0, got {self.start_s!r}")
        if not 0 <= self.slice_s < np.inf:
            raise InvalidInput(f"slice_s must be finite and >= 0, got {self.slice_s!r}")

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> BoundedLag:
        """The policy with this cost of a start and these slices, unless it has its own."""
        start_s, slice_s = self.start_s or turn_s, self.slice_s or max(round_s, move_lag_s)
        return replace(self, start_s=start_s, slice_s=slice_s)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the sum."""
        floor = self.floors(problem)
        changed = self._with_starts(problem, floor == 0)
        gain = problem.weight / np.where(problem.steps_remaining > 0, problem.steps_remaining, 1.0)
        try:
            found = solve(changed, MaxSum(gain, floor), solver)
        except SolverFailed as error:
            if error.status != "infeasible":
                raise
            found = solve(changed, MaxSum(gain, floor * _feasible_part(problem, floor, solver)), solver)
        found = found if changed is problem else replace(found, problem=problem)
        return self._in_turns(found, problem, floor > 0, gain) if self.names_rounds else found

    @property
    def names_rounds(self) -> bool:
        """Whether a start may take more than half of a slice, for any problem: parts of one round are alike."""
        return self.start_s > 0 and 0 < self.slice_s < 2.0 * max(self.start_s, UNKNOWN_START_S)

    def _in_turns(
        self, found: Allocation, problem: AllocationProblem, has_floor: np.ndarray, gain: Floats
    ) -> Allocation:
        """The answer with the next round by name."""
        turns = StartTurns(problem, np.where(problem.restart_s > 0, problem.restart_s, self.start_s))
        lag_s, on_part_s = problem.age_s - problem.isolated_s, isolated_s(problem)
        lag = np.divide(lag_s, on_part_s, out=np.ones(problem.job_count), where=on_part_s > 0)
        urgency = np.where(has_floor, np.maximum(lag, 1e-9), 0.0)
        return replace(found, next_round=turns.next_round(found.share, urgency, gain), memory=turns.memory())

    def floors(self, problem: AllocationProblem) -> Floats:
        """The least rate of each job, f_j i_j, (J,)."""
        on_part_s = isolated_s(problem)
        rest_s = on_part_s - problem.isolated_s
        rate = np.divide(problem.steps_remaining, rest_s, out=np.zeros(problem.job_count), where=rest_s > 0)
        rate = np.where(problem.can_run, rate, 0.0)
        most_s, lag_s = self.lag * on_part_s, problem.age_s - problem.isolated_s
        width_s = self.ramp * most_s
        part = np.divide(lag_s - most_s + width_s, width_s, out=(lag_s >= most_s) * 1.0, where=width_s > 0)
        floors: Floats = rate * np.clip(part, 0.0, 1.0)
        return floors

    def _with_starts(self, problem: AllocationProblem, is_free: np.ndarray) -> AllocationProblem:
        """The problem in which rates of jobs without floors are lower wherever they would have to start."""
        start_s = np.where(problem.restart_s > 0, problem.restart_s, self.start_s)
        if not (start_s.any() and is_free.any()):
            return problem
        best = np.where(problem.gpu_counts > 0, problem.rate_alone_steps_per_s, 0.0).max(axis=1, initial=0.0)
        rest_s = np.divide(problem.steps_remaining, best, out=np.ones(problem.job_count), where=best > 0)
        factor = np.where(is_free, rest_s / (rest_s + start_s), 1.0)
        job, of = problem.member_job, problem.member_configuration
        held_gpus = np.where(problem.gpus_held > 0, problem.gpus_held, problem.gpus_asked)[job]
        stays = np.abs(problem.gpus_occupied[of] - held_gpus) < 1e-6
        stays_on = stays[:, None] & (problem.gpu_type_held[job][:, None] == np.arange(len(problem.gpu_types)))
        rates = problem.member_rate_steps_per_s * np.where(stays_on, 1.0, factor[job][:, None])
        return replace(problem, member_rate_steps_per_s=rates)


def _feasible_part(problem: AllocationProblem, floor: Floats, solver: Solver | None) -> float:
    """The largest part of all floors that is feasible: jobs that cannot run as requested may have none for all."""
    scale = np.divide(1.0, floor, out=np.zeros(len(floor)), where=floor > 0)
    level = solve(problem, MaxMin(scale), solver).certificate.objective
    return min(1.0, level * (1.0 - 1e-9))
