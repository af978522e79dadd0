"""The prices rung for sizes and several resources: as good as plain HiGHS, on random problems of any number of jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.solve import linear
from gavelpy.solve.certificate import Answer
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.sizes import engine
from gavelpy.solve.sizes.hull_kernels import set_edges
from gavelpy.solve.sizes.search import best_of_goal
from gavelpy.solve.sizes.table import ModeGoal, mode_table
from gavelpy.solve.solver import Solver
from tests.conftest import costly
from tests.policies.many import OBJECTIVES, POLICIES
from tests.policies.wide import wide_case
from tests.solve.plain import optimum
from tests.solve.recomputed import value_of

LINEAR = ("max_min_fairness", "min_makespan", "max_sum_throughput", "max_sum_throughput:normalised=1")
ROWS = [POLICIES.index(name) for name in LINEAR]


def elastic(
    jobs: int, sizes: int, load: float = 0.1, seed: int = 0, weights: tuple[float, ...] = (1.0, 5.0)
) -> AllocationProblem:
    """Jobs of one GPU that also run on 2, 4, ... GPUs, on three types with `load` GPUs of each for a job."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.5, 20.0, (jobs, 1)) * rng.uniform(0.1, 1.0, (jobs, 3))
    problem = AllocationProblem.of(
        [f"j{i}" for i in range(jobs)], "vpk", [max(1, int(load * jobs))] * 3, rates, weight=rng.choice(weights, jobs)
    )
    more = 2.0 ** np.arange(1, sizes)
    efficiency = np.sort(rng.uniform(0.6, 1.0, (jobs, sizes - 1)), axis=1)[:, ::-1]
    faster: Floats = rates[:, None, :] * (more * efficiency)[:, :, None]
    return replace(
        problem,
        demand=np.concatenate([problem.demand, np.tile(1000 * more, jobs)[:, None]]),
        member_configuration=np.arange(jobs * sizes),
        member_job=np.concatenate([np.arange(jobs), np.repeat(np.arange(jobs), sizes - 1)]),
        member_rate_steps_per_s=np.concatenate([rates, faster.reshape(-1, 3)]),
    )


def by_modes(problem: AllocationProblem, objective: LinearObjective, monkeypatch: pytest.MonkeyPatch) -> Answer | None:
    """The answer of this rung, for any number of jobs; None if it does not apply."""
    with monkeypatch.context() as patched:
        patched.setattr(engine, "NUMPY_ROWS_MAX", 0)
        return engine.best_by_modes(problem, objective, Solver()) if engine.answers(problem, objective) else None


@given(number=st.integers(0, 10**6), row=st.sampled_from(ROWS))
@costly(3)
def test_any_problem_has_an_answer_as_good_as_that_of_plain_highs(number: int, row: int) -> None:
    problem, name = wide_case(number * len(POLICIES) + row)
    objective = OBJECTIVES[name](problem)
    assert isinstance(objective, MaxMin | MaxSum)

    answer = by_modes(problem, objective, pytest.MonkeyPatch()) if problem.can_run.any() else None

    if answer is not None:
        c = answer.certificate
        assert c.gap <= 1e-8
        assert c.violation <= 1e-9
        used = np.einsum("cr,ct->tr", problem.demand, answer.share)
        assert (used <= problem.capacity * (1 + 1e-9)).all()
        found = optimum(problem, objective)
        allocation = solve(problem, objective)
        assert value_of(replace(allocation, share=answer.share), objective) == pytest.approx(c.objective, rel=1e-9)
        assert value_of(replace(allocation, share=found.share), objective) <= c.bound * (1 + 2e-8)


@pytest.mark.parametrize("load", [0.1, 1.0, 9.0])
def test_many_jobs_with_sizes_are_answered_by_prices_with_nothing_left_to_give(load: float) -> None:
    problem = elastic(700, 3, load)
    scale = 1.0 / (problem.weight * problem.rate_as_requested_steps_per_s.max(axis=1))

    allocation = solve(problem, MaxMin(scale))
    by_highs = linear._by_highs(
        linear._program(problem, MaxMin(scale), np.zeros(700)).whole(),
        MaxMin(scale),
        np.zeros(700),
        linear.QUICK,
        Solver(),
    )

    assert allocation.certificate.path == "prices"
    assert allocation.certificate.gap <= 1e-11
    assert allocation.certificate.objective == pytest.approx(by_highs.certificate.objective, rel=1e-8)
    ties = float(scale @ replace(allocation, share=by_highs.share).rate_steps_per_s)
    assert float(scale @ allocation.rate_steps_per_s) >= ties * (1 - 1e-7)


def test_search_from_prices_that_are_far_away_finds_the_same_level() -> None:
    problem = elastic(3000, 2)
    table, none = mode_table(problem, np.ones(3000), np.zeros(3000)), np.zeros(3000)
    goal = ModeGoal(none, 1.0 / table.value, none, float(table.value.min()))

    near = best_of_goal(table.modes, goal, np.full(3, 1e-3), 1e-3)
    far = best_of_goal(table.modes, goal, np.array([50.0, 1e-9, 1.0]), 10.0)

    assert near is not None
    assert far is not None
    assert far.level == pytest.approx(near.level, rel=1e-11)


def test_two_resources_of_many_jobs_have_prices() -> None:
    rng = np.random.default_rng(1)
    problem = AllocationProblem.of(
        [f"j{i}" for i in range(600)], "vp", [60, 60], rng.uniform(1.0, 9.0, (600, 2)),
        resources={"cpu": [200.0, 900.0]}, demand={"cpu": rng.integers(1, 12, 600)},
    )  # fmt: skip

    allocation = MaxMinFairness().allocate(problem)

    assert allocation.certificate.path == "prices"
    assert allocation.resource_prices[0, 1] > 0  # cores of the first type are scarce
    assert allocation.resource_prices[1, 0] > 0  # and GPUs of the second


def test_floors_that_cannot_be_met_are_left_to_the_rungs_below() -> None:
    problem = elastic(600, 2, 0.01)
    floors = problem.rate_alone_steps_per_s.max(axis=1) * 0.5

    with pytest.raises(SolverFailed, match="infeasible"):
        solve(problem, MaxSum(np.ones(600), floors))


def test_type_without_gpus_has_the_value_of_a_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = elastic(300, 3)
    problem = replace(problem, capacity=np.array([[0], [30_000], [30_000]]))
    objective = MaxSum(1.0 / problem.rate_as_requested_steps_per_s.max(axis=1))

    answer = by_modes(problem, objective, monkeypatch)
    by_highs = solve(problem, objective)

    assert answer is not None
    assert answer.prices == pytest.approx(by_highs.shadow_prices, rel=1e-6)
    assert answer.prices[0] > 0


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_edge_from_any_modes_is_the_cheapest_mix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    modes, resources = int(rng.integers(1, 13)), int(rng.integers(1, 3))
    rate = 10.0 ** rng.uniform(-rng.choice([0.3, 3.0, 9.0]), 0.0, (1, modes))
    load, price = 10.0 ** rng.uniform(-3.0, 0.0, (1, modes, resources)), rng.choice([0.0, 1.0, 1e-3], 2)
    need = np.array([rng.choice([0.0, rng.uniform(0.0, rate.max()), rate.max()])])
    money = np.array([rng.choice([0.0, rng.uniform(0.0, 3.0)])])
    low, high = rng.integers(-1, modes, (2, 1))
    rows, part = rng.integers(0, 2, (modes, resources)), np.empty(1)

    set_edges(rate, load, rows, need, money, price, low, high, part)

    points = np.vstack([[0.0, 0.0], np.column_stack([rate[0], (load[0] * price[rows]).sum(axis=1)])])
    lower, upper = points[low[0] + 1], points[high[0] + 1]
    got_rate, got_cost = upper * part[0] + lower * (1.0 - part[0])
    pairs = [(a, b) for a in points for b in points if a[0] < need[0] <= b[0]]
    mixed = [(a * (b[0] - need[0]) + b * (need[0] - a[0])) / (b[0] - a[0]) for a, b in pairs]
    possible = [*mixed, *(p for p in points if p[0] >= need[0])]
    assert got_rate >= need[0] * (1 - 1e-12)
    worth = money[0] * got_rate
    assert got_cost - worth <= min(p[1] - money[0] * p[0] for p in possible) + 1e-12 * (got_cost + worth)
