"""Gandiva: equal parts, and pairs that stay together if they gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.policies.gandiva import Gandiva
from gavelpy.policies.isolated import Isolated
from tests.policies.golden import excess, read_case
from tests.policies.golden_details import configuration_shares
from tests.policies.queues import random_queue
from tests.solve.problems import allocation_problems


def shared_by_all(problem: AllocationProblem, factor: float) -> AllocationProblem:
    """The problem with all pairs, at this fraction of their rates."""
    jobs = range(problem.job_count)
    pairs = np.array([(i, k) for i in jobs for k in jobs if i < k and problem.gpus_asked[i] == problem.gpus_asked[k]])
    return problem.with_pairs(pairs.tolist(), factor * problem.member_rate_steps_per_s[pairs])


def groups(problem: AllocationProblem, policy: Gandiva) -> set[frozenset[str]]:
    """The sets of co-located jobs."""
    running = np.flatnonzero(policy.allocate(problem).share.any(axis=1))
    members = problem.configuration_members()
    return {frozenset(problem.job_ids[job] for job in members[row]) for row in running}


@pytest.mark.reference
def test_shares_are_the_original_ones_while_everything_fits(reference_directory: Path) -> None:
    case = read_case(reference_directory, "32")

    share = Gandiva().allocate(case.problem()).share

    assert share == pytest.approx(configuration_shares(case, "gandiva"))


@pytest.mark.reference
@pytest.mark.parametrize("case_name", ["34", "36"])
def test_pairs_share_time_as_in_the_original(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    share = Gandiva().allocate(case.problem()).share

    theirs = configuration_shares(case, "gandiva")
    assert np.sort(share, axis=0) == pytest.approx(np.sort(theirs, axis=0))


@pytest.mark.reference
@pytest.mark.parametrize("case_name", ["38", "40"])
def test_pairs_that_stand_still_are_given_up_where_the_original_runs_them(
    reference_directory: Path, case_name: str
) -> None:
    case = read_case(reference_directory, case_name)

    allocation = Gandiva().allocate(case.problem())

    assert allocation.rate_steps_per_s.sum() > 2 * case.result("gandiva")["metrics"]["sum_tput"]
    assert (allocation.rate_steps_per_s > 0).all()
    assert excess(allocation) <= 1e-12


def test_while_there_are_gpus_for_all_it_is_isolation() -> None:
    problem = shared_by_all(random_queue(0, jobs=5, gpu_counts=[3, 2]), factor=0.9)

    assert Gandiva().allocate(problem).share.tobytes() == Isolated().allocate(problem).share.tobytes()


@pytest.mark.parametrize(("factor", "size"), [(0.51, 2), (0.49, 1)])
def test_a_pair_is_kept_when_it_beats_taking_turns(factor: float, size: int) -> None:
    problem = shared_by_all(random_queue(1, jobs=8, gpu_counts=[2, 2]), factor)

    formed = groups(problem, Gandiva())

    assert [len(group) for group in formed] == [size] * (8 // size)


def test_a_job_that_found_no_partner_runs_alone_for_an_equal_part() -> None:
    problem = shared_by_all(random_queue(2, jobs=3, gpu_counts=[2]), factor=0.8)

    share = Gandiva().allocate(problem).share

    assert sorted(map(len, groups(problem, Gandiva()))) == [1, 2]
    assert share[share > 0].tolist() == [1.0, 1.0]


def test_gangs_share_with_gangs_of_their_size_only() -> None:
    problem = shared_by_all(random_queue(3, jobs=4, gpu_counts=[4], gpus=[1, 2, 1, 2]), factor=0.8)

    assert groups(problem, Gandiva()) == {frozenset({"job-0", "job-2"}), frozenset({"job-1", "job-3"})}


def test_another_seed_draws_other_pairs() -> None:
    problem = shared_by_all(random_queue(4, jobs=12, gpu_counts=[3, 3]), factor=0.8)

    assert len({frozenset(groups(problem, Gandiva(seed))) for seed in range(5)}) == 5


def test_pairs_stay_together_when_another_pair_leaves() -> None:
    problem = shared_by_all(random_queue(5, jobs=12, gpu_counts=[2, 2]), factor=0.8)
    before = groups(problem, Gandiva())
    gone = next(group for group in before if "job-0" in group)

    stayed = [row for row, job in enumerate(problem.job_ids) if job not in gone]
    after = groups(shared_by_all(random_queue(5, jobs=12, gpu_counts=[2, 2], only=stayed), factor=0.8), Gandiva())

    assert after == before - {gone}


@given(problem=allocation_problems())
def test_every_job_that_can_run_is_in_one_group(problem: AllocationProblem) -> None:
    allocation = Gandiva().allocate(problem)

    configurations = allocation.share[problem.member_configuration].any(axis=1)
    assert np.bincount(problem.member_job[configurations], minlength=problem.job_count).tolist() == [
        int(runs) for runs in problem.can_run
    ]
    assert excess(allocation) <= 1e-9


def test_seed_comes_from_the_command_line() -> None:
    assert policy_from("gandiva:seed=7") == Gandiva(seed=7)


@pytest.mark.parametrize("seed", [-1, 0.5, float("inf"), 2.0**60])
def test_seed_that_is_no_whole_number_is_refused(seed: float) -> None:
    with pytest.raises(InvalidInput, match="seed must be a whole number"):
        Gandiva(seed=seed)
