"""FIFO and shortest job first with co-located jobs; isolated, which never co-locates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy, policy_from
from gavelpy.policies.fifo import Fifo
from gavelpy.policies.isolated import Isolated
from gavelpy.policies.shortest_job_first import ShortestJobFirst
from tests.policies.golden import excess, read_case
from tests.policies.golden_details import configuration_shares
from tests.policies.test_golden import PACKED


def queue(
    *steps: float, v100: int = 1, gpus: tuple[int, ...] = (), pairs: dict[tuple[int, int], float]
) -> AllocationProblem:
    """Jobs at 1 step/s on a V100; `pairs` has the fraction of it at which both run co-located."""
    alone = AllocationProblem.of(
        [f"job-{i}" for i in range(len(steps))],
        ["v100"],
        [v100],
        np.ones((len(steps), 1)),
        gpus=gpus or 1,
        steps_remaining=steps,
    )
    return alone.with_pairs(list(pairs), np.repeat(list(pairs.values()), 2).reshape(-1, 2, 1))


def with_three(problem: AllocationProblem, jobs: tuple[int, int, int], part: float) -> AllocationProblem:
    """The problem in which these three may also share one GPU, each at this fraction of its rate."""
    row = problem.configuration_count
    return replace(
        problem,
        demand=np.concatenate([problem.demand, [[1000]]]),
        member_configuration=np.concatenate([problem.member_configuration, [row] * 3]),
        member_job=np.concatenate([problem.member_job, jobs]),
        member_rate_steps_per_s=np.concatenate([problem.member_rate_steps_per_s, np.full((3, 1), part)]),
    )


def groups(policy: Policy, problem: AllocationProblem) -> set[tuple[int, ...]]:
    """The sets of co-located jobs."""
    running = np.flatnonzero(policy.allocate(problem).share.any(axis=1))
    return {problem.configuration_members()[row] for row in running}


@pytest.mark.reference
@pytest.mark.parametrize("case_name", PACKED)
def test_fifo_gives_the_shares_of_the_original_fifo_packed(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = Fifo().allocate(case.problem())

    assert allocation.share.tolist() == configuration_shares(case, "fifo_packed").tolist()
    assert excess(allocation) == 0


def test_a_waiting_job_joins_the_one_with_which_most_is_gained() -> None:
    problem = queue(9, 9, 9, v100=2, pairs={(0, 2): 0.8, (1, 2): 0.9})

    assert groups(Fifo(), problem) == {(0,), (1, 2)}


def test_jobs_do_not_share_for_a_gain_below_the_threshold() -> None:
    problem = queue(9, 9, pairs={(0, 1): 0.75})

    assert groups(Fifo(), problem) == {(0,)}
    assert groups(Fifo(packing_threshold=1.4), problem) == {(0, 1)}


def test_a_job_with_gpus_of_its_own_does_not_share_them() -> None:
    assert groups(Fifo(), queue(9, 9, v100=2, pairs={(0, 1): 1.0})) == {(0,), (1,)}


def test_no_job_joins_a_pair() -> None:
    problem = queue(9, 9, 9, pairs={(0, 1): 0.9, (0, 2): 1.0, (1, 2): 1.0})

    assert groups(Fifo(), problem) == {(0, 1)}


def test_three_share_where_the_problem_allows_it() -> None:
    pair = queue(9, 9, 9, pairs={(0, 1): 0.9})

    assert groups(Fifo(), with_three(pair, (0, 1, 2), 0.8)) == {(0, 1, 2)}
    assert groups(Fifo(), with_three(pair, (0, 1, 2), 0.7)) == {(0, 1)}  # 2.1 is less than 0.5 above 1.8


def test_fifo_blocks_behind_a_job_without_a_partner() -> None:
    problem = queue(9, 9, 9, pairs={(0, 2): 1.0})

    assert groups(Fifo(), problem) == {(0,)}


def test_the_job_that_ran_out_of_gpus_is_the_first_to_join() -> None:
    problem = queue(9, 9, 9, v100=3, gpus=(2, 2, 2), pairs={(0, 1): 0.9, (0, 2): 1.0})

    assert groups(Fifo(), problem) == {(0, 1)}  # the original skips job 1 and packs job 2


def test_shortest_job_first_lets_longer_jobs_past_one_that_finds_no_partner() -> None:
    problem = queue(1, 2, 3, pairs={(0, 2): 1.0})

    assert groups(ShortestJobFirst(), problem) == {(0, 2)}


def test_of_two_that_wait_the_shorter_one_joins() -> None:
    problem = queue(1, 3, 2, pairs={(0, 1): 0.9, (0, 2): 0.8})

    assert groups(ShortestJobFirst(), problem) == {(0, 2)}


def test_a_pair_in_which_one_stands_still_is_no_pair() -> None:
    problem = queue(9, 9, pairs={(0, 1): 1.0})
    stuck = replace(problem, member_rate_steps_per_s=np.array([[1.0], [1.0], [9.0], [0.0]]))

    assert groups(Fifo(), stuck) == {(0,)}


def test_certificate_counts_both_jobs_of_a_pair() -> None:
    assert Fifo().allocate(queue(9, 9, pairs={(0, 1): 0.9})).certificate.objective == 2


def test_isolated_jobs_are_not_co_located() -> None:
    problem = queue(9, 9, pairs={(0, 1): 1.0})

    assert groups(Isolated(), problem) == {(0,), (1,)}


@pytest.mark.parametrize("name", ["fifo", "shortest_job_first"])
def test_threshold_comes_from_the_command_line(name: str) -> None:
    assert policy_from(f"{name}:packing_threshold=1.2").packing_threshold == 1.2
    with pytest.raises(InvalidInput, match="packing_threshold must be finite and >= 1"):
        policy_from(f"{name}:packing_threshold=0.9")
