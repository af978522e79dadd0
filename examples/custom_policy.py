"""A custom policy: prefers jobs that are nearly done, and guarantees each job half of an isolated share.

python examples/custom_policy.py
"""

from dataclasses import dataclass
from typing import ClassVar

from gavelpy import Allocation, AllocationProblem
from gavelpy.policies.contract import CHECKS, problems
from gavelpy.policies.isolated import Isolated
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class NearlyDone:
    """Maximise  Σ_j r_j(x) / steps_j  with  r_j(x) ≥ least · r_j(isolated)."""

    least: float = 0.5

    name: ClassVar[str] = "nearly_done"
    summary: ClassVar[str] = "Prefer jobs that are nearly done; each job keeps half of an isolated share."
    fills_leftover: ClassVar[bool] = True

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is Σ_j r_j / steps_j, in 1/s."""
        floor = self.least * Isolated().allocate(problem).rate_steps_per_s
        return solve(problem, MaxSum(1.0 / problem.steps_remaining, floor), solver)


if __name__ == "__main__":
    problem = AllocationProblem.of(
        ["resnet", "lstm", "bert"],
        ["v100", "k80"],
        [1, 1],
        [[6.0, 1.0], [4.0, 3.0], [8.0, 2.0]],  # steps/s of each job on each type
        steps_remaining=[1e4, 5e4, 9e4],
    )
    allocation = NearlyDone().allocate(problem)
    print(allocation.by_job().round(3))
    print("one more V100 is worth", allocation.shadow_prices[0], "per second;", allocation.certificate)
    for check in CHECKS.values():  # the contract of all policies
        for other in problems(seed=0).values():
            check(NearlyDone(), other)
