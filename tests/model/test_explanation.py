"""Explanations of the limit of each job, on small allocations."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.explanation import Explanation, Limit, explanation, marginal_value_sentences
from gavelpy.model.problem import AllocationProblem

PROOF = Certificate(objective=0.5, bound=0.5, gap=0.0, violation=0.0, path="highs", solve_s=0.25)
RULE = [np.nan, np.nan]


def make_problem(**fields: Any) -> AllocationProblem:
    """Two jobs, faster on the one V100 than on the one K80."""
    return AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0]], **fields)


def explained(problem: AllocationProblem, share: Any, prices: Any = (0.25, 0.0), floors: Any = ()) -> Explanation:
    return explanation(Allocation(problem, share, prices, PROOF, floors))


def held_by(found: Explanation, job: int) -> tuple[Limit, list[str]]:
    types = found.allocation.problem.gpu_types
    return Limit(found.limit[job]), [name for name, meant in zip(types, found.gpu_types[job], strict=True) if meant]


def test_a_job_on_its_fastest_gpus_all_the_time_is_held_by_its_speed() -> None:
    found = explained(make_problem(), [[1.0, 0.0], [0.0, 1.0]])

    assert held_by(found, 0) == (Limit.SPEED, ["v100"])
    assert found.text(0) == "runs all the time on v100, as fast as it can"


def test_a_job_on_equally_fast_types_is_held_by_its_speed() -> None:
    problem = AllocationProblem.of(["a"], ["v100", "p100"], [1, 1], [[4.0, 4.0]])

    found = explained(problem, [[0.5, 0.5]])

    assert held_by(found, 0) == (Limit.SPEED, ["v100", "p100"])
    assert found.text(0) == "runs all the time on v100 and p100, as fast as it can"


def test_a_job_that_mixes_types_is_held_by_its_time_and_the_full_faster_one() -> None:
    found = explained(make_problem(), [[0.5, 0.5], [0.5, 0.5]])

    assert held_by(found, 0) == (Limit.TIME, ["v100"])
    assert found.text(0) == "has 100 % of its time, but not all at full speed: v100 (shadow price 0.25) is full"


def test_a_job_all_the_time_on_its_second_best_type_is_held_by_its_time() -> None:
    found = explained(make_problem(), [[1.0, 0.0], [0.0, 1.0]])

    assert held_by(found, 1) == (Limit.TIME, ["v100"])


def test_a_job_with_time_left_is_held_by_the_types_that_are_full() -> None:
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0], [5.0, 0.0]])

    found = explained(problem, [[0.5, 0.0], [0.0, 1.0], [0.5, 0.0]])

    assert held_by(found, 0) == (Limit.CAPACITY, ["v100", "k80"])
    assert held_by(found, 2) == (Limit.CAPACITY, ["v100"])  # it cannot use a K80
    assert found.text(0) == "has 50 % of its time: v100 (shadow price 0.25) and k80 are full"


def test_a_job_without_a_share_waits_for_gpus_that_are_full() -> None:
    found = explained(AllocationProblem.of("ab", ["v100"], [1], [[4.0], [3.0]]), [[1.0], [0.0]], [0.5])

    assert held_by(found, 1) == (Limit.CAPACITY, ["v100"])
    assert found.text(1) == "has no share: v100 (shadow price 0.5) is full"


def test_a_job_at_the_rate_it_was_promised_is_held_by_its_floor() -> None:
    found = explained(make_problem(), [[0.5, 0.0], [0.5, 0.5]], floors=[2.0, 1.0])

    assert held_by(found, 0) == (Limit.FLOOR, [])
    assert found.text(0) == "has its rate floor of 2 steps/s"
    assert held_by(found, 1) == (Limit.TIME, ["v100"])  # it has more than its floor


def test_idle_gpus_are_the_policys_choice() -> None:
    share = [[0.5, 0.0], [0.5, 0.25]]

    optimum, rule = explained(make_problem(), share), explained(make_problem(), share, prices=RULE)

    assert held_by(optimum, 0) == (Limit.POLICY, ["k80"])
    assert optimum.text(0) == "has 50 % of its time; more would not raise the objective, although 0.75 k80 is idle"
    assert rule.text(0) == "has 50 % of its time; the policy gives no more, although 0.75 k80 is idle"


def test_a_faster_type_that_is_idle_is_the_policys_choice_too() -> None:
    found = explained(make_problem(), [[0.0, 1.0], [0.0, 0.0]], prices=RULE)

    assert held_by(found, 0) == (Limit.POLICY, ["v100"])


def test_text_of_a_job_that_cannot_run() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 0], [[4.0, 1.0], [0.0, 0.0]])

    found = explained(problem, [[1.0, 0.0], [0.0, 0.0]])

    assert held_by(found, 1) == (Limit.CANNOT_RUN, [])
    assert found.text(1) == "runs on none of the cluster's GPU types"


def test_text_of_a_job_on_types_without_gpus() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 0], [[4.0, 1.0], [0.0, 2.0]])

    found = explained(problem, [[1.0, 0.0], [0.0, 0.0]])

    assert held_by(found, 1) == (Limit.CANNOT_RUN, [])
    assert found.text(1) == "needs 1 GPUs of one type; the types on which it runs have at most 0"


def test_a_gang_larger_than_any_type_is_oversized_whatever_its_share() -> None:
    found = explained(make_problem(gpus=[1, 8]), [[1.0, 0.0], [0.0, 0.125]])

    assert held_by(found, 1) == (Limit.OVERSIZED, [])
    assert found.text(1) == "needs 8 GPUs of one type; the types on which it runs have at most 1"


def test_a_type_too_small_for_a_gang_is_none_it_waits_for() -> None:
    problem = AllocationProblem.of(["gang"], ["v100", "k80"], [1, 2], [[9.0, 2.0]], gpus=2)

    found = explained(problem, [[0.0, 1.0]])

    assert held_by(found, 0) == (Limit.SPEED, ["k80"])


def test_a_share_of_a_type_too_small_counts_as_the_papers_count_it() -> None:
    problem = AllocationProblem.of(["gang"], ["v100", "k80"], [1, 2], [[9.0, 2.0]], gpus=2)

    found = explained(problem, [[0.5, 0.5]])

    assert held_by(found, 0) == (Limit.TIME, ["v100"])


def test_a_job_that_shares_its_gpu_runs_below_its_speed() -> None:
    problem = make_problem().with_pairs([(0, 1)], [[[3.0, 0.5], [2.0, 1.0]]])

    found = explained(problem, [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])

    assert held_by(found, 0) == (Limit.TIME, ["v100"])
    assert held_by(found, 1) == (Limit.TIME, ["v100"])  # alone on the K80 it is as fast as in the pair


def test_a_job_in_a_pair_with_time_left_waits_for_gpus() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [3.0], [2.0]]).with_pairs([(0, 1)], [[[3.0], [2.0]]])

    found = explained(problem, [[0.0], [0.0], [0.5], [0.5]], [0.5])

    assert [held_by(found, job) for job in range(3)] == [(Limit.CAPACITY, ["v100"])] * 3


def test_json_has_an_entry_for_each_job() -> None:
    found = explained(make_problem(), [[1.0, 0.0], [0.0, 1.0]])

    told = json.loads(json.dumps(found.to_json(), allow_nan=False))

    assert told == {
        "a": {"held_by": "speed", "gpu_types": ["v100"], "text": found.text(0)},
        "b": {"held_by": "time", "gpu_types": ["v100"], "text": found.text(1)},
    }


def test_no_jobs_need_no_explanation() -> None:
    found = explained(AllocationProblem.of([], ["v100"], [1], np.zeros((0, 1))), np.zeros((0, 1)), [0.0])

    assert found.to_json() == {}


@pytest.mark.parametrize("row", [-1, 2, 0.0, "a", True, None])
def test_a_row_that_is_none_is_refused(row: Any) -> None:
    found = explained(make_problem(), [[1.0, 0.0], [0.0, 1.0]])

    with pytest.raises(InvalidInput, match=r"job must be a row in \[0, 2\), got"):
        found.text(row)


@pytest.mark.parametrize("floors", [[1.0], [1.0, 1.0, 1.0], [[1.0, 1.0]]])
def test_floors_of_other_jobs_are_refused(floors: Any) -> None:
    with pytest.raises(InvalidInput, match=r"rate_floor_steps_per_s must have shape \(2,\)"):
        explained(make_problem(), [[1.0, 0.0], [0.0, 1.0]], floors=floors)


def test_a_hundred_thousand_jobs_are_explained_in_a_moment() -> None:
    rng = np.random.default_rng(0)
    count, types = 100_000, 3
    problem = AllocationProblem.of(
        [str(row) for row in range(count)], ["a", "b", "c"], [30_000] * types, rng.uniform(1, 9, (count, types))
    )
    allocation = Allocation(problem, np.full((count, types), 0.3), np.ones(types), PROOF)
    started_s = time.process_time()

    found = explanation(allocation)

    assert time.process_time() - started_s < 1.0  # about 0.1 s; row by row it would take seconds
    assert (found.limit == Limit.CAPACITY).all()


def with_cores(cores: list[float], demand: list[float], share: Any) -> Explanation:
    """Both jobs run on two V100s, and one more core is worth 0.25."""
    problem = AllocationProblem.of(
        ["a", "b"], ["v100"], [2], [[4.0], [3.0]], resources={"cpu": cores}, demand={"cpu": demand}
    )
    return explanation(Allocation(problem, share, [0.0], PROOF, other_prices=[[0.25]]))


def test_a_job_that_waits_for_cores_names_the_resource_that_is_full() -> None:
    found = with_cores([8.0], [6.0, 4.0], [[2 / 3], [1.0]])

    assert held_by(found, 0) == (Limit.CAPACITY, ["v100"])
    assert found.text(0) == "has 66.7 % of its time: cpu of v100 (shadow price 0.25) is full"
    assert found.text(1) == "runs all the time on v100, as fast as it can"


def test_a_job_that_needs_more_cores_than_a_type_has_names_them() -> None:
    found = with_cores([8.0], [16.0, 4.0], [[0.0], [1.0]])

    assert found.limit[0] == Limit.OVERSIZED
    assert found.text(0) == "needs 16 of cpu; the types on which it runs have at most 8"


def test_sentences_name_each_resource() -> None:
    sentences = marginal_value_sentences(with_cores([8.0], [6.0, 4.0], [[2 / 3], [1.0]]).allocation)

    assert sentences == [
        "one more v100 does not raise the objective",
        "one more cpu of v100 raises the objective by up to 50 %",
    ]
