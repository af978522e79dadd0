"""A kept `Solver` changes no byte of an answer, whatever it answered before; compiled steps find large optima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from benchmarks.problems import Mix, draw
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.solve import ladder
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxMinLexicographic, MaxSum, MinMaxFinishTime, Objective
from gavelpy.solve.prices import certified, engine, highest_level, numba_search, pivots
from gavelpy.solve.prices.crossover import exact
from gavelpy.solve.prices.newton import Dual, Point
from gavelpy.solve.prices.starting_prices import near_sum
from gavelpy.solve.prices.table import Fixed, Table, jobs_of
from gavelpy.solve.prices.vertex import unique
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver
from tests.solve.plain import optimum

LINEAR = ("max_min_fairness", "min_makespan", "max_sum_throughput", "min_cost")
EVENTS = 6
KINDS = ("real", "whole numbers", "few kinds", "sparse", "decades")


@dataclass(frozen=True, eq=False)
class Pool:
    """Jobs of which some are present, and an objective."""

    rate: Floats  # (N, T)
    gpus: Ints  # (N,)
    value: Floats  # (N,)
    floor: Floats  # (N,)
    worth: Floats  # (T,)
    counts: Ints  # (T,)
    age: Floats  # (N,)
    goal: str

    def at(self, rows: list[int]) -> tuple[AllocationProblem, Objective]:
        """The problem of these jobs."""
        types = [f"t{t}" for t in range(len(self.counts))]
        names = [f"j{row}" for row in rows]
        problem = AllocationProblem.of(names, types, self.counts, self.rate[rows], gpus=self.gpus[rows])
        age = self.age[rows] + self.value[rows]
        goals: dict[str, Objective] = {
            "level": MaxMin(self.value[rows] / self.rate[rows].mean(axis=1)),
            "sum": MaxSum(self.value[rows]),
            "worth": MaxSum(np.ones(len(rows)), gpu_type_worth=self.worth),
            "floors": MaxSum(self.value[rows], rate_floor_steps_per_s=self.floor[rows]),
            "levels": MaxMinLexicographic(self.value[rows] / self.rate[rows].mean(axis=1)),
            "finish time": MinMaxFinishTime(self.rate[rows].max(axis=1) * self.value[rows], self.age[rows], 2.0 * age),
        }
        return problem, goals[self.goal]


LINEAR_GOALS, GOALS_WITH_CURVES = ("level", "sum", "worth", "floors"), ("levels", "finish time")


def pool(rng: np.random.Generator, jobs: int, goals: Sequence[str] = LINEAR_GOALS) -> Pool:
    """Random jobs of a random kind, on a cluster of a random load."""
    T, kind, load = int(rng.integers(2, 6)), rng.choice(KINDS), float(rng.choice([0.05, 0.1, 0.2, 0.33, 0.6, 1.0]))
    rate = np.exp(rng.normal(0.0, 1.0, (jobs, T)))
    if kind == "whole numbers":
        rate = rng.integers(1, 12, (jobs, T)).astype(np.float64)
    elif kind == "few kinds":
        rate = rate[rng.integers(0, 300, jobs)] * np.where(
            rng.random((jobs, 1)) < 0.7, 1.0, rng.random((jobs, 1)) + 0.5
        )
    elif kind == "sparse":
        rate *= rng.random((jobs, T)) < 0.6
        rate[np.arange(jobs), rng.integers(0, T, jobs)] += 0.5
    elif kind == "decades":
        rate = 10.0 ** rng.uniform(-4.0, 4.0, (jobs, T))
    gpus = rng.choice([1, 1, 1, 2, 4, 8], jobs)
    counts = np.maximum(8, np.floor(3 * load * jobs / T * rng.uniform(0.5, 1.5, T))).astype(np.int64)
    part = 0.15 * min(1.0, counts.sum() / gpus.sum()) * (np.arange(jobs) % 3 == 0)
    goal = str(rng.choice(goals))
    value, worth = np.exp(rng.normal(0.0, 0.5, jobs)), np.exp(rng.normal(0.0, 1.0, T))
    age = rng.uniform(0.0, 3.0, jobs)
    return Pool(rate, gpus, value, part * rate.max(axis=1), worth, counts, age, goal)


def answers_of_events(seed: int, goals: Sequence[str] = LINEAR_GOALS) -> tuple[list[Allocation], list[Allocation]]:
    """Answers after random arrivals and departures: with one solver, and each with a new one."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(NUMPY_ROWS_MAX + 28, 900))
    jobs, rows, solver = pool(rng, n + EVENTS, goals), list(range(n)), Solver()
    warm, cold = [], []
    for event in range(EVENTS):
        if event and rng.random() < 0.5:
            rows.append(n + event)
        elif event:
            rows.pop(int(rng.integers(len(rows))))
        problem, objective = jobs.at(rows)
        warm.append(solve(problem, objective, solver))
        cold.append(solve(replace(problem), objective))
    return warm, cold


def bytes_of(allocation: Allocation) -> tuple[bytes, bytes, float, float]:
    c = allocation.certificate
    return allocation.share.tobytes(), allocation.shadow_prices.tobytes(), c.objective, c.bound


def after_changes(seed: int, goals: Sequence[str]) -> list[int]:
    """Which answers with one solver have other bytes than new ones, if rates, GPUs and jobs change in between."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(NUMPY_ROWS_MAX + 28, 800))
    jobs, rows, solver, other = pool(rng, n + 2 * EVENTS, goals), list(range(n)), Solver(), []
    for event in range(EVENTS):
        match event and rng.choice(["rates", "GPUs", "arrivals", "departures"]):
            case "rates":
                some = rng.choice(len(jobs.rate), 3)
                jobs.rate[some] *= rng.uniform(0.5, 2.0, (3, 1))
            case "GPUs":
                jobs.counts[rng.integers(len(jobs.counts))] += rng.integers(1, 9)
            case "arrivals":
                rows += [n + 2 * event, n + 2 * event + 1]
            case "departures":
                rows.pop(int(rng.integers(len(rows))))
        problem, objective = jobs.at(rows)
        if bytes_of(solve(problem, objective, solver)) != bytes_of(solve(replace(problem), objective)):
            other.append(event)
    return other


@pytest.mark.parametrize("goals", [("levels",), ("finish time",), LINEAR_GOALS])
def test_a_kept_solver_changes_no_byte_after_changes_of_rates_and_gpus(goals: Sequence[str]) -> None:
    assert after_changes(3, goals) == []


@pytest.mark.slow
@pytest.mark.parametrize("goals", [("levels",), ("finish time",), LINEAR_GOALS])
def test_a_kept_solver_changes_no_byte_in_sequences_of_all_changes(goals: Sequence[str]) -> None:
    assert [seed for seed in range(100, 160) if after_changes(seed, goals)] == []


@pytest.mark.parametrize("name", ["max_min_fairness_water_filling", "finish_time_fairness"])
def test_each_level_begins_at_its_own_last_prices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, policy, solver = draw(700, 3, Mix.DISTINCT, load=0.6, seed=1, spare=4), policy_from(name), Solver()
    first, *later = (drawn.problem(rows) for rows in drawn.changes(700, 4))
    policy.allocate(first, solver)
    expected = [bytes_of(policy.allocate(replace(problem))) for problem in later]
    monkeypatch.delattr(highest_level, "near")  # which a search without last prices begins with

    assert [bytes_of(policy.allocate(problem, solver)) for problem in later] == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_kept_solver_changes_no_byte(seed: int) -> None:
    warm, cold = answers_of_events(seed)

    assert [bytes_of(a) for a in warm] == [bytes_of(a) for a in cold]
    assert max(a.certificate.gap for a in warm) < 1e-8


@pytest.mark.parametrize("seed", range(4))
def test_a_kept_solver_changes_no_byte_of_levels_and_finish_times(seed: int) -> None:
    warm, cold = answers_of_events(seed, GOALS_WITH_CURVES)

    assert [bytes_of(a) for a in warm] == [bytes_of(a) for a in cold]


@pytest.mark.parametrize("seed", range(5))
def test_compiled_steps_find_the_levels_and_finish_times_that_numpy_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = pool(np.random.default_rng(seed), NUMPY_ROWS_MAX, GOALS_WITH_CURVES)
    problem, objective = jobs.at(list(range(NUMPY_ROWS_MAX)))
    found = []

    for kernels in (numba_search, None):
        for module in (certified, engine, highest_level, ladder, pivots):
            monkeypatch.setattr(module, "search_kernels", lambda kernels=kernels: kernels)
        found.append(bytes_of(solve(replace(problem), objective)))

    assert found[0] == found[1]


@pytest.mark.parametrize("load", [0.1, 0.33, 0.6])
@pytest.mark.parametrize("name", ["max_min_fairness_water_filling", "finish_time_fairness"])
def test_compiled_steps_need_no_sizes_of_clusters(name: str, load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, policy, solver = draw(700, 3, Mix.DISTINCT, load=load, seed=5, spare=3), policy_from(name), Solver()
    monkeypatch.delattr(highest_level, "_by_sizes")

    found = [policy.allocate(drawn.problem(rows), solver).certificate for rows in drawn.changes(700, 3)]

    assert max(c.gap for c in found) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4, 2004, 100))
def test_a_kept_solver_changes_no_byte_in_two_thousand_sequences(first: int) -> None:
    found = [answers_of_events(seed) for seed in range(first, first + 100)]

    assert [
        n for n, (warm, cold) in enumerate(found, first) if list(map(bytes_of, warm)) != list(map(bytes_of, cold))
    ] == []


@pytest.mark.parametrize("load", [0.1, 0.33, 0.6])
@pytest.mark.parametrize("name", LINEAR)
def test_a_warm_answer_does_not_search(name: str, load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, policy, solver = draw(700, 3, Mix.DISTINCT, load=load, seed=5, spare=3), policy_from(name), Solver()
    first, *later = (drawn.problem(rows) for rows in drawn.changes(700, 3))
    policy.allocate(first, solver)
    expected = [bytes_of(policy.allocate(replace(problem))) for problem in later]
    for search in ("near_sum", "near_level", "roughly_level", "most_gain", "exact", "_by_columns"):
        monkeypatch.delattr(engine, search)

    found = [bytes_of(policy.allocate(problem, solver)) for problem in later]

    assert found == expected


@pytest.mark.parametrize("seed", range(12))
def test_compiled_steps_find_the_optimum_of_the_whole_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, objective = pool(rng, 600).at(list(range(600)))
    assert isinstance(objective, MaxMin | MaxSum)

    found = solve(problem, objective).certificate.objective

    assert found == pytest.approx(optimum(problem, objective).value, rel=1e-8)


def test_compiled_steps_find_the_prices_that_small_programs_find() -> None:
    table, solver = _table(600, load=0.2), Solver()
    dual = Dual(table, Fixed(np.zeros(600)))
    start = near_sum(dual, np.zeros(600), solver, inside=False)
    more = replace(dual, table=replace(table, gpu_counts=table.gpu_counts * (1.0 + engine.TRACE)))
    vertex = exact(more, start, solver)
    assert vertex is not None

    mix = unique(dual, start)

    assert mix is not None
    np.testing.assert_allclose(mix.price, vertex.price, rtol=1e-9)
    assert (table.load @ mix.time <= table.gpu_counts * (1.0 + 1e-12)).all()


def test_compiled_steps_find_one_answer_from_any_start() -> None:
    table = _table(600, load=0.2)
    dual = Dual(table, Fixed(np.zeros(600)))
    best = unique(dual, near_sum(dual, np.zeros(600), Solver(), inside=False))
    assert best is not None
    rng = np.random.default_rng(1)

    found = [unique(dual, Point(best.price * rng.uniform(0.8, 1.2, 3), 0.0)) for _ in range(20)]

    assert {mix.time.tobytes() for mix in found if mix is not None} == {best.time.tobytes()}


def _table(jobs: int, load: float) -> Table:
    problem = draw(jobs, 3, Mix.DISTINCT, load=load, seed=3).problem()
    found = jobs_of(problem, np.ones(jobs), np.zeros(jobs))
    return replace(found.table, gain=found.table.rate * found.value[:, None])
