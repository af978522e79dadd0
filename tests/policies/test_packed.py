"""Policies with co-located jobs: golden cases by growing models, mixed gangs, and packing that never hurts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.policies.base import registered
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.min_makespan import MinMakespan
from gavelpy.solve import linear
from tests.policies.golden import excess, least_level, makespan_s, read_case
from tests.solve.packed import distinct, of_kinds

PACKED = ("32", "34", "36", "38", "40")
MIXED_GANGS = "40"
RELATIVE = 1e-6
FEASIBLE = 1e-7


@pytest.mark.reference
@pytest.mark.parametrize("case_name", PACKED)
def test_growing_models_reach_the_independent_optima(
    reference_directory: Path, case_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = read_case(reference_directory, case_name)
    monkeypatch.setattr(linear, "MANY", 0)
    monkeypatch.setattr(linear, "MANY_FOR_EACH", 0)

    fair, quick = (policy.allocate(case.problem()) for policy in (MaxMinFairness(), MinMakespan()))

    level, makespan = (
        case.result(key)["objective"]["optimum_by_HiGHS"]
        for key in ("max_min_fairness_packed", "min_total_duration_packed")
    )
    assert least_level(fair) == pytest.approx(level, rel=RELATIVE)
    assert makespan_s(quick) == pytest.approx(makespan, rel=RELATIVE)
    assert {a.certificate.path.removeprefix("classes+") for a in (fair, quick)} == {"columns"}
    assert max(excess(fair), excess(quick)) <= FEASIBLE


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "key", "original"),
    [
        ("max_min_fairness", "max_min_fairness_packed", 0.0),
        ("max_min_fairness_water_filling", "max_min_fairness_water_filling_packed", 0.1851),
    ],
)
def test_pairs_of_mixed_gangs_take_time_and_gpus_of_their_own_jobs(
    reference_directory: Path, name: str, key: str, original: float
) -> None:
    """The original reshapes its rows as if all gangs had one size, and mixes up the rows of different jobs."""
    case = read_case(reference_directory, MIXED_GANGS)
    found = case.result(key)["objective"]

    allocation = registered()[name]().allocate(case.problem())

    assert found["value"] == pytest.approx(original, abs=1e-4)
    assert least_level(allocation) == pytest.approx(found["optimum_by_HiGHS"], rel=RELATIVE)
    assert found["optimum_by_HiGHS"] == pytest.approx(0.2575, abs=1e-4)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.reference
def test_makespan_of_mixed_gangs_is_attainable(reference_directory: Path) -> None:
    """With its rows mixed up the original reports 28,408 s; the true optimum is 53,317 s."""
    case = read_case(reference_directory, MIXED_GANGS)
    found = case.result("min_total_duration_packed")

    allocation = MinMakespan().allocate(case.problem())

    assert found["objective"]["value"] < 0.54 * found["objective"]["optimum_by_HiGHS"]
    assert makespan_s(allocation) == pytest.approx(found["objective"]["optimum_by_HiGHS"], rel=RELATIVE)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.parametrize("name", ["max_min_fairness", "min_makespan", "max_sum_throughput", "finish_time_fairness"])
@pytest.mark.parametrize("seed", range(3))
def test_more_that_may_share_gpus_is_never_worse(name: str, seed: int) -> None:
    packed = distinct(seed, jobs=20, gpus=[1, 2] * 10)
    alone = packed.of(
        packed.job_ids,
        packed.gpu_types,
        packed.gpu_counts,
        packed.rate_alone_steps_per_s,
        gpus=packed.gpus_asked,
        steps_remaining=packed.steps_remaining,
    )
    policy = registered()[name]()

    with_pairs, without = (policy.allocate(problem).certificate.objective for problem in (packed, alone))

    assert with_pairs >= without * (1 - RELATIVE)


@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (9, 1)])
def test_jobs_of_a_kind_are_treated_alike_when_they_share_gpus(sizes: tuple[int, int]) -> None:
    kind = np.repeat([0, 1], sizes).tolist()
    rates, part = np.array([[4.0, 1.0], [3.0, 3.0]]), np.array([[0.6, 0.9], [0.8, 0.7]])
    problem = of_kinds(kind, rates, part, gpus=[1, 1], counts=[2, 1])

    allocation = MaxMinFairness().allocate(problem)

    rates_of_first = allocation.rate_steps_per_s[: sizes[0]]
    assert allocation.certificate.path == "classes+highs"
    assert rates_of_first == pytest.approx(np.full(sizes[0], rates_of_first[0]), rel=1e-9)
