"""The engine between requests and answers: what the policy sees, how its answer is converted, and rates from tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from gavelpy.engine import SHARE_UNIT, Engine
from gavelpy.errors import SolverFailed
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.problem import AllocationProblem, BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.runtime.daemon.job_history import JobHistory
from gavelpy.solve.solver import Solver

SERIALS = np.array([7, 3])
PROOF = Certificate(objective=0.5, bound=0.75, gap=0.25, violation=0.0, path="by hand", solve_s=0.0)


@dataclass
class Told:
    """A policy that returns preset shares, and records the problems it receives."""

    share: Any
    name: ClassVar[str] = "told"
    summary: ClassVar[str] = "What the test says."
    fills_leftover: ClassVar[bool] = True
    asked: list[AllocationProblem] = field(default_factory=list)
    solvers: list[Solver | None] = field(default_factory=list)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """The preset shares."""
        self.asked.append(problem)
        self.solvers.append(solver)
        return Allocation(problem, self.share, np.zeros(2), PROOF)


@dataclass
class Warned(Told):
    """A policy with an answer that is not fully proved."""

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """The preset shares, with a warning."""
        answer = super().allocate(problem, solver)
        return replace(answer, certificate=replace(PROOF, warning="feasible, but proved to 25 % only"))


@dataclass
class Failing(Told):
    """A policy that always fails."""

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Raises SolverFailed."""
        raise SolverFailed("infeasible", jobs=problem.job_count, gpu_types=2)


def make_question(rates: Any = ((4.0, 1.0), (3.0, 0.0))) -> SolveAllocation:
    return SolveAllocation(5, AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], rates), SERIALS)


def make_estimate(*keys: tuple[str, int]) -> EstimateThroughput:
    names, gpus = zip(*keys, strict=True)
    return EstimateThroughput(np.arange(len(keys)) + 10, names, np.array(gpus), ("k80", "v100", "a100"))


def entries(answer: AllocationSolved | AllocationFailed) -> list[tuple[int, int, float]]:
    assert isinstance(answer, AllocationSolved)
    return list(zip(answer.jobs.tolist(), answer.gpu_type.tolist(), answer.share.tolist(), strict=True))


def test_answer_names_jobs_by_serial_and_carries_the_proof() -> None:
    answer = Engine(Told([[0.5, 0.0], [0.25, 0.0]])).solve(make_question())

    assert isinstance(answer, AllocationSolved)
    assert entries(answer) == [(7, 0, 0.5), (3, 0, 0.25)]
    assert (answer.epoch, answer.objective, answer.gap, answer.path) == (5, 0.5, 0.25, "by hand")


def test_answer_that_is_not_fully_proved_carries_its_warning_to_those_who_ask() -> None:
    answer = Engine(Warned([[0.5, 0.0], [0.25, 0.0]])).solve(make_question())

    facts = JobHistory()
    facts.apply(answer, 0.0, SchedulerCore())

    assert isinstance(answer, AllocationSolved)
    assert entries(answer) == [(7, 0, 0.5), (3, 0, 0.25)]
    assert answer.warning == "feasible, but proved to 25 % only"
    assert facts.answer.warning == answer.warning


def test_an_aware_policy_sees_the_true_rates() -> None:
    policy = Told(np.zeros((2, 2)))

    Engine(policy).solve(make_question())

    assert policy.asked[0].member_rate_steps_per_s.tolist() == [[4.0, 1.0], [3.0, 0.0]]


@pytest.mark.parametrize(
    ("view", "rates"),
    [
        (BlindView.MEAN, [[2.5, 2.5], [3.0, 0.0]]),
        (BlindView.ONES, [[1.0, 1.0], [1.0, 1.0]]),
        (BlindView.FIRST, [[4.0, 4.0], [3.0, 3.0]]),
    ],
)
def test_a_blind_policy_sees_its_view(view: BlindView, rates: list[list[float]]) -> None:
    policy = Told(np.zeros((2, 2)))

    Engine(policy, view).solve(make_question())

    assert policy.asked[0].member_rate_steps_per_s.tolist() == rates


@pytest.mark.parametrize("view", BlindView)
def test_a_share_of_a_type_where_the_job_cannot_run_is_dropped(view: BlindView) -> None:
    answer = Engine(Told([[0.0, 0.5], [0.5, 0.5]]), view).solve(make_question())

    assert entries(answer) == [(7, 1, 0.5), (3, 0, 0.5)]


@pytest.mark.parametrize(
    ("share", "counts"), [(SHARE_UNIT, SHARE_UNIT), (SHARE_UNIT * 1.9, SHARE_UNIT), (1.0 - 1e-12, 1.0)]
)
def test_shares_are_rounded_down_to_the_unit_of_the_tie_rule(share: float, counts: float) -> None:
    answer = Engine(Told([[share, 0.0], [0.0, 0.0]])).solve(make_question())

    assert entries(answer) == [(7, 0, counts)]


@pytest.mark.parametrize("share", [0.0, SHARE_UNIT * 0.9, -1e-12])
def test_less_than_a_unit_is_nothing(share: float) -> None:
    assert entries(Engine(Told([[share, 0.0], [0.0, 0.0]])).solve(make_question())) == []


def test_a_solver_that_fails_is_an_answer_too() -> None:
    answer = Engine(Failing(None)).solve(make_question())

    assert isinstance(answer, AllocationFailed)
    assert answer.epoch == 5
    assert answer.detail == "no certified allocation (infeasible) for 2 jobs on 2 GPU types"


def test_the_solver_is_kept_between_questions() -> None:
    policy = Told(np.zeros((2, 2)))
    engine = Engine(policy)

    engine.solve(make_question())
    engine.solve(make_question())

    assert policy.solvers == [engine.solver, engine.solver]


def test_a_warm_engine_answers_as_a_fresh_one() -> None:
    warm = Engine(MaxMinFairness())
    warm.solve(make_question([[9.0, 1.0], [1.0, 9.0]]))

    again = warm.solve(make_question())

    assert entries(again) == entries(Engine(MaxMinFairness()).solve(make_question()))
    assert warm.cpu_s > 0


def test_packed_problems_are_not_for_the_mechanism() -> None:
    question = make_question()
    paired = question.problem.with_pairs([(0, 1)], np.ones((1, 2, 2)))

    with pytest.raises(AssertionError, match="single jobs"):
        Engine(Told(np.zeros((3, 2)))).solve(SolveAllocation(5, paired, SERIALS))


def test_estimate_with_a_table_aligns_types_by_name() -> None:
    table = ThroughputTable(
        (("resnet", 1), ("resnet", 2)),
        ("v100", "k80"),
        np.array([[4.0, 1.0], [7.0, np.nan]]),
        np.zeros((2, 2)),
        ("", ""),
    )
    engine = Engine(Told(None), throughputs=table)

    answer = engine.estimate(make_estimate(("resnet", 1), ("gpt", 1), ("resnet", 2)))

    assert answer.jobs.tolist() == [10, 11, 12]
    assert np.array_equal(answer.rates_steps_per_s[0], [1.0, 4.0, np.nan], equal_nan=True)
    assert np.isnan(answer.rates_steps_per_s[1]).all()
    assert np.array_equal(answer.rates_steps_per_s[2], [np.nan, 7.0, np.nan], equal_nan=True)


def test_estimate_without_a_table_knows_nothing() -> None:
    answer = Engine(Told(None)).estimate(make_estimate(("resnet", 1)))

    assert answer.rates_steps_per_s.shape == (1, 3)
    assert np.isnan(answer.rates_steps_per_s).all()


@dataclass(frozen=True)
class Reminded:
    """A policy that remembers the memory of the answer before."""

    name: str = "reminded"
    summary: ClassVar[str] = "What the test says."
    fills_leftover: ClassVar[bool] = True

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """No shares; the memory grows by a byte in each answer."""
        return replace(Allocation(problem, np.zeros((2, 2)), np.zeros(2), PROOF), memory=problem.memory + b"\n")


def test_a_policy_gets_its_own_memory_and_none_of_another_policy() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[1.0, 1.0], [1.0, 1.0]])
    memory = b""
    lengths = []
    for name in ("first", "first", "second", "second", "first"):
        engine = Engine(Reminded(name))
        answer = engine.solve(SolveAllocation(1, replace(problem, memory=memory), SERIALS))
        assert isinstance(answer, AllocationSolved)
        memory = answer.memory
        lengths.append(len(memory) - len(name))

    assert lengths == [2, 3, 2, 3, 2]
