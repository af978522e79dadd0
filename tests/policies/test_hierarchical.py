"""Hierarchical fairness against the exact algorithm of the golden cases, and against a direct walk of the tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem, Entity, EntityPolicy
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.hierarchical import Hierarchical
from gavelpy.policies.max_min_fairness_water_filling import MaxMinFairnessWaterFilling
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.traces.gavel import read_gavel_throughputs
from gavelpy.traces.problem_json import read_problem
from tests.conftest import first_fast
from tests.policies.golden import GoldenCase, excess, read_case
from tests.solve.filling_oracle import slow_filling
from tests.solve.problems import random_problem, small_problem

FIFO = EntityPolicy.FIFO
FIXTURES = Path(__file__).parents[1] / "solve" / "fixtures"
LEVEL = 1e-5  # relative
FEASIBLE = 1e-7


def with_entities(case: GoldenCase, problem: AllocationProblem) -> AllocationProblem:
    teams: list[dict[str, Any]] = case.content["entities"]
    ids = [team["id"] for team in teams]
    return replace(
        problem,
        entities=tuple(Entity(t["id"], float(t["weight"]), EntityPolicy(t["policy"])) for t in teams),
        entity=np.array([ids.index(job["entity"]) for job in case.content["jobs"]]),
    )


def jobs_alone(problem: AllocationProblem) -> AllocationProblem:
    """The problem without its pairs."""
    J = problem.job_count
    return replace(
        problem,
        demand=problem.demand[:J],
        member_configuration=np.arange(J),
        member_job=np.arange(J),
        member_rate_steps_per_s=problem.member_rate_steps_per_s[:J],
    )


@pytest.mark.reference
@pytest.mark.parametrize("case_name", ["42", "44", "46"])
@pytest.mark.parametrize("key", ["max_min_fairness_water_filling", "max_min_fairness_water_filling_perf"])
def test_levels_are_those_of_the_exact_algorithm(reference_directory: Path, case_name: str, key: str) -> None:
    case = read_case(reference_directory, case_name)
    result = case.result(key)
    problem = with_entities(case, jobs_alone(case.problem(result["objective"]["throughput_view"])))

    allocation = Hierarchical().allocate(problem)

    normalized = allocation.rate_steps_per_s / equal_share_rate(problem)
    expected = result["exact_water_filling_normalized_tput"]
    np.testing.assert_allclose(normalized, expected, rtol=LEVEL, atol=1e-9)  # zeros in the file are a solver's noise
    assert excess(allocation) <= FEASIBLE


@pytest.mark.reference
def test_levels_with_pairs_are_those_of_the_exact_algorithm(reference_directory: Path) -> None:
    case = read_case(reference_directory, "46")
    problem = with_entities(case, case.problem())

    allocation = Hierarchical().allocate(problem)

    normalized = allocation.rate_steps_per_s / equal_share_rate(problem)
    expected = case.result("max_min_fairness_water_filling_packed")["exact_water_filling_normalized_tput"]
    np.testing.assert_allclose(normalized, expected, rtol=LEVEL, atol=1e-9)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.reference
def test_a_thousand_jobs_rise_until_none_can_where_the_original_stops_after_two_rounds(
    reference_directory: Path,
) -> None:
    """1,024 one-GPU jobs, 256 GPUs of each type, 5 entities: the original's MILP reports too many jobs as bottlenecks.

    265 jobs of its answer could gain more than 1 % without loss to any other job, 13 % of the normalised throughput in
    all, and 4.2 GPUs are idle.
    """
    table = read_gavel_throughputs(reference_directory / "data" / "gavel" / "simulation_throughputs.json")
    rng = np.random.default_rng(2)
    types = ("v100", "p100", "k80")
    kinds = [table.rates(kind, 1) for kind in table.job_types(gpus=1)]
    rates = np.array([[kinds[i][t] for t in types] for i in rng.integers(0, len(kinds), 1024)])
    teams = [Entity(str(i), float(weight)) for i, weight in enumerate(rng.integers(1, 6, 5))]
    ids = [str(i) for i in range(1024)]
    problem = AllocationProblem.of(
        ids, types, [256] * 3, rates, weight=rng.integers(1, 6, 1024), entities=teams, entity=rng.integers(0, 5, 1024)
    )

    allocation = Hierarchical().allocate(problem)

    normalizer = 1 / equal_share_rate(problem)
    floor = allocation.rate_steps_per_s * (1 - 1e-10)
    better = solve(problem, MaxSum(normalizer, floor)).rate_steps_per_s
    assert (better <= allocation.rate_steps_per_s * (1 + 1e-6)).all()
    assert problem.gpus_occupied @ allocation.share == pytest.approx([256, 256, 256])
    assert allocation.certificate.gap <= 1e-8


Speeds = Callable[[Bools], Floats]


def walked(problem: AllocationProblem) -> Speeds:
    """Speeds by walking the tree from the top on every call."""
    teams, unit = problem.entities, equal_share_rate(problem) / problem.gpus_asked
    parents = [next((k for k, t in enumerate(teams) if t.id == team.parent), -1) for team in teams]

    def rising(member: tuple[str, int], saturated: Bools) -> list[int]:
        kind, row = member
        if kind == "job":
            return [] if saturated[row] else [row]
        return [job for inner in members(row) for job in rising(inner, saturated)]

    def members(team: int) -> list[tuple[str, int]]:
        inner = [("team", k) for k, parent in enumerate(parents) if parent == team]
        return inner + [("job", int(j)) for j in np.flatnonzero(problem.entity == team)]

    def weight(member: tuple[str, int]) -> float:
        kind, row = member
        return float(problem.weight[row]) if kind == "job" else teams[row].weight

    def give(speeds: Floats, member: tuple[str, int], part: float, saturated: Bools) -> None:
        kind, row = member
        if kind == "job":
            speeds[row] = part * unit[row]
            return
        live = [inner for inner in members(row) if rising(inner, saturated)]
        if teams[row].policy == FIFO:
            first = min(live, key=lambda inner: min(rising(inner, saturated)))
            give(speeds, first, part, saturated)
            return
        for inner in live:
            give(speeds, inner, part * weight(inner) / sum(map(weight, live)), saturated)

    def speed(saturated: Bools) -> Floats:
        speeds = np.zeros(problem.job_count)
        for member in members(-1):
            if rising(member, saturated):
                give(speeds, member, weight(member), saturated)
        return speeds

    return speed


def a_hierarchy(seed: int) -> AllocationProblem:
    """A small problem with up to 4 entities, some within others, some with FIFO, and jobs without any."""
    rng, problem = np.random.default_rng(seed), small_problem(seed)
    count = int(rng.integers(1, 5))
    parents = [f"e{rng.integers(0, i)}" if i and rng.random() < 0.5 else "" for i in range(count)]
    policies = rng.choice([FIFO, EntityPolicy.FAIRNESS], count)
    weights = rng.choice([0.1, 1.0, 2.0, 5.0], count)
    teams = tuple(Entity(f"e{i}", float(weights[i]), EntityPolicy(policies[i]), parents[i]) for i in range(count))
    return replace(problem, entities=teams, entity=rng.integers(-1, count, problem.job_count))


@pytest.mark.parametrize("seed", first_fast(range(40), 20))
def test_rates_are_those_of_the_slow_way_in_exact_numbers(seed: int) -> None:
    problem = a_hierarchy(seed)

    allocation = Hierarchical().allocate(problem)

    best = problem.rate_alone_steps_per_s.max(axis=1)
    expected = slow_filling(problem, walked(problem))
    np.testing.assert_allclose(allocation.rate_steps_per_s, expected, rtol=1e-6, atol=1e-9 * best.max(initial=0.0))
    assert allocation.certificate.gap <= 1e-8


@pytest.mark.parametrize("name", ["hierarchy_of_a_million_rates", "hierarchy_of_equal_gangs"])
def test_problems_that_once_had_no_answer_have_one(name: str) -> None:
    problem = read_problem(FIXTURES / f"{name}.json")

    allocation = Hierarchical().allocate(problem)

    assert excess(allocation) <= FEASIBLE
    assert allocation.certificate.violation <= 1e-9
    assert np.isfinite(allocation.certificate.gap)
    assert bool(allocation.certificate.warning) == (allocation.certificate.gap > 1e-6)


def shares(problem: AllocationProblem) -> list[float]:
    return Hierarchical().allocate(problem).job_share.sum(axis=1).round(9).tolist()


def on_one_gpu(jobs: str, entity: list[int], *entities: Entity, weight: float | list[float] = 1.0) -> AllocationProblem:
    return AllocationProblem.of(
        jobs, ["v100"], [1], [[4.0]] * len(jobs), entity=entity, entities=entities, weight=weight
    )


def test_entities_share_by_weight_and_not_by_the_number_of_their_jobs() -> None:
    assert shares(on_one_gpu("abcd", [0, 1, 1, 1], Entity("x"), Entity("y"))) == [0.5, *[round(1 / 6, 9)] * 3]


def test_weights_of_jobs_count_within_their_entity() -> None:
    problem = on_one_gpu("abc", [0, 0, 1], Entity("x"), Entity("y"), weight=[1.0, 3.0, 9.0])

    assert shares(problem) == [0.125, 0.375, 0.5]


def test_fifo_entity_gives_all_to_its_first_job() -> None:
    assert shares(on_one_gpu("abc", [0, 0, 1], Entity("x", policy=FIFO), Entity("y"))) == [0.5, 0, 0.5]


def test_fifo_entity_passes_on_what_its_first_job_cannot_use() -> None:
    problem = replace(on_one_gpu("abc", [0, 0, 1], Entity("x", 3.0, FIFO), Entity("y")), capacity=np.array([[2000]]))

    assert shares(problem) == [1, 0.5, 0.5]


def test_what_an_entity_cannot_use_goes_to_the_others() -> None:
    problem = replace(on_one_gpu("abc", [0, 1, 1], Entity("x", 9.0), Entity("y")), capacity=np.array([[2000]]))

    assert shares(problem) == [1, 0.5, 0.5]


def test_entities_within_entities_share_what_the_outer_one_has() -> None:
    teams = [Entity("lab", 3.0), Entity("vision", parent="lab"), Entity("speech", 2.0, parent="lab"), Entity("ops")]

    assert shares(on_one_gpu("abcd", [1, 2, 0, 3], *teams)) == [0.1875, 0.375, 0.1875, 0.25]


def test_fifo_entity_goes_by_the_earliest_job_of_those_within() -> None:
    teams = [Entity("lab", policy=FIFO), Entity("late", parent="lab"), Entity("early", parent="lab")]

    assert shares(on_one_gpu("abc", [2, 1, 2], *teams)) == [0.5, 0, 0.5]


def test_without_entities_it_is_water_filling() -> None:
    problem = replace(random_problem(5, jobs=30), weight=np.linspace(1, 3, 30))

    alone, flat = Hierarchical().allocate(problem), MaxMinFairnessWaterFilling().allocate(problem)

    assert alone.rate_steps_per_s == pytest.approx(flat.rate_steps_per_s, rel=1e-9)
    assert alone.certificate.objective == pytest.approx(flat.certificate.objective, rel=1e-9)
