"""OASiS' schedules against all schedules, its bound against the offline optimum, and its promises in whole runs."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies import oasis as module
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.oasis import Oasis
from gavelpy.policies.slot_prices import Offer, SlotPrices
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

FEW = 25
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(1_000)]
SLOTS = 4


def random_offer(rng: np.random.Generator, first: int = 0) -> Offer:
    """A job with one or two places on two rows, that needs one to three chunks from slot `first` on."""
    places = int(rng.integers(1, 3))
    demand = np.zeros((places, 2))
    demand[np.arange(places), rng.integers(0, 2, places)] = rng.integers(1, 3, places)
    value = np.sort(rng.uniform(0.5, 4.0, SLOTS))[::-1].copy()
    value[:first] = -np.inf  # the job has not arrived: no schedule can end before
    chunks, count = rng.integers(1, 3, places), int(rng.integers(1, 4))
    return Offer(demand, chunks, count, value, chunks)


def schedules(offer: Offer, first: int = 0) -> list[tuple[int, ...]]:
    """All schedules that do enough, and nothing before slot `first`."""
    options = [range(-1, len(offer.demand)) if s >= first else [-1] for s in range(SLOTS)]
    return [
        one
        for one in itertools.product(*options)
        if sum(int((offer.chunks if s else offer.chunks_now)[k]) for s, k in enumerate(one) if k >= 0)
        >= offer.chunk_count
        and (one[0] < 0 or offer.chunks_now[one[0]] > 0)
    ]


def uses(offer: Offer, schedule: tuple[int, ...]) -> Floats:
    """What a schedule uses, (rows, slots)."""
    used = np.zeros((offer.demand.shape[1], SLOTS))
    for s, k in enumerate(schedule):
        if k >= 0:
            used[:, s] += offer.demand[k]
    return used


def ends(schedule: tuple[int, ...]) -> int:
    return max(s for s, k in enumerate(schedule) if k >= 0)


@pytest.mark.parametrize("seed", range(60))
def test_schedule_has_the_highest_payoff_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices = SlotPrices(np.array([3.0, 2.0]), SLOTS, np.array([4.0, 4.0]), 0.05)
    prices.used[:] = rng.integers(0, 3, (2, SLOTS))
    offer = random_offer(rng)
    if seed % 2:  # a part of the first slot is over
        offer = replace(offer, chunks_now=rng.integers(0, offer.chunks + 1), part_now=float(rng.uniform(0.1, 1.0)))

    free, price = prices.capacity[:, None] - prices.used, prices.price()
    price[:, 0] *= offer.part_now
    payoffs = [
        offer.value[ends(one)] - float((uses(offer, one) * price).sum())
        for one in schedules(offer)
        if (uses(offer, one) <= free).all()
    ]
    found = prices.best(offer)
    assert found.payoff == pytest.approx(max(payoffs, default=-math.inf))
    if payoffs:
        chosen = tuple(found.place.tolist())
        assert chosen in schedules(offer)
        assert (uses(offer, chosen) <= free).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_value_is_within_the_bound_of_the_offline_optimum(seed: int) -> None:
    """Theorem 4: 2 α times the value of the admitted jobs is at least that of the best choice in hindsight."""
    rng = np.random.default_rng(seed)
    capacity = np.array([2.0, 2.0])
    firsts = np.sort(rng.integers(0, 2, 3)).tolist()
    offers = [random_offer(rng, first) for first in firsts]
    high = max(float(one.value.max()) for one in offers)
    low = min(float(one.value.min(where=np.isfinite(one.value), initial=np.inf)) / one.chunk_count for one in offers)
    lowest = low / (4.0 * SLOTS * 4.0)
    prices, online = SlotPrices(capacity, SLOTS, np.full(2, high), lowest), 0.0
    for offer, first in zip(offers, firsts, strict=True):
        used = prices.used[:, :first].copy()
        prices.used[:, :first] = capacity[:, None]  # the past cannot be used
        found = prices.best(offer)
        prices.used[:, :first] = used
        if found.payoff > 0:
            schedule = tuple(found.place.tolist())
            prices.used += uses(offer, schedule)
            online += float(offer.value[ends(schedule)])
    assert (prices.used <= capacity[:, None]).all()

    alpha = max(1.0, math.log(high / lowest))
    assert 2.0 * alpha * online >= offline(offers, firsts, capacity) - 1e-9


def offline(offers: list[Offer], firsts: list[int], capacity: Floats) -> float:
    """The highest total value of any schedules within the capacity, by search over all."""
    each = [
        [(uses(one, s), float(one.value[ends(s)])) for s in schedules(one, f)]
        for one, f in zip(offers, firsts, strict=True)
    ]

    def best(k: int, used: Floats) -> float:
        if k == len(each):
            return 0.0
        fits = [value + best(k + 1, used + own) for own, value in each[k] if (used + own <= capacity[:, None]).all()]
        return max([best(k + 1, used), *fits])

    return best(0, np.zeros((2, SLOTS)))


@pytest.mark.parametrize("seed", range(20))
def test_promises_are_kept_in_whole_runs(seed: int) -> None:
    """Jobs arrive one at a time, off the grid of slots; each admitted one ends by the slot that it was promised."""
    rng, policy, step_s = np.random.default_rng(seed), Oasis(slot_s=600.0, slots=20, chunks=12), 300.0
    ids = [f"j{k}" for k in range(6)]
    arrives = np.sort(rng.integers(0, 12, 6)) * step_s
    whole = AllocationProblem.of(
        ids, ["v100", "k80"], [2, 2], rng.uniform(0.5, 2.0, (6, 2)), steps_remaining=rng.uniform(500.0, 4e3, 6),
        completion_value=[f"sigmoid:worth={1 + k % 3}:time_s=3000:decay_per_s=0.001" for k in range(6)],
    ).with_sizes({job: [Size(2, efficiency=0.9)] for job in ids})  # fmt: skip
    left, promised, memory, refused = whole.steps_remaining.copy(), np.full(6, np.inf), b"", set[str]()
    ended = np.full(6, np.inf)
    for now in np.arange(0.0, 20_000.0, step_s).tolist():
        here = np.flatnonzero((arrives <= now) & (left > 0)).tolist()
        absent = np.setdiff1d(np.arange(6), here)
        rates = whole.member_rate_steps_per_s.copy()
        rates[np.isin(whole.member_job, absent)] = 0.0  # jobs that are not there cannot run
        problem = replace(
            whole, member_rate_steps_per_s=rates, steps_remaining=np.maximum(left, 1.0),
            age_s=np.maximum(now - arrives, 0.0), memory=memory,
        )  # fmt: skip
        answer = policy.allocate(problem)
        assert (answer.share.T @ problem.gpus_occupied <= problem.gpu_counts).all()
        assert refused <= set(answer.refused) | {ids[k] for k in absent}
        memory, refused = answer.memory, refused | set(answer.refused)
        for job, (age, runs) in policy_plans(memory).items():
            row = ids.index(job)
            promised[row] = min(promised[row], arrives[row] + age + 600.0 * sum(count for _, _, count in runs))
        left -= answer.rate_steps_per_s * step_s
        ended[(left <= 1e-6) & np.isinf(ended)] = now + step_s

    assert np.isfinite(promised).any()
    assert (ended[np.isfinite(promised)] <= promised[np.isfinite(promised)] + 1e-6).all()


def policy_plans(memory: bytes) -> dict[str, tuple[float, list[tuple[int, int, int]]]]:
    found: dict[str, tuple[float, list[tuple[int, int, int]]]] = json.loads(memory or b"{}").get("plans", {})
    return found


def test_job_that_waits_for_its_slot_runs_although_nothing_else_happens() -> None:
    """Two jobs of half an hour that are worth as much in any slot; the second has the cheaper slot after the first."""
    job = JobSpec(JobId("a"), 1800.0, rates_steps_per_s={"v100": 1.0}, completion_value="step:worth=1:time_s=99999")
    trace = Trace((job, replace(job, id=JobId("b"))), np.zeros(2))

    found = compare(trace, Cluster.parse("v100:2"), [PolicyRun("oasis:slot_s=3600")])["oasis:slot_s=3600"]

    first, second = sorted(found.history.finish_s[:2].tolist())
    assert first == pytest.approx(1815.0)
    assert second == pytest.approx(3600.0 + 1815.0, abs=1.0)


def test_schedules_of_jobs_that_arrive_within_a_slot_have_the_same_slots() -> None:
    """Job b arrives 900 s after a slot of a began: it needs the 2,700 s that are left, and two more slots."""
    late = "step:worth=9:time_s=99999"
    first = AllocationProblem.of(
        "ab", ["v100"], [2], [[1.0], [0.0]], steps_remaining=[7200.0, 9900.0], completion_value=[late, late]
    )  # fmt: skip
    policy = Oasis(slots=6)
    memory = policy.allocate(first).memory
    then = AllocationProblem.of(
        "ab", ["v100"], [2], np.ones((2, 1)), steps_remaining=[6300.0, 9900.0], age_s=[900.0, 0.0],
        completion_value=[late, "linear:worth=9:time_s=20000"], memory=memory,
    )  # fmt: skip

    answer = policy.allocate(then)

    assert policy_plans(answer.memory) == {"a": [0.0, [[1000, 0, 2]]], "b": [-900.0, [[1000, 0, 3]]]}
    assert answer.again_s == 2700.0


@pytest.mark.parametrize("seed", range(30))
def test_chunks_lose_the_least_of_all_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    part, most = rng.uniform(0.01, 1.2, int(rng.integers(1, 5))), int(rng.integers(1, 80))

    def lost(count: int) -> float:
        return max(1 - math.floor(min(p, 1.0) * count + 1e-9) / (min(p, 1.0) * count) for p in part)

    found = module.chunk_count(part, most)
    assert (most + 1) // 2 <= found <= most
    assert lost(found) <= min(lost(count) for count in range((most + 1) // 2, most + 1)) + 1e-8


def test_the_highest_value_of_a_unit_is_that_of_one_slot_or_of_all_slots_that_a_job_needs() -> None:
    """U is 4 or 2, L is 0.2 / 16. a has one of 2 GPUs in both slots, so a unit costs sqrt(L U): 0.224 or 0.158."""
    values = ["step:worth=4:time_s=7200", "step:worth=0.2:time_s=7200"]
    p = AllocationProblem.of(
        "ac", ["v100"], [2], np.ones((2, 1)), steps_remaining=[7200.0, 3600.0], completion_value=values
    )

    assert list(Oasis(slots=2).allocate(p).refused) == ["c"]
    assert not Oasis(slots=2, highest="job").allocate(p).refused


def test_jobs_without_a_value_use_what_is_left() -> None:
    problem = AllocationProblem.of(
        "abc",
        ["v100"],
        [2],
        np.ones((3, 1)),
        steps_remaining=3600.0,
        completion_value=["", "step:worth=1:time_s=7200", ""],
    )

    assert Oasis().allocate(problem).share[:, 0].tolist() == [1.0, 1.0, 0.0]


def test_a_full_memory_refuses_jobs_instead_of_forgetting_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_BYTES_MAX", 4_096 + 100)
    problem = AllocationProblem.of(
        [f"job-{k}" for k in range(9)], ["v100"], [9], np.ones((9, 1)), steps_remaining=3600.0,
        completion_value=["step:worth=1:time_s=7200"] * 9,
    )  # fmt: skip
    answer = Oasis().allocate(problem)

    assert 0 < len(policy_plans(answer.memory)) < 9
    assert set(answer.refused.values()) == {"no more schedules can be remembered"}
    assert answer.share.sum() <= len(policy_plans(answer.memory))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"slot_s": 0.0}, "slot_s must be"),
        ({"slots": 0.5}, "slots must be"),
        ({"chunks": 0}, "chunks must be"),
        ({"highest": "unit"}, "highest must be"),
        ({"ratio": 1.0}, "ratio must be"),
    ],
)
def test_refuses_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Oasis(**parameters)


def test_simulates_a_trace_with_values() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(6, rate_jobs_per_h=6.0), table, np.random.default_rng(0))
    valued = replace(
        trace, jobs=tuple(replace(one, completion_value="linear:worth=2:time_s=400000") for one in trace.jobs)
    )
    found = compare(valued, Cluster.parse("v100:4,k80:4"), [PolicyRun("oasis")], throughputs=table)["oasis"]

    assert found.metrics.jobs_measured > 0
