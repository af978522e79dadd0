"""
Write your own policy
=====================

A policy is a dataclass with one method. This one maximises the number of jobs that finish soon, and guarantees each job
half of the rate that it would have with an equal part of the cluster.
"""

# %%
# State the objective and the rate floors; ``solve`` adds the constraints and returns certified shares.

from dataclasses import dataclass
from typing import ClassVar

from gavelpy import Allocation, AllocationProblem
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
        floor = self.least * Isolated().allocate(problem).rate_steps_per_s
        return solve(problem, MaxSum(1.0 / problem.steps_remaining, floor), solver)


# %%
# Try it on a small problem with an optimum that you can check by hand.

problem = AllocationProblem.of(
    ["resnet", "lstm", "bert"],
    ["v100", "k80"],
    [1, 1],
    [[6.0, 1.0], [4.0, 3.0], [8.0, 2.0]],
    steps_remaining=[1e4, 5e4, 9e4],
)
NearlyDone().allocate(problem).by_job().round(3)

# %%
# The contract suite tests what every policy must guarantee: shares within bounds, certificates that hold, and answers
# that do not depend on the order of the jobs.

from gavelpy.policies.contract import CHECKS, problems

for check in CHECKS.values():
    for other in problems(seed=0).values():
        check(NearlyDone(), other)
print(len(CHECKS), "checks on", len(problems(seed=0)), "problems passed")

# %%
# An entry point makes the policy available to ``gavel simulate``, ``gavel allocate`` and the scheduler:
#
# .. code-block:: toml
#
#     [project.entry-points."gavelpy.policies"]
#     nearly_done = "my_package.policies:NearlyDone"
