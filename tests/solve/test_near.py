"""Nearly equal jobs: solved as equal ones, with proofs for the true figures."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.model.configurations import with_size_rows
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_named
from gavelpy.solve import ladder
from gavelpy.solve.ladder import nearly_equal
from gavelpy.solve.near_numbers import merged_numbers
from gavelpy.solve.objective import MaxMin, MaxSum

POLICIES = (
    "max_min_fairness",
    "max_min_fairness_water_filling",
    "hierarchical",
    "finish_time_fairness",
    "min_makespan",
    "max_sum_throughput",
    "nash_welfare",
)


def alike(off: float, *, jobs: int = 60) -> AllocationProblem:
    """Jobs of five kinds; within a kind, rates and steps differ by up to the fraction `off`."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 5, jobs)
    rates, steps = rng.uniform(0.5, 10, (5, 3))[kind], rng.uniform(1e2, 1e3, 5)[kind]
    noise = np.random.default_rng(1)
    return AllocationProblem.of(
        [f"job-{row}" for row in range(jobs)],
        ["a", "b", "c"],
        [jobs // 10, jobs // 5, jobs // 12],
        rates * (1 + off * noise.uniform(-1, 1, rates.shape)),
        steps_remaining=steps * (1 + off * noise.uniform(-1, 1, jobs)),
    )


@pytest.mark.parametrize("off", [1e-12, 1e-10, 1e-9])
@pytest.mark.parametrize("name", POLICIES)
def test_nearly_equal_jobs_are_solved_for_as_classes(name: str, off: float) -> None:
    equal, near = (policy_named(name).allocate(alike(each)) for each in (0.0, off))

    assert near.certificate.path == equal.certificate.path
    assert near.certificate.path.startswith("classes+")
    assert near.certificate.gap <= (1e-6 if " x " in near.certificate.path else 1e-8)  # for fillings, each job's own
    assert near.certificate.violation <= 1e-9


@pytest.mark.parametrize("name", POLICIES)
def test_the_proof_holds_for_the_true_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    near = policy_named(name).allocate(alike(1e-9)).certificate
    monkeypatch.setattr(ladder, "nearly_equal", lambda *_: None)

    true = policy_named(name).allocate(alike(1e-9)).certificate

    assert not true.path.startswith("classes+")
    assert near.objective <= true.bound + 1e-12 * abs(true.bound)
    assert true.objective <= near.bound + 1e-12 * abs(near.bound)


def test_jobs_that_differ_by_more_are_not_taken_for_equal() -> None:
    assert nearly_equal(alike(1e-7), MaxMin(np.ones(60))) is None
    assert nearly_equal(alike(0.0), MaxMin(np.ones(60))) is None


@pytest.mark.parametrize(("off", "merged"), [(1e-10, True), (0.3, False)])
def test_jobs_of_several_sizes_are_equal_if_all_their_rates_are(off: float, merged: bool) -> None:
    single = alike(off)
    several = with_size_rows(single, np.arange(60), np.full(60, 2.0), single.member_rate_steps_per_s * 1.7)

    near = nearly_equal(several, MaxMin(np.ones(60)))

    assert (near is not None) == merged
    if near is not None:
        assert len(np.unique(near.problem.member_rate_steps_per_s, axis=0)) == 10


def test_floors_leave_no_room_for_a_blur() -> None:
    assert nearly_equal(alike(1e-9), MaxSum(np.ones(60), np.full(60, 1e-3))) is None


def test_near_pairs_of_many_numbers_are_merged_wherever_they_are_in_the_order() -> None:
    base = np.random.default_rng(3).permutation(np.arange(1.0, 10_001.0))
    pairs = np.concatenate([base, base * (1 + 5e-10)])

    merged = merged_numbers(pairs)

    assert merged is not None
    assert np.array_equal(merged, np.concatenate([base, base]))
    assert merged_numbers(np.concatenate([base, base * 1.00001])) is None
