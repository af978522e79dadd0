"""Minimum cost: throughput per dollar, and as many deadlines as feasible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.policies.min_cost import (
    DeadlineVerdict,
    MinCost,
    feasible_deadline_floors,
    needed_steps_per_s,
    possible_steps_per_s,
)
from tests.policies.brute_force import kept_level, largest_sets
from tests.policies.golden import excess, read_case
from tests.policies.golden_details import detailed_problem, sum_per_dollar
from tests.policies.test_golden import PACKED, SINGLE

WITH_DEADLINES = MinCost(deadlines=True)


def contested(seed: int, *, jobs: int, gpus: int = 2) -> AllocationProblem:
    """Jobs most of which could meet their deadlines alone, but not all together."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(1.0, 10.0, (jobs, 2))
    steps = rng.uniform(100.0, 1000.0, jobs)
    return AllocationProblem.of(
        [f"job-{i}" for i in range(jobs)],
        ["v100", "k80"],
        [gpus, gpus],
        rates,
        gpus=rng.choice([1, 1, 2], jobs),
        steps_remaining=steps,
        deadline_s=steps / rates.max(axis=1) * rng.uniform(1.05, 4.0, jobs),
        price_usd_per_gpu_h=[2.48, 0.45],
    )


def equal_jobs(count: int, *, gpus: int, each_needs: float) -> AllocationProblem:
    """Jobs of one kind, each of which needs this fraction of a GPU."""
    ids = [f"job-{i}" for i in range(count)]
    return AllocationProblem.of(
        ids, ["v100"], [gpus], np.full((count, 1), 2.0), steps_remaining=100.0, deadline_s=50.0 / each_needs
    )


def with_every_pair(problem: AllocationProblem, factor: float) -> AllocationProblem:
    """The problem with all pairs of equal gang size, at this fraction of their rates."""
    gpus, jobs = problem.gpus_asked, range(problem.job_count)
    pairs = np.array([(i, k) for i in jobs for k in jobs if i < k and gpus[i] == gpus[k]])
    return problem.with_pairs(pairs.tolist(), factor * problem.member_rate_steps_per_s[pairs])


@pytest.mark.reference
@pytest.mark.parametrize("case_name", SINGLE)
@pytest.mark.parametrize(("key", "policy"), [("perf", MinCost()), ("perf_SLOs", WITH_DEADLINES)])
def test_throughput_per_dollar_reaches_the_independent_optimum(
    reference_directory: Path, case_name: str, key: str, policy: MinCost
) -> None:
    case = read_case(reference_directory, case_name)
    problem = detailed_problem(case)

    allocation = policy.allocate(problem)

    optimum = case.result(f"max_sum_throughput_normalized_by_cost_{key}")["objective"]["optimum_by_HiGHS"]
    assert sum_per_dollar(problem, allocation.share) == pytest.approx(optimum, rel=1e-6)
    assert allocation.certificate.objective == pytest.approx(optimum, rel=1e-6)
    assert excess(allocation) <= 1e-7


@pytest.mark.reference
@pytest.mark.parametrize("case_name", PACKED)
def test_packed_throughput_per_dollar_reaches_the_independent_optimum(
    reference_directory: Path, case_name: str
) -> None:
    case = read_case(reference_directory, case_name)
    problem = detailed_problem(case)

    allocation = WITH_DEADLINES.allocate(problem)

    optimum = case.result("max_sum_throughput_normalized_by_cost_packed_SLOs")["objective"]["optimum_by_HiGHS"]
    assert sum_per_dollar(problem, allocation.share) == pytest.approx(optimum, rel=1e-6)
    assert excess(allocation) <= 1e-7


@pytest.mark.reference
@pytest.mark.parametrize("case_name", ["14", "18", "22", "24", "26"])
def test_in_a_hurry_most_deadlines_are_kept_where_the_original_drops_all(
    reference_directory: Path, case_name: str
) -> None:
    problem = detailed_problem(read_case(reference_directory, case_name))
    hurried = replace(problem, deadline_s=problem.deadline_s / 6)

    verdicts, allocation = WITH_DEADLINES.verdicts(hurried), WITH_DEADLINES.allocate(hurried)

    kept = np.array([verdict is DeadlineVerdict.KEPT for verdict in verdicts.verdicts])
    assert 0 < verdicts.kept_count == verdicts.most < np.isfinite(hurried.deadline_s).sum()
    assert (allocation.rate_steps_per_s >= needed_steps_per_s(hurried) * (1 - 1e-8))[kept].all()


def test_jobs_go_to_the_gpus_that_are_cheap_for_what_they_do() -> None:
    problem = AllocationProblem.of("a", ["v100", "k80"], [1, 1], [[4.0, 1.0]], price_usd_per_gpu_h=[2.48, 0.45])

    assert MinCost().allocate(problem).share.tolist() == [[0, 1]]


def test_blind_to_types_the_cheapest_gpus_are_taken() -> None:
    problem = AllocationProblem.of("a", ["v100", "k80"], [1, 1], [[9.0, 1.0]], price_usd_per_gpu_h=[2.48, 0.45])

    assert MinCost().allocate(problem.blind_to_type()).share.tolist() == [[0, 1]]


def test_without_any_price_all_gpus_cost_the_same() -> None:
    problem = AllocationProblem.of("a", ["v100", "k80"], [1, 1], [[4.0, 1.0]])

    allocation = MinCost().allocate(problem)

    assert allocation.share.tolist() == [[1, 0]]
    assert allocation.certificate.objective == 4.0


def test_one_type_without_a_price_is_refused() -> None:
    problem = AllocationProblem.of("a", ["v100", "k80"], [1, 1], [[4.0, 1.0]], price_usd_per_gpu_h=[2.48, 0.0])

    with pytest.raises(InvalidInput, match=r"price_usd_per_gpu_h must be > 0 .* got 0 for 'k80'"):
        MinCost().allocate(problem)


def test_a_type_without_gpus_needs_no_price() -> None:
    problem = AllocationProblem.of("a", ["v100", "k80"], [1, 0], [[4.0, 1.0]], price_usd_per_gpu_h=[2.0, 0.0])

    assert MinCost().allocate(problem).certificate.objective == 2.0


def test_deadlines_have_no_effect_by_default() -> None:
    problem = contested(0, jobs=6)
    without = replace(problem, deadline_s=np.full(6, np.inf))

    assert MinCost().allocate(problem).share.tobytes() == MinCost().allocate(without).share.tobytes()
    assert policy_from("min_cost:deadlines=1") == WITH_DEADLINES


def test_every_deadline_has_a_verdict() -> None:
    problem = AllocationProblem.of(
        ["none", "kept", "missed", "nowhere", "slow", "crowded"],
        ["v100"],
        [1],
        [[1.0], [4.0], [4.0], [0.0], [4.0], [4.0]],
        steps_remaining=100.0,
        deadline_s=[np.inf, 30.0, -5.0, 1000.0, 20.0, 30.0],
    )

    verdicts = WITH_DEADLINES.verdicts(problem)

    assert verdicts.by_job()["verdict"].tolist() == ["none", "kept", "missed", "cannot_run", "too_slow", "crowded_out"]
    assert verdicts.of(DeadlineVerdict.CROWDED_OUT) == ("crowded",)
    assert (verdicts.kept_count, verdicts.most) == (1, 1)


def test_promised_rates_stand_in_the_allocation() -> None:
    problem = equal_jobs(3, gpus=1, each_needs=0.4)

    allocation = WITH_DEADLINES.allocate(problem)

    assert allocation.rate_floor_steps_per_s == pytest.approx([0.8, 0.8, 0.0])
    assert allocation.certificate.violation <= 1e-9


def test_deadlines_that_need_every_last_gpu_are_kept() -> None:
    verdicts = WITH_DEADLINES.verdicts(equal_jobs(8, gpus=2, each_needs=0.25))

    assert verdicts.kept_count == 8


@pytest.mark.parametrize(("excess", "kept"), [(1e-10, 4), (1e-7, 3), (5e-7, 3), (1e-5, 3)])
def test_a_set_that_fails_by_a_hair_is_not_called_kept(excess: float, kept: int) -> None:
    problem = equal_jobs(4, gpus=1, each_needs=0.25 * (1 + excess))  # the MILP tolerates a millionth

    verdicts, allocation = WITH_DEADLINES.verdicts(problem), WITH_DEADLINES.allocate(problem)

    assert verdicts.kept_count == verdicts.most == kept
    assert (allocation.rate_steps_per_s >= allocation.rate_floor_steps_per_s * (1 - 1e-9)).all()


def test_of_equal_jobs_the_first_are_kept() -> None:
    verdicts = WITH_DEADLINES.verdicts(equal_jobs(7, gpus=2, each_needs=0.5))

    assert verdicts.of(DeadlineVerdict.KEPT) == ("job-0", "job-1", "job-2", "job-3")
    assert verdicts.most == 4


def test_two_small_deadlines_go_before_a_large_one_that_came_first() -> None:
    problem = replace(equal_jobs(3, gpus=1, each_needs=0.5), deadline_s=np.array([50.0, 100.0, 100.0]))

    assert WITH_DEADLINES.verdicts(problem).of(DeadlineVerdict.KEPT) == ("job-1", "job-2")


def test_a_gang_that_no_type_has_room_for_is_too_slow_and_not_promised_more_than_it_can_have() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [2], [[8.0], [8.0]], gpus=[4, 4], steps_remaining=100.0)
    late, in_time = replace(problem, deadline_s=np.array([20.0, np.inf])), replace(problem, deadline_s=np.full(2, 25.0))

    assert possible_steps_per_s(problem).tolist() == [4.0, 4.0]
    assert WITH_DEADLINES.verdicts(late).verdicts[0] is DeadlineVerdict.TOO_SLOW
    assert WITH_DEADLINES.verdicts(in_time).of(DeadlineVerdict.KEPT) == ("a",)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gpus", [1, 2])
def test_no_set_of_deadlines_is_larger(seed: int, gpus: int) -> None:
    problem = contested(seed, jobs=7, gpus=gpus)

    verdicts = WITH_DEADLINES.verdicts(problem)

    sets = largest_sets(problem, feasible_deadline_floors(problem))
    kept = tuple(int(job) for job in np.flatnonzero([v is DeadlineVerdict.KEPT for v in verdicts.verdicts]))
    assert kept in sets
    assert sum(kept) == min(map(sum, sets))
    assert verdicts.most == len(kept)


@pytest.mark.parametrize("seed", range(4))
def test_no_set_of_deadlines_is_larger_when_jobs_share_gpus(seed: int) -> None:
    problem = with_every_pair(contested(seed, jobs=6, gpus=1), factor=0.7)

    verdicts = WITH_DEADLINES.verdicts(problem)

    sets = largest_sets(problem, feasible_deadline_floors(problem))
    assert verdicts.kept_count == verdicts.most == len(sets[0])


def test_above_the_size_of_exact_search_the_loss_is_bounded() -> None:
    problem = contested(0, jobs=1200, gpus=150)

    verdicts = WITH_DEADLINES.verdicts(problem)

    kept = np.flatnonzero([v is DeadlineVerdict.KEPT for v in verdicts.verdicts])
    assert verdicts.most - 2 <= len(kept) <= verdicts.most < 1200  # at most one per GPU type is split
    assert WITH_DEADLINES.allocate(problem).certificate.violation <= 1e-9


def test_a_hundred_contested_deadlines_are_kept_exactly() -> None:
    problem = contested(1, jobs=100, gpus=12)

    verdicts = WITH_DEADLINES.verdicts(problem)

    kept = np.flatnonzero([v is DeadlineVerdict.KEPT for v in verdicts.verdicts])
    assert verdicts.most == len(kept) < 100
    assert kept_level(problem, feasible_deadline_floors(problem), kept) == pytest.approx(1.0)


def test_same_problem_keeps_the_same_deadlines() -> None:
    problem = contested(3, jobs=40, gpus=5)

    first, again = WITH_DEADLINES.allocate(problem), WITH_DEADLINES.allocate(problem)

    assert first.share.tobytes() == again.share.tobytes()


@pytest.mark.parametrize(("seed", "jobs", "gpus", "packed"), [(7, 12, 2, False), (24, 12, 2, True), (78, 30, 4, True)])
def test_the_search_for_most_deadlines_prints_nothing(
    seed: int, jobs: int, gpus: int, packed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    problem = contested(seed, jobs=jobs, gpus=gpus)

    WITH_DEADLINES.allocate(with_every_pair(problem, factor=0.7) if packed else problem)

    assert tuple(capfd.readouterr()) == ("", "")
