"""Late levels of fillings: shares that are exact to rounding, and gaps that cover what rounding may hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.problems import Mix, draw
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.solve.filling import gaps
from gavelpy.solve.filling.gaps import gaps_of_classes
from gavelpy.solve.filling.rungs import polished
from gavelpy.solve.filling.saturation import Filled, SaturatedLevel
from gavelpy.solve.filling.water_level import Proof
from gavelpy.solve.program import Program, program_of
from gavelpy.solve.solver import QUICK, Model, Optimum, Run, Solver
from tests.policies.many import random_case
from tests.solve.packed import distinct, of_kinds
from tests.solve.problems import random_problem


def program(problem: AllocationProblem) -> Program:
    return program_of(problem, np.ones(problem.job_count), np.zeros(problem.job_count))


def two_levels(late_rate: float) -> tuple[Program, Filled, Floats]:
    """Two jobs, each on its own GPU type; the first type is 1e6 times dearer, the second job's level is late."""
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 0.0], [0.0, 2.0]], gpus=[1, 1])
    whole = program(problem)
    early = SaturatedLevel(0.5, np.array([1.0, 0.0]), Proof(np.array([1e6, 0.0]), np.zeros(2), np.array([1e6, 0.0])))
    late = SaturatedLevel(
        1.0, np.array([1.0, late_rate]), Proof(np.array([0.0, 1.0]), np.zeros(2), np.array([0.0, 1.0]))
    )
    share = np.array([1.0, late_rate])
    filled = Filled(share, np.array([1.0, late_rate]), (early, late), np.array([0, 1]), ("highs", "highs"))
    return whole, filled, share


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "load"), [(512, 0.9), (1024, 0.6)])
def test_filling_of_distinct_jobs_with_ample_gpus_of_eight_types_is_proved(jobs: int, load: float) -> None:
    problem = draw(jobs, 8, Mix.DISTINCT, load=load, seed=1).problem()

    certificate = policy_from("max_min_fairness_water_filling").allocate(problem).certificate

    assert certificate.warning == ""
    assert certificate.gap <= 1e-6


@pytest.mark.parametrize("room", [1e-4, 1e-7, 3e-9])
def test_a_gap_is_no_less_than_the_room_there_is_however_large_the_multiples(room: float) -> None:
    whole, filled, share = two_levels(1.0 - room)

    gaps, _ = gaps_of_classes(whole, filled, share, by_prices=True, blur=0.0)

    assert gaps[0] == 0
    assert room <= gaps[1] <= room * 1.01 + 1e-14


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_multiples_that_are_not_tried_would_prove_no_less(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw(520, 3, Mix.DISTINCT, load=0.6, seed=seed).problem()
    policy = policy_from("max_min_fairness_water_filling")
    found = policy.allocate(problem).certificate

    monkeypatch.setattr(gaps, "_SMALL", 0.0)

    assert found == replace(policy.allocate(replace(problem)).certificate, solve_s=found.solve_s)
    assert "x 1" not in found.path


def test_a_gap_is_at_most_the_way_to_the_best_rate() -> None:
    whole, filled, share = two_levels(0.5)
    nothing = Proof(np.zeros(2), np.zeros(2), np.array([1.0, 1.0]))
    unproved = Filled(share, filled.rate, (SaturatedLevel(1.0, filled.rate, nothing),), np.array([0, 0]), ("highs",))

    gaps, together = gaps_of_classes(whole, unproved, share, by_prices=False, blur=0.0)

    assert gaps.tolist() == [0, 1]
    assert together == 1


ALONE = random_problem(1, jobs=20, job_types=4)
ALL_DIFFERENT = distinct(2, jobs=8)
KINDS = of_kinds([0, 0, 0, 0, 1, 1], np.array([[4.0], [9.0]]), np.full((2, 2), 0.8), gpus=[1, 1], counts=[2])


@pytest.mark.parametrize("problem", [ALONE, ALL_DIFFERENT, KINDS], ids=["alone", "all different", "kinds"])
def test_shares_of_entries_are_found_again_in_those_of_the_problem(problem: AllocationProblem) -> None:
    of = program(problem).whole()
    share = np.random.default_rng(0).random(len(of.entry_type))

    assert of.entry_shares(of.shares(share)) == pytest.approx(share, rel=1e-15)


def test_a_refined_optimum_has_six_more_decimals() -> None:
    """Minimise x + 2 y subject to x + 3 y >= 1: y = 1 / 3, starting from an answer that is off by 1e-8."""
    start, row = np.array([0, 1, 2], dtype=np.int32), np.array([0, 0], dtype=np.int32)
    lower, upper, cost = np.array([1.0]), np.array([np.inf]), np.array([1.0, 2.0])
    model = Model(start, row, np.array([1.0, 3.0]), np.zeros(2), lower, upper)
    run = Run(random_problem(0, jobs=2), Solver(), QUICK, model)
    run.solve(cost, upper)
    off = Optimum(np.array([1e-9, 1 / 3 + 1e-8]), np.zeros(2), np.array([2 / 3 - 1e-8]))

    refined = run.refined(off, cost, lower, upper)

    assert refined.column == pytest.approx([0, 1 / 3], abs=1e-15)
    assert refined.row_dual == pytest.approx([2 / 3], abs=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_polished_shares_give_the_rates_and_fill_what_was_full(seed: int) -> None:
    of, rng = program(random_problem(seed, jobs=30)), np.random.default_rng(seed)
    exact = np.where(rng.random(len(of.entry_type)) < 0.5, rng.random(len(of.entry_type)) / 30, 0.0)
    rate = np.bincount(of.member_class, weights=of.member_rate * exact, minlength=len(of.value))

    better = polished(of, exact * (1 + 1e-9 * rng.uniform(-1, 1, len(exact))), rate)

    found = np.bincount(of.member_class, weights=of.member_rate * better, minlength=len(of.value))
    assert np.abs(found - rate).max() <= 1e-15


@pytest.mark.parametrize(
    ("policy", "number"),
    [
        pytest.param("max_min_fairness_water_filling", 4743, id="shares that are dust to early jobs"),
        pytest.param("max_min_fairness_water_filling", 2231, id="jobs that differ by 1e-9"),
        pytest.param("hierarchical", 244, id="23 levels"),
        pytest.param("max_min_fairness_water_filling", 8135, id="levels that HiGHS calls unknown"),
        pytest.param("hierarchical", 3236, id="levels that need refinement"),
    ],
)
def test_late_levels_that_had_warnings_are_proved(policy: str, number: int) -> None:
    problem, name = random_case(number, policy)

    certificate = policy_from(name).allocate(problem, Solver()).certificate

    assert certificate.warning == ""
    assert certificate.gap <= 1e-6
