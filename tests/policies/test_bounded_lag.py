"""Bounded lag: an LP oracle, floors that are always feasible, and the bounds of docs/bounded-lag.md in simulations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.bounded_lag import BoundedLag
from gavelpy.policies.finish_time_fairness import isolated_s
from gavelpy.policies.guarantee_checks import check_sharing_incentive, peers
from gavelpy.policies.isolated import Isolated
from tests.solve.oracle import dense

TOLERANCE = 1e-7


def random_problem(seed: int) -> AllocationProblem:
    """Up to 9 jobs with gangs, weights, histories and GPUs that some of them hold, on up to 3 types."""
    rng = np.random.default_rng(seed)
    J, T = int(rng.integers(1, 10)), int(rng.integers(1, 4))
    rates = np.where(rng.random((J, T)) < 0.1, 0.0, rng.uniform(1.0, 10.0, (J, T)))
    total = rng.uniform(1e2, 1e5, J)
    held = np.where(rng.random(J) < 0.4, rng.integers(0, T, J), -1)
    return AllocationProblem.of(
        [f"j{row}" for row in range(J)],
        [f"t{kind}" for kind in range(T)],
        rng.integers(1, 6, T),
        rates,
        gpus=rng.choice([1, 1, 2, 4], J),
        weight=rng.choice([1.0, 1.0, 3.0], J),
        steps_remaining=total * rng.uniform(0.05, 1.0, J),
        steps_total=total,
        age_s=rng.uniform(0.0, 4e4, J),
        isolated_s=rng.uniform(0.0, 1e4, J),
        gpu_type_held=held,
        gpus_held=0.0,
        restart_s=rng.choice([0.0, 60.0, 600.0], J),
    )


def best_sum_by_hand(problem: AllocationProblem, policy: BoundedLag) -> float:
    """The optimum by scipy's LP over a dense matrix, from the formula of the docstring; infinite if infeasible."""
    J, floor = problem.job_count, floors_by_hand(problem, policy)
    best = np.where(problem.gpu_counts > 0, problem.member_rate_steps_per_s, 0.0).max(axis=1)
    gain = []
    for j in range(J):
        for t in np.flatnonzero(problem.fits[j]).tolist():
            start_s = problem.restart_s[j] or policy.start_s
            rest_s = problem.steps_remaining[j] / best[j] if best[j] > 0 else 1.0
            stays = problem.gpu_type_held[j] == t or floor[j] > 0
            factor = 1.0 if stays else rest_s / (rest_s + start_s)
            rate = problem.member_rate_steps_per_s[j, t]
            gain.append(problem.weight[j] * factor * rate / problem.steps_remaining[j])
    rates, rows, limits = dense(problem)
    found = linprog(-np.array(gain), np.vstack([rows, -rates]), np.concatenate([limits, -floor]), method="highs")
    return float(-found.fun) if found.success else np.inf


def floors_by_hand(problem: AllocationProblem, policy: BoundedLag) -> Floats:
    """f_j i_j, with i_j from the policy `isolated`."""
    part = Isolated().allocate(problem).rate_steps_per_s
    floors = np.zeros(problem.job_count)
    for j in np.flatnonzero(part > 0).tolist():
        total_s = problem.isolated_s[j] + problem.steps_remaining[j] / part[j]
        lag_s, most_s = problem.age_s[j] - problem.isolated_s[j], policy.lag * total_s
        width_s = policy.ramp * most_s
        floors[j] = part[j] * (
            float(lag_s >= most_s) if width_s == 0 else np.clip((lag_s - most_s) / width_s + 1, 0, 1)
        )
    return floors


@pytest.mark.parametrize("lag", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(40))
def test_answer_is_the_optimum_of_the_formula_and_keeps_its_floors(seed: int, lag: float) -> None:
    problem, policy = random_problem(seed), BoundedLag(lag=lag, start_s=30.0)

    answer = policy.allocate(problem)

    expected = best_sum_by_hand(problem, policy)
    assert np.isfinite(expected), "equal parts satisfy all floors"
    assert answer.certificate.objective == pytest.approx(expected, rel=TOLERANCE, abs=1e-15)
    assert (answer.rate_steps_per_s >= floors_by_hand(problem, policy) * (1 - TOLERANCE)).all()


@pytest.mark.parametrize("seed", range(20))
def test_without_lag_no_job_is_slower_than_on_its_part(seed: int) -> None:
    check_sharing_incentive(BoundedLag(lag=0.0), peers(seed))


def test_floors_that_cannot_all_be_kept_are_kept_in_equal_parts() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [2], [[4.0], [4.0]], gpus=2, age_s=1e6)
    larger_than_requested = replace(problem, gpus_asked=np.full(2, 0.5))  # its only configuration has two GPUs

    answer = BoundedLag(lag=0.0).allocate(larger_than_requested)

    assert answer.rate_steps_per_s.tolist() == pytest.approx([2.0, 2.0])


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.mark.parametrize(
    "lag", [pytest.param(0.0, marks=pytest.mark.slow), 1.0, pytest.param(2.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_finish_within_the_bound_when_shares_are_delivered_exactly(seed: int, lag: float) -> None:
    finished = fluid(seed, lag, arrivals=False)

    assert (finished[:, 0] <= (1.0 + lag) * finished[:, 1] + 2 * STEP_S).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_lag_keeps_the_bound_of_the_longest_equal_part_when_jobs_arrive(seed: int) -> None:
    finished = fluid(seed, 0.5, arrivals=True)

    assert (finished[:, 0] <= finished[:, 1] + 0.5 * finished[:, 2] + 2 * STEP_S).all()


STEP_S = 10.0


def fluid(seed: int, lag: float, *, arrivals: bool) -> Floats:
    """Age at the end, h at the end, and the largest T of 8 jobs on 2 types, in small steps of time, (J, 3).

    Without arrivals the number of jobs that share is constant: jobs that finish stay, with work that never ends.
    """
    rng = np.random.default_rng(seed)
    J, rates, steps = 8, rng.uniform(1.0, 6.0, (8, 2)), rng.uniform(200.0, 1600.0, 8)
    arrival_s = np.sort(rng.uniform(0.0, 600.0, J)) if arrivals else np.zeros(J)
    left, parted_s, longest_s, found = steps.copy(), np.zeros(J), np.zeros(J), np.full((J, 3), np.nan)
    now_s, policy = 0.0, BoundedLag(lag=lag)
    while np.isnan(found[:, 0]).any():
        here = np.flatnonzero((arrival_s <= now_s) & (np.isnan(found[:, 0]) | (not arrivals)))
        if len(here):
            problem = AllocationProblem.of(
                [str(row) for row in here], ["a", "b"], [1, 2], rates[here],
                steps_remaining=np.maximum(left[here], 1.0), age_s=now_s - arrival_s[here], isolated_s=parted_s[here],
            )  # fmt: skip
            part = Isolated().allocate(problem).rate_steps_per_s
            rate = policy.allocate(problem).rate_steps_per_s
            longest_s[here] = np.maximum(longest_s[here], isolated_s(problem))
            left[here] -= rate * STEP_S
            parted_s[here] += rate / part * STEP_S
        now_s += STEP_S
        over = here[(left[here] <= 0) & np.isnan(found[here, 0])]
        found[over] = np.column_stack([now_s - arrival_s[over], parted_s[over], longest_s[over]])
    return found


def test_running_job_stays_unless_the_other_is_shorter_by_more_than_its_start() -> None:
    held = AllocationProblem.of(
        "ab", ["v100"], [1], [[1.0], [1.0]], steps_remaining=[100.0, 80.0], gpu_type_held=[0, -1]
    )

    stays = BoundedLag(start_s=30.0).allocate(held)
    moves = BoundedLag(start_s=10.0).allocate(held)

    assert stays.share.round(9).tolist() == [[1.0], [0.0]]
    assert moves.share.round(9).tolist() == [[0.0], [1.0]]


def test_gpus_are_exchanged_only_when_a_job_arrives_or_ends() -> None:
    """On one type, without floors: the docs' bound on moves."""
    rng = np.random.default_rng(5)
    left, held, running = rng.uniform(50.0, 500.0, 12), np.full(12, -1), []

    for _ in range(40):
        problem = AllocationProblem.of(
            [str(row) for row in range(12)], ["a"], [4], np.ones((12, 1)), steps_remaining=left, gpu_type_held=held
        )
        chosen = BoundedLag(lag=1e6, start_s=20.0).allocate(problem).share[:, 0] > 0.5
        running.append(chosen.tolist())
        held, left = np.where(chosen, 0, -1), left - chosen * 1.0  # no job ends

    assert running.count(running[0]) == 40


@pytest.mark.parametrize("jobs", [4, 8, 32])
def test_no_order_of_rounds_keeps_all_jobs_within_a_round_of_what_they_are_owed(jobs: int) -> None:
    """The counterexample of the docs: each round, the jobs that were never served share the GPU."""
    owed = np.zeros(jobs)
    unserved = list(range(jobs))

    while len(unserved) > 1:
        owed[unserved] += 1.0 / len(unserved)
        served = int(np.argmax(owed))
        owed[served] -= 1.0
        unserved.remove(served)  # whichever job a mechanism serves, all others are treated alike

    harmonic = sum(1.0 / number for number in range(2, jobs + 1))
    assert owed[unserved[0]] == pytest.approx(harmonic)
    assert harmonic > 1.0


@pytest.mark.parametrize("seed", range(20))
def test_serving_the_largest_lag_first_keeps_the_harmonic_bound(seed: int) -> None:
    rng, owed = np.random.default_rng(seed), np.zeros(10)
    bound = sum(1.0 / number for number in range(2, 11))
    largest = []

    for _ in range(500):
        owed += rng.dirichlet(np.full(10, rng.choice([0.05, 0.3, 5.0])))
        owed[int(np.argmax(owed))] -= 1.0
        largest.append(float(owed.max()))

    assert max(largest) <= bound + 1e-9


@pytest.mark.parametrize(
    ("parameters", "named"), [({"lag": -1.0}, "lag"), ({"ramp": 2.0}, "ramp"), ({"start_s": -1.0}, "start_s")]
)
def test_parameters_are_checked(parameters: dict[str, float], named: str) -> None:
    with pytest.raises(InvalidInput, match=f"{named} must be"):
        BoundedLag(**parameters)
