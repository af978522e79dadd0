"""Several resources: enforced in every row, priced by row, and left out while solving where they limit no job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import policy_named
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.max_sum_throughput import MaxSumThroughput
from gavelpy.solve.ladder import groups_of_types
from gavelpy.solve.resources import ample_resources


def make_problem(cpus: object = 8, demand: object = 16, **fields: object) -> AllocationProblem:
    """Two jobs of one GPU each on two V100s."""
    given = {"resources": {"cpu": cpus}, "demand": {"cpu": demand}} | fields
    return AllocationProblem.of(["a", "b"], ["v100"], [2], [[4.0], [4.0]], **given)


def test_two_jobs_of_16_cores_share_8() -> None:
    """Before there were resources next to GPUs, both had shares of 1.0, with a violation of 0.0."""
    allocation = MaxMinFairness().allocate(make_problem())

    assert allocation.share.round(9).tolist() == [[0.25], [0.25]]
    assert allocation.certificate.violation <= 1e-9
    assert allocation.certificate.gap <= 1e-8


def test_scarce_resource_has_the_price_and_ample_gpus_have_none() -> None:
    allocation = MaxSumThroughput().allocate(make_problem())

    assert allocation.resource_prices.round(9).tolist() == [[0.0, 0.25]]  # steps/s of one more core: 4 / 16
    assert allocation.shadow_prices.tolist() == [0.0]


def test_price_is_what_one_more_core_gains() -> None:
    before, after = (MaxSumThroughput().allocate(make_problem(cpus)) for cpus in (8, 9))

    gained = after.certificate.objective - before.certificate.objective
    assert gained == pytest.approx(before.resource_prices[0, 1])


def test_resource_that_limits_no_job_is_left_out() -> None:
    limited = make_problem([3], [1, 2])  # both at once need 3
    behind = make_problem([8], [4, 4])  # 4 cores for each GPU, as the nodes have
    scarce = make_problem([7], [4, 4])

    assert ample_resources(limited) == [1]
    assert ample_resources(behind) == [1]
    assert ample_resources(scarce) == []


def test_problem_with_ample_resources_has_the_answer_without_them() -> None:
    rng = np.random.default_rng(0)
    bare = AllocationProblem.of([f"j{i}" for i in range(40)], "vpk", [4, 5, 6], rng.uniform(1, 9, (40, 3)))
    with_cpus = replace(
        bare,
        resources=("gpu", "cpu"),
        capacity=np.column_stack([bare.capacity, 8 * bare.capacity]),
        demand=np.column_stack([bare.demand, 7 * bare.demand]),
    )

    expected, got = MaxMinFairness().allocate(bare), MaxMinFairness().allocate(with_cpus)

    assert got.share.tobytes() == expected.share.tobytes()
    assert got.resource_prices.tolist() == [[price, 0.0] for price in expected.shadow_prices.tolist()]
    assert got.problem is with_cpus


def test_violation_counts_resources_that_were_left_out() -> None:
    allocation = MaxMinFairness().allocate(make_problem(24, 8))

    tight = replace(allocation.problem, capacity=np.array([[2000, 8000]]))
    used = tight.used(allocation.share)

    assert used.tolist() == [2.0, 16.0]
    assert allocation.certificate.violation == 0.0


def test_types_with_equal_rates_and_other_cores_per_gpu_are_not_one_type() -> None:
    def groups(cpus: list[int]) -> list[int]:
        problem = AllocationProblem.of(
            ["a"], ["x", "y"], [2, 4], [[3.0, 3.0]], resources={"cpu": cpus}, demand={"cpu": 5}
        )
        return groups_of_types(problem, np.zeros(0)).tolist()

    assert groups([8, 16]) == [0, 0]
    assert groups([8, 12]) == [0, 1]


def test_first_in_queue_waits_for_cores_and_blocks_the_others() -> None:
    problem = make_problem(24, [20, 20])

    blocked = policy_named("fifo").allocate(make_problem(24, [20, 4])).share
    waits = policy_named("fifo").allocate(problem).share

    assert blocked.tolist() == [[1.0], [1.0]]
    assert waits.tolist() == [[1.0], [0.0]]


def test_queue_takes_the_fastest_size_that_is_possible_now() -> None:
    problem = AllocationProblem.of(["a", "b"], ["v100"], [4], [[4.0], [4.0]]).with_sizes(
        {job: [Size(2, efficiency=0.9), Size(4, efficiency=0.2)] for job in "ab"}
    )

    share = policy_named("shortest_job_first").allocate(problem).share

    assert share[:, 0].tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]


def test_isolated_job_has_an_nth_of_every_resource() -> None:
    share = policy_named("isolated").allocate(make_problem(16, [16, 2])).share

    assert share.tolist() == [[0.5], [1.0]]


def test_job_with_several_sizes_is_owed_no_more_than_without_them() -> None:
    """Levels are relative to the GPUs that a job requested, so that no job gains by listing sizes."""
    bare = AllocationProblem.of(["a", "b"], ["v100"], [4], [[4.0], [4.0]])
    allocation = MaxMinFairness().allocate(bare.with_sizes({"a": [Size(4, efficiency=0.5)]}))

    rates: Floats = allocation.rate_steps_per_s
    assert rates[1] == pytest.approx(4.0)  # it runs all the time
    assert rates[0] == pytest.approx(4.0 + (8.0 - 4.0) * 2 / 3)  # three GPUs are left: two more for a mix of 1 and 4
