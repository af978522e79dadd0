"""Finish-time fairness: the formula by hand, its weights and history, and the original Gavel's optima."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.explanation import marginal_value_sentences
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.policies.finish_time_fairness import FinishTimeFairness, isolated_s
from gavelpy.policies.isolated import Isolated
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MinMaxFinishTime
from tests.policies.golden import GoldenCase, excess, read_case
from tests.policies.test_golden import FEASIBLE, NO_V100_RATE, PACKED, RELATIVE, SINGLE
from tests.solve.problems import random_problem

UNDEFINED = ("12", "28")  # blind: the original fails without a rate on the V100


def worst_ratio(allocation: Allocation, isolated: Floats) -> float:
    p, runs = allocation.problem, allocation.problem.can_run
    finish_s = p.age_s[runs] + p.steps_remaining[runs] / allocation.rate_steps_per_s[runs]
    return float((finish_s / isolated[runs]).max())


def one_gpu(**figures: object) -> AllocationProblem:
    """Two jobs of 100 steps on one V100."""
    given = {"steps_remaining": 100.0, **figures}
    return AllocationProblem.of("ab", ["v100"], [1], [[4.0], [2.0]], **given)  # type: ignore[arg-type]


def test_fresh_jobs_on_one_type_share_it_evenly() -> None:
    allocation = FinishTimeFairness().allocate(one_gpu())

    assert allocation.share[:, 0] == pytest.approx([0.5, 0.5])
    assert allocation.certificate.objective == pytest.approx(1)


def test_isolated_time_is_that_of_the_isolated_policy() -> None:
    problem = random_problem(4, jobs=20)

    rates = Isolated().allocate(problem).rate_steps_per_s

    assert isolated_s(problem) == pytest.approx(problem.steps_remaining / rates)


def test_a_job_that_has_waited_catches_up() -> None:
    golden = (1 + 5**0.5) / 2  # (100 + 25 / x) / 50 = (50 / (1 - x)) / 100  at  x = golden / 2

    allocation = FinishTimeFairness().allocate(one_gpu(age_s=[100.0, 0.0]))

    assert allocation.share[:, 0] == pytest.approx([golden / 2, 1 - golden / 2])
    assert allocation.certificate.objective == pytest.approx(1 / golden**2)


def test_age_made_up_for_by_work_done_is_no_lateness() -> None:
    problem = one_gpu(age_s=[100.0, 100.0], isolated_s=[100.0, 100.0])

    allocation = FinishTimeFairness().allocate(problem)

    assert allocation.share[:, 0] == pytest.approx([0.5, 0.5])
    assert allocation.certificate.objective == pytest.approx(1)


def test_weights_have_no_effect_by_default() -> None:
    allocation = FinishTimeFairness().allocate(one_gpu(weight=[1.0, 2.0]))

    assert allocation.share[:, 0] == pytest.approx([0.5, 0.5])
    assert isolated_s(one_gpu(weight=[1.0, 2.0])) == pytest.approx(isolated_s(one_gpu()))


def test_a_flag_from_the_command_line_turns_weights_on() -> None:
    assert policy_from("finish_time_fairness:weighted=true") == FinishTimeFairness(weighted=True)


def test_a_job_with_twice_the_weight_is_owed_twice_the_rate() -> None:
    allocation = FinishTimeFairness(weighted=True).allocate(one_gpu(weight=[1.0, 2.0]))

    assert allocation.share[:, 0] == pytest.approx([1 / 3, 2 / 3])
    assert allocation.certificate.objective == pytest.approx(1)


def test_only_ratios_of_weights_count() -> None:
    problem = replace(random_problem(3, jobs=20), weight=np.linspace(1.0, 5.0, 20))

    some, thousandths = (
        FinishTimeFairness(weighted=True).allocate(replace(problem, weight=problem.weight * unit))
        for unit in (1.0, 1e-3)
    )

    assert thousandths.certificate.objective == pytest.approx(some.certificate.objective, rel=2e-8)


def test_no_job_is_owed_more_than_it_can_use() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [2], [[4.0], [4.0], [4.0]], weight=[8.0, 1.0, 1.0])

    allocation = FinishTimeFairness(weighted=True).allocate(problem)

    assert isolated_s(problem, weighted=True) == pytest.approx(
        [1 / 4, 5 / 4, 5 / 4]
    )  # its part is 1.6 GPUs, and it uses one
    assert allocation.share[:, 0] == pytest.approx([1, 1 / 2, 1 / 2])


def test_history_is_converted_to_the_part_that_weight_gives() -> None:
    problem = one_gpu(weight=[1.0, 3.0], isolated_s=[30.0, 30.0])

    assert isolated_s(problem, weighted=True) == pytest.approx([(30 + 50) * 2, (30 + 100) * 2 / 3])


def test_jobs_that_can_run_nowhere_have_no_part_in_the_cluster() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [0.0], [2.0]], steps_remaining=100.0)

    allocation = FinishTimeFairness().allocate(problem)

    assert allocation.share[:, 0] == pytest.approx([0.5, 0, 0.5])
    assert allocation.certificate.objective == pytest.approx(1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_job_is_worse_off_than_on_its_own_part(seed: int, weighted: bool) -> None:
    problem = replace(random_problem(seed, jobs=30), weight=np.random.default_rng(seed).uniform(0.1, 5.0, 30))

    allocation = FinishTimeFairness(weighted).allocate(problem)

    assert worst_ratio(allocation, isolated_s(problem, weighted=weighted)) <= 1 + 1e-8


def test_shadow_price_is_the_gain_of_the_worst_job() -> None:
    allocation = FinishTimeFairness().allocate(one_gpu())

    [sentence] = marginal_value_sentences(allocation, FinishTimeFairness.optimises)

    assert sentence == "one more v100 makes the worst job's finish-time ratio up to 50 % lower"


@pytest.mark.reference
@pytest.mark.parametrize(
    ("case_name", "key"),
    [(name, "finish_time_fairness_perf") for name in SINGLE]
    + [(name, "finish_time_fairness") for name in SINGLE if name not in UNDEFINED],
)
def test_ratio_is_the_independent_optimum(reference_directory: Path, case_name: str, key: str) -> None:
    case = read_case(reference_directory, case_name)
    objective = case.result(key)["objective"]
    problem = aged(case, objective["throughput_view"])

    allocation = FinishTimeFairness().allocate(problem)

    assert 1 / allocation.certificate.objective == pytest.approx(objective["optimum_by_HiGHS"], rel=RELATIVE)
    assert worst_ratio(allocation, isolated_s(problem)) == pytest.approx(objective["optimum_by_HiGHS"], rel=RELATIVE)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.reference
@pytest.mark.parametrize("case_name", PACKED)
def test_packed_ratio_is_the_independent_optimum(reference_directory: Path, case_name: str) -> None:
    """The original divides only the packed rates by weights, as if weight times as many steps remained."""
    case = read_case(reference_directory, case_name)
    optimum = case.result("finish_time_fairness_packed")["objective"]["optimum_by_HiGHS"]
    problem, weight = aged(case, "true"), case.problem().weight
    theirs = MinMaxFinishTime(weight * problem.steps_remaining, problem.age_s, isolated_s(problem))

    allocation = solve(problem, theirs)

    assert 1 / allocation.certificate.objective == pytest.approx(optimum, rel=RELATIVE)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.reference
def test_mixed_gangs_packed_are_better_than_where_the_original_confuses_rows(reference_directory: Path) -> None:
    found = read_case(reference_directory, "40").result("finish_time_fairness_packed")["objective"]

    assert found["value"] > 1.01 * found["optimum_by_HiGHS"]  # the optimum is ours, above


@pytest.mark.reference
@pytest.mark.parametrize("case_name", NO_V100_RATE)
def test_blind_has_an_answer_where_the_original_has_none(reference_directory: Path, case_name: str) -> None:
    problem = aged(read_case(reference_directory, case_name), "true").blind_to_type()

    allocation = FinishTimeFairness().allocate(problem)

    assert (allocation.rate_steps_per_s[problem.can_run] > 0).all()
    assert excess(allocation) <= FEASIBLE


def aged(case: GoldenCase, view: str) -> AllocationProblem:
    """The case with the ages of its jobs, and without weights, which the original ignores."""
    problem = case.problem(view)
    ages = [job["time_since_start_s"] for job in case.content["jobs"]]
    return replace(problem, weight=np.ones(problem.job_count), age_s=np.array(ages))
