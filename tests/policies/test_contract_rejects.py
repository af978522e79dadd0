"""The contract detects policies that break it: for each check there is one that fails it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

import numpy as np
import pytest

from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.contract import CHECKS, QUICK_CHECKS, Check, problems
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.solve.solver import Solver

CALLS = count()


@dataclass(frozen=True)
class Broken:
    """Max-min fairness with one fault."""

    fault: str

    name: ClassVar[str] = "broken"
    summary: ClassVar[str] = "Break one promise."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.WEIGHT, ProblemInput.PAIRS})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        good = MaxMinFairness().allocate(problem, solver)
        memory = self._memory(problem)
        return replace(good, share=self._share(good), certificate=self._certificate(good), memory=memory)

    def _memory(self, problem: AllocationProblem) -> bytes:
        names = " ".join(problem.job_ids).encode()
        faults = {"remembers outside its memory": b"%d" % next(CALLS), "never forgets": problem.memory + names}
        return faults.get(self.fault, b"")

    def _share(self, good: Allocation) -> Floats:
        problem = good.problem
        faults = {
            "gives away too much": lambda: np.ones_like(good.share),
            "never the same": lambda: good.share / (1 + next(CALLS)),
            "reads the clock": lambda: good.share / (1 + problem.age_s.max()),
            "reads names": lambda: good.share / len(problem.gpu_types[0]),
            "cannot do without types": lambda: good.share * problem.fits / np.ptp(problem.member_rate_steps_per_s),
        }
        return faults.get(self.fault, lambda: good.share)()

    def _certificate(self, good: Allocation) -> Certificate:
        c, p = good.certificate, good.problem
        faults = {
            "hides its violation": lambda: replace(c, violation=np.nan),
            "favours the first job": lambda: replace(c, objective=p.steps_remaining[0]),
            "favours the first type": lambda: replace(c, objective=float(p.rate_alone_steps_per_s[:, 0].sum())),
            "dislikes GPUs": lambda: replace(c, objective=-float(p.gpu_counts.sum())),
        }
        return faults.get(self.fault, lambda: c)()


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("feasible", "gives away too much"),
        ("certificate", "hides its violation"),
        ("deterministic", "never the same"),
        ("names_mean_nothing", "reads names"),
        ("blind", "gives away too much"),
        ("order_of_rows", "favours the first job"),
        ("order_of_types", "favours the first type"),
        ("more_gpus", "dislikes GPUs"),
        ("time", "reads the clock"),
        ("memory", "remembers outside its memory"),
        ("memory", "never forgets"),
        ("unused_inputs", "reads the clock"),
    ],
)
def test_check_notices_the_fault(check: str, fault: str) -> None:
    problem = problems(seed=0)["a type without GPUs" if check == "blind" else "random"]

    with pytest.raises(AssertionError):
        CHECKS[check](Broken(fault), problem)


class Aware(Broken):
    """With an answer for each input that others refuse."""

    uses: ClassVar[frozenset[ProblemInput]] = Broken.uses | set(COUNTED)


@pytest.mark.parametrize("checks", [CHECKS, QUICK_CHECKS], ids=["one at a time", "together"])
def test_check_names_the_inputs_that_change_the_answer(checks: Mapping[str, Check]) -> None:
    with pytest.raises(AssertionError, match=r"^shares depend on .*age.*: declare it"):
        checks["unused_inputs"](Aware("reads the clock"), problems(seed=0)["random"])


def test_every_check_has_a_fault_that_it_notices() -> None:
    [mark] = test_check_notices_the_fault.pytestmark

    assert {check for check, _ in mark.args[1]} == CHECKS.keys()
