"""Distinct jobs answered by kernels alone: the bytes of the road that looks for equal jobs; others are left to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.problems import Mix, draw
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.solve import ladder
from gavelpy.solve.finish_time_distinct import best_finish_time_of_distinct
from gavelpy.solve.objective import MaxMin, MaxSum, MinMaxFinishTime, Objective
from gavelpy.solve.prices import numba_search
from gavelpy.solve.prices.distinct import best_of_distinct
from gavelpy.solve.solver import Solver


def given(jobs: int, types: int, load: float, seed: int) -> tuple[AllocationProblem, tuple[Objective, Objective]]:
    """A problem of distinct jobs, and two objectives."""
    problem = draw(jobs, types, Mix.DISTINCT, load=load, seed=seed).problem()
    value = np.random.default_rng(seed).uniform(0.5, 2.0, jobs) / problem.rate_alone_steps_per_s.max(axis=1)
    return problem, (MaxMin(value), MaxSum(value))


def answer_of(problem: AllocationProblem, objective: Objective) -> tuple[bytes, bytes, float, float, float, str]:
    """Everything about an answer except its time."""
    a = ladder.solve(problem, objective)
    c = a.certificate
    return a.share.tobytes(), a.shadow_prices.tobytes(), c.objective, c.bound, c.violation, c.path


@pytest.mark.parametrize("types", [2, 3, 9])
@pytest.mark.parametrize("load", [0.1, 0.33, 0.6])
@pytest.mark.parametrize("jobs", [1, 40, 200, 700])
def test_answers_have_the_bytes_of_the_other_road(
    jobs: int, load: float, types: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, objectives = given(jobs, types, load, seed=jobs)
    monkeypatch.setattr(ladder, "search_kernels", lambda: numba_search)
    at_once = [answer_of(problem, objective) for objective in objectives]
    monkeypatch.setattr(ladder, "search_kernels", lambda: None)

    assert [answer_of(replace(problem), objective) for objective in objectives] == at_once


@pytest.mark.parametrize("load", [0.1, 0.33, 0.6, 1.2])
@pytest.mark.parametrize(("jobs", "types"), [(300, 2), (700, 3), (512, 7)])
def test_finish_times_have_the_bytes_of_the_other_road(
    jobs: int, types: int, load: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = draw(jobs, types, Mix.DISTINCT, load=load, seed=jobs).problem()
    steps, age_s = problem.steps_remaining, problem.age_s
    objective = MinMaxFinishTime(steps, age_s, age_s + 20.0 * steps / problem.rate_alone_steps_per_s.max(axis=1))
    monkeypatch.setattr(ladder, "search_kernels", lambda: numba_search)
    assert best_finish_time_of_distinct(replace(problem), objective, Solver()) is not None
    at_once = answer_of(problem, objective)
    monkeypatch.setattr(ladder, "search_kernels", lambda: None)

    assert answer_of(replace(problem), objective) == at_once


@pytest.mark.parametrize(("load", "seed"), [(0.1, 1), (0.33, 2)])
def test_jobs_that_lack_time_for_their_need_get_it_on_both_roads(
    load: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs of old jobs with little left bend so much that their tangents are wrong by more than is allowed."""
    problem, policy = draw(8192, 3, Mix.DISTINCT, load=load, seed=seed).problem(), policy_from("finish_time_fairness")
    monkeypatch.setattr(ladder, "search_kernels", lambda: numba_search)
    at_once = policy.allocate(problem)
    monkeypatch.setattr(ladder, "search_kernels", lambda: None)

    again = policy.allocate(replace(problem))

    assert at_once.certificate.gap > 0.0  # the lifted job has another ratio than the rest
    assert (at_once.share.tobytes(), at_once.certificate.gap) == (again.share.tobytes(), again.certificate.gap)


def changed(problem: AllocationProblem, kind: str) -> AllocationProblem:
    """The problem with something that another road is for."""
    rate = problem.member_rate_steps_per_s.copy()
    match kind:
        case "equal jobs":
            rate[1] = rate[0]
            return replace(problem, member_rate_steps_per_s=rate, demand=np.full_like(problem.demand, 1000))
        case "nearly equal jobs":
            rate[1::2] = rate[::2] * (1.0 + 5e-10)
        case "a job that cannot run":
            rate[3] = 0.0
        case "a type of no use":
            rate[:, 1] = 0.0
        case "a type without GPUs":
            capacity = problem.capacity.copy()
            capacity[1] = 0
            return replace(problem, capacity=capacity)
    return replace(problem, member_rate_steps_per_s=rate)


@pytest.mark.parametrize(
    "kind", ["equal jobs", "nearly equal jobs", "a job that cannot run", "a type of no use", "a type without GPUs"]
)
def test_other_problems_are_left_to_the_other_road(kind: str) -> None:
    problem, _ = given(40, 3, 0.33, seed=1)
    value = np.ones(40)

    assert best_of_distinct(problem, MaxSum(1.0 + np.arange(40.0)), Solver()) is not None
    assert best_of_distinct(changed(problem, kind), MaxSum(value), Solver()) is None


def test_floors_are_left_to_the_other_road() -> None:
    problem, _ = given(40, 3, 0.33, seed=1)

    assert best_of_distinct(problem, MaxSum(np.ones(40), np.full(40, 1e-3)), Solver()) is None
