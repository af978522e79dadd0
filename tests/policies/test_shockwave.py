"""Shockwave's plans against all schedules, its forecasts against counts of epochs, and its answers over time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.job_phases import JobPhase
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies import shockwave, window_plans
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.phase_forecasts import forecast
from gavelpy.policies.shockwave import Shockwave
from gavelpy.policies.window_plans import GAP, WindowProblem, best_numbers, rounds_of
from gavelpy.simulator.compare import compare

FEW = 20
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]


def window(seed: int, *, gangs: bool, jobs: int = 3, rounds: int = 3) -> WindowProblem:
    """Jobs on one type; remaining times and whole times differ, as they do after phases."""
    rng = np.random.default_rng(seed)
    whole, done = rng.uniform(2.0, 12.0, jobs), rng.uniform(0.0, 0.9, jobs) * (rng.random(jobs) < 0.7)
    return WindowProblem(
        rounds=rounds, job=np.arange(jobs), gpu_type=np.zeros(jobs, dtype=np.int64), speed=np.ones(jobs),
        gpus=rng.choice([1.0, 2.0], jobs) if gangs else np.ones(jobs), counts=np.array([2.0]), done=done,
        whole=whole, remaining=(1 - done) * whole * rng.uniform(0.5, 1.5, jobs),
        priority=rng.choice([1.0, 5.0, 80.0], jobs), least=np.zeros(jobs),
        longest_weight=float(rng.choice([0.0, 0.01, 1.0])),
    )  # fmt: skip


def value_of(problem: WindowProblem, schedule: np.ndarray) -> float:
    """The objective of a schedule (J, N) of 0 and 1, with plain loops; minus infinity if it is not feasible."""
    bases = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    if any(schedule[:, t] @ problem.gpus > problem.counts[0] for t in range(problem.rounds)):
        return -math.inf
    total, longest = 0.0, 0.0
    for j in range(len(problem.gpus)):
        q = min(float(schedule[j].sum()), (1 - problem.done[j]) * problem.whole[j])
        part = min(problem.done[j] + q / problem.whole[j], 1.0)
        k = min(int(part / 0.2), 4)
        low, high = (math.log(max(base, 1e-6)) for base in bases[k : k + 2])
        total += problem.priority[j] * (low + (part - bases[k]) / 0.2 * (high - low))
        longest = max(longest, problem.remaining[j] - q)
        if q < problem.least[j] - 1e-9:
            return -math.inf
    return total / (len(problem.gpus) * problem.rounds) - problem.longest_weight * longest


def best_of_all(problem: WindowProblem) -> float:
    J, N = len(problem.gpus), problem.rounds
    every = itertools.product((0, 1), repeat=J * N)
    return max(value_of(problem, np.array(bits).reshape(J, N)) for bits in every)


def planned(problem: WindowProblem) -> tuple[float, float]:
    """The value of the plan by the definition, and the bound."""
    numbers = best_numbers(problem)
    assert numbers is not None
    types = rounds_of(problem, numbers.number, np.full(len(problem.gpus), -1))
    return value_of(problem, (types >= 0).astype(int)), numbers.bound


@pytest.mark.parametrize("seed", SEEDS)
def test_plan_of_single_gpus_is_the_best_of_all_schedules(seed: int) -> None:
    problem = window(seed, gangs=False)
    value, bound = planned(problem)
    best = best_of_all(problem)

    assert best - GAP * abs(best) - 1e-9 <= value <= best + 1e-9
    assert bound >= best - 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_plan_of_gangs_is_feasible_and_the_bound_holds(seed: int) -> None:
    problem = window(seed, gangs=True)
    value, bound = planned(problem)

    assert math.isfinite(value)
    assert value <= best_of_all(problem) + 1e-9
    assert bound >= best_of_all(problem) - 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_a_program_of_very_many_places_is_searched_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = window(seed, gangs=True, jobs=40, rounds=20)
    monkeypatch.setattr(window_plans, "NODES_OF_PLACES", len(problem.job) - 1)  # fewer than places

    found = best_numbers(problem)

    assert found is not None
    assert 0 < found.number @ problem.gpus <= problem.counts[0] * problem.rounds


def test_least_progress_is_kept_or_no_plan_is_found() -> None:
    problem = replace(window(3, gangs=False), least=np.array([3.0, 0.0, 0.0]), done=np.zeros(3), whole=np.full(3, 9.0))
    numbers = best_numbers(problem)

    assert numbers is not None
    assert numbers.number[0] == 3
    assert best_numbers(replace(problem, least=np.full(3, 2.5))) is None  # 9 rounds, of 6


def test_two_types_count_by_their_speed() -> None:
    """A job at a third of the speed on the second type; each job runs on one type in a round."""
    problem = WindowProblem(
        rounds=2, job=np.array([0, 0]), gpu_type=np.array([0, 1]), speed=np.array([1.0, 1 / 3]), gpus=np.ones(1),
        counts=np.array([1.0, 1.0]), done=np.zeros(1), whole=np.full(1, 9.0), remaining=np.full(1, 9.0),
        priority=np.ones(1), least=np.zeros(1), longest_weight=0.0,
    )  # fmt: skip
    numbers = best_numbers(problem)

    assert numbers is not None
    assert numbers.number.tolist() == [2, 0]


def forecast_by_epochs(speeds: list[float], epochs: list[int], total: int, profiled: list[float]) -> float:
    """The same forecast by counts: a prior of total / m epochs for each kind, one more for each epoch seen."""
    kinds = list(dict.fromkeys([*speeds, *profiled]))
    seen = [sum(n for s, n in zip(speeds, epochs, strict=True) if s == kind) for kind in kinds]
    posterior = [total / len(kinds) + n for n in seen]
    rebased = [total * c / sum(posterior) for c in posterior]
    left = [max(r - n, 0.0) for r, n in zip(rebased, seen, strict=True)]
    scale = (total - sum(epochs)) / sum(left)
    return sum(scale * n * kind / total for n, kind in zip(left, kinds, strict=True))


@pytest.mark.parametrize(
    ("speeds", "epochs", "profiled"),
    [
        ([1000.0], [3], []),
        ([1000.0, 500.0], [5, 2], []),
        ([1000.0, 500.0, 1000.0], [4, 1, 2], []),
        ([1000.0, 500.0], [9, 0], [250.0]),
        ([1000.0], [0], [400.0, 2000.0]),
    ],
)
def test_forecast_is_that_of_counted_epochs(speeds: list[float], epochs: list[int], profiled: list[float]) -> None:
    begins = np.concatenate([[0.0], np.cumsum(epochs)[:-1]]) / 10
    phases = list(zip(speeds, begins.tolist(), strict=True))

    remaining_s = forecast(phases, sum(epochs) / 10, profiled)[2]

    assert remaining_s == pytest.approx(forecast_by_epochs(speeds, epochs, 10, profiled))


def jobs(*, steps: list[float], rates: list[float], **columns: object) -> AllocationProblem:
    ids = [f"j{k}" for k in range(len(steps))]
    total = columns.pop("total", steps)
    return AllocationProblem.of(
        ids, ["v100"], [1], [[rate] for rate in rates], steps_remaining=steps, steps_total=total, **columns
    )  # type: ignore[arg-type]  # columns of several types


def test_a_plan_is_kept_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Shockwave(rounds=4, round_s=100.0)
    first = jobs(steps=[400.0, 900.0], rates=[1.0, 1.0], total=[400.0, 900.0])
    answer = policy.allocate(first)
    solved: list[int] = []
    count = shockwave.best_numbers
    monkeypatch.setattr(shockwave, "best_numbers", lambda window: (solved.append(1), count(window))[1])
    ran = answer.share[:, 0]
    next_round = replace(
        first, memory=answer.memory, age_s=np.full(2, 100.0), steps_remaining=first.steps_remaining - 100.0 * ran
    )

    policy.allocate(next_round)
    assert not solved
    policy.allocate(replace(next_round, member_rate_steps_per_s=next_round.member_rate_steps_per_s * [[1.0], [2.0]]))
    assert len(solved) >= 1  # the second job is in another phase
    solved.clear()
    policy.allocate(replace(next_round, age_s=np.full(2, 400.0)))
    assert len(solved) >= 1  # the window has ended
    solved.clear()
    policy.allocate(replace(next_round, capacity=next_round.capacity * 2))
    assert len(solved) >= 1


def test_a_small_change_of_a_rate_is_no_phase() -> None:
    policy = Shockwave(rounds=4, round_s=100.0)
    first = jobs(steps=[400.0], rates=[1.0])
    memory = policy.allocate(first).memory

    same = policy.allocate(replace(first, memory=memory, member_rate_steps_per_s=np.array([[1.05]]))).memory
    other = policy.allocate(replace(first, memory=memory, member_rate_steps_per_s=np.array([[1.5]]))).memory

    assert b'"phases":{"j0":[[400.0,0.0]]}' in same
    assert b'"phases":{"j0":[[400.0,0.0],[266.6666' in other


def test_a_late_job_goes_first_when_not_all_can_be_on_time() -> None:
    """Equal jobs, of which the second has waited for four times its fair time."""
    policy = Shockwave(rounds=2, round_s=100.0)
    fresh = jobs(steps=[300.0, 300.0], rates=[1.0, 1.0])
    memory = policy.allocate(fresh).memory
    late = replace(fresh, memory=memory, age_s=np.array([200.0, 2400.0]))

    assert policy.allocate(late).share[:, 0].tolist() == [0.0, 1.0]


def test_gpus_that_the_plan_leaves_go_to_the_longest_job_that_fits() -> None:
    problem = AllocationProblem.of(
        "abc", ["v100"], [3], np.ones((3, 1)), gpus=[2, 2, 1], steps_remaining=[900.0, 800.0, 700.0]
    )

    answer = Shockwave(rounds=2).allocate(problem)

    assert answer.share[:, 0] @ problem.gpus_asked == 3
    assert set(answer.next_round[:, 0].tolist()) == {0, 1, 2}  # type: ignore[index]  # it names rounds


def test_jobs_of_a_trace_with_phases_finish() -> None:
    specs = [
        JobSpec(JobId(f"j{k}"), 7_200.0, gpus=1 + k % 2, rates_steps_per_s={"v100": 1.6, "k80": 0.8}) for k in range(6)
    ]
    phases = {
        job.id: (JobPhase(0.0, {"v100": 1.0, "k80": 0.5}), JobPhase(3_600.0, {"v100": 4.0, "k80": 2.0}, 4.0))
        for job in specs[::2]
    }
    trace = Trace(tuple(specs), np.arange(6) * 300.0, phases=phases)

    found = compare(trace, Cluster.parse("v100:2,k80:2"), [PolicyRun("shockwave")])["shockwave"]

    assert np.isfinite(found.history.finish_s[:6]).all()
    work_s = np.array([4_500.0, 4_500.0] * 3)  # on the fast type, alone
    assert (found.history.finish_s[:6] - trace.arrival_s >= work_s - 1e-6).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rounds": 0}, r"rounds must be whole, in \[1, 200\], got 0"),
        ({"rounds": 2.5}, "rounds must be whole"),
        ({"power": -1.0}, "power must be finite"),
        ({"longest": math.nan}, "longest must be finite"),
        ({"fairness": 0.0}, "fairness must be in"),
        ({"round_s": math.inf}, "round_s must be finite"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Shockwave(**parameters)  # type: ignore[arg-type]  # rounds of another type


def test_the_example_of_the_docs_by_hand() -> None:
    """Of three rounds the short job gets one and the long one two: -ln 0.5 and -ln 0.2, by chords, over 2 x 3."""
    problem = jobs(steps=[200.0, 1_000.0], rates=[1.0, 1.0])

    answer = Shockwave(rounds=3, round_s=100.0, longest=0.0).allocate(problem)

    half = (math.log(0.4) + math.log(0.6)) / 2
    assert answer.certificate.objective == pytest.approx((half + math.log(0.2)) / 6)
    assert b'"types":{"j0":[0,-1,-1],"j1":[-1,0,0]}' in answer.memory
