"""OASiS' setting: parameter servers, runs of slots, its baselines by hand, and the policy by brute force."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from gavelpy.model.arrays import Floats
from gavelpy.model.completion_value import CompletionValue
from gavelpy.policies.oasis import Oasis
from gavelpy.reproduction.oasis_baselines import FifoWorkers, GrowingDrf, RiskReward
from gavelpy.reproduction.oasis_slots import (
    SLOT_S,
    OfPolicy,
    SlotJobs,
    SlotPolicy,
    SlotState,
    drawn_jobs,
    run_slots,
)


def jobs_of(
    arrival: list[int],
    chunks: list[float],
    most: list[int],
    *,
    asked: list[int] | None = None,
    ratio: float = 2.0,
    values: list[str] | None = None,
) -> SlotJobs:
    """Jobs whose workers take one slot for a chunk, and use 1 GPU and 1 CPU core; servers use 1 CPU core."""
    count = len(arrival)
    worker, server = np.tile([1.0, 1.0, 0.0, 0.0], (count, 1)), np.tile([1.0, 0.0, 0.0], (count, 1))
    texts = values or ["linear:worth=10:time_s=36000"] * count
    rows = np.array([CompletionValue.parse(text).row for text in texts])
    return SlotJobs(
        np.array(arrival), np.array(chunks), np.ones(count), np.array(most), np.array(asked or most),
        np.full(count, ratio), worker, server, rows,
    )  # fmt: skip


def ends(jobs: SlotJobs, policy: SlotPolicy, slots: int = 6) -> list[float]:
    found: list[float] = run_slots(jobs, 1, slots, policy).tolist()  # 8 GPUs, 32 + 36 CPU cores
    return found


def test_workers_need_parameter_servers_by_the_ratio_of_bandwidths() -> None:
    jobs = jobs_of([0], [4.0], [4], ratio=1.5)

    assert [jobs.demand(0, n)[[0, 4]].tolist() for n in (1, 2, 3, 4)] == [[1, 1], [2, 2], [3, 2], [4, 3]]


def test_fifo_is_blocked_by_its_head() -> None:
    jobs = jobs_of([0, 0, 0], [12.0, 8.0, 2.0], [6, 4, 2])

    assert ends(jobs, FifoWorkers()) == [2.0, 4.0, 3.0]


def test_drf_grows_jobs_in_turn() -> None:
    jobs = jobs_of([0, 0, 1], [8.0, 2.0, 2.0], [8, 2, 2])

    assert ends(jobs, GrowingDrf()) == [2.0, 1.0, 2.0]


def test_risk_reward_refuses_what_costs_others_more_than_it_is_worth() -> None:
    """Of the admitted, the one worth more per hour first; a job of little value that delays both is refused."""
    values = ["linear:worth=20:time_s=36000", "linear:worth=40:time_s=36000", "linear:worth=2:time_s=3600000"]
    jobs = jobs_of([0, 0, 0], [8.0, 8.0, 8.0], [8, 8, 8], values=values)

    assert ends(jobs, RiskReward()) == [2.0, 1.0, np.inf]


@pytest.mark.parametrize("seed", range(6))
def test_oasis_admits_the_best_schedule_of_workers_and_servers(seed: int) -> None:
    """The schedule has the highest value less price of all numbers of workers, with their servers, in all slots."""
    rng, slots = np.random.default_rng(seed), 3
    jobs = drawn_jobs(1, 1, seed)
    most = int(rng.integers(2, 5))
    work = float(rng.integers(2, 2 * most + 1))
    text = f"sigmoid:worth={rng.uniform(1, 100)!r}:time_s={SLOT_S * 2!r}:decay_per_s={1 / SLOT_S!r}"
    row = np.array([CompletionValue.parse(text).row])
    numbers = [n for n in (1, 2, 3) if n < most] + [most]
    jobs = SlotJobs(
        jobs.arrival, np.array([work]), np.ones(1), np.array([most]), np.array([most]), jobs.workers_per_server,
        jobs.worker, jobs.server, row,
    )  # fmt: skip
    state = SlotState(jobs, 1.5 * jobs.demand(0, most), 0, jobs.chunks, np.zeros(1, np.int64), np.zeros(1, np.bool_))
    policy = OfPolicy(Oasis(chunks=1000), slots)
    problem, of_row = policy.problem(state, np.array([0]))

    answer = Oasis(slot_s=SLOT_S, slots=slots, chunks=1000).allocate(problem)

    price = unit_price(jobs, state.capacity, slots, numbers, work)

    def payoff(schedule: list[int]) -> float:
        last = max(t for t, n in enumerate(schedule) if n)
        return jobs.value_at(0, last + 1.0) - sum(price * float(brute_demand(jobs, n).sum()) for n in schedule if n)

    options = [list(one) for one in itertools.product([0, *numbers], repeat=slots) if sum(one) >= work - 1e-9]
    runs = json.loads(answer.memory)["plans"]["0"][1]
    plan = [round(units / 1000 / jobs.worker[0, 0]) for units, _, count in runs for _ in range(count)]
    assert sum(plan) >= work - 1e-9
    assert payoff(plan) == pytest.approx(max(map(payoff, options)))
    taken = [of_row[row] for row in np.flatnonzero(answer.share[:, 0] > 0.5).tolist()]
    assert (taken or [0]) == plan[:1]


def brute_demand(jobs: SlotJobs, workers: int) -> Floats:
    """Workers and the fewest servers with their bandwidth, found by counting up."""
    servers = 0
    while servers * jobs.workers_per_server[0] < workers - 1e-9:
        servers += 1
    return np.concatenate([workers * jobs.worker[0], servers * jobs.server[0]])


def unit_price(jobs: SlotJobs, capacity: Floats, slots: int, numbers: list[int], work: float) -> float:
    """L of an empty cluster, by the formula in the docstring of the policy."""
    units = min(np.ceil(work / n) * float(brute_demand(jobs, n).sum()) for n in numbers)
    eta = slots * float(capacity.sum()) / units
    soonest = jobs.value_at(0, float(np.ceil(work / max(numbers))))
    least = np.array([brute_demand(jobs, n) for n in numbers]).min(axis=0)
    highest = float((soonest / least[least > 0]).max())
    return float(max(jobs.value_at(0, float(slots)) / units / (4 * eta), highest / 1e6))


def test_drawn_jobs_can_end_by_their_targets() -> None:
    jobs = drawn_jobs(60, 20, 1)

    epochs = jobs.chunks / jobs.most
    assert (np.ceil(epochs * jobs.chunk_time) * SLOT_S <= jobs.value[:, 2]).all()
    assert ((epochs >= 50) & (epochs <= 200)).all()
    assert (jobs.asked <= jobs.most).all()
