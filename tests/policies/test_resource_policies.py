"""Policies over several resources against second implementations, in whole simulations and on single problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem, Entity
from gavelpy.policies.base import policy_from
from tests.policies.queue_simulator import GPUS, Choose, DumbJob, finish_rounds, random_jobs, simulated_rounds

FEW = 2
TRACES = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]
BLOCKS = [pytest.param(block, marks=[pytest.mark.slow] * (block > 0)) for block in range(20)]
Places = dict[int, int]  # job -> GPU type


def random_problem(seed: int) -> AllocationProblem:
    """3 to 9 jobs of three owners and two teams on two types, with CPU cores and memory; some have no owner."""
    rng = np.random.default_rng(seed)
    J = int(rng.integers(3, 10))
    return AllocationProblem.of(
        [f"j{k}" for k in range(J)], ["v100", "k80"], rng.integers(1, 6, 2), rng.integers(0, 9, (J, 2)),
        gpus=rng.choice([1, 1, 2, 4], J), weight=rng.choice([1.0, 1.0, 2.0], J),
        owner=rng.choice(["", "ann", "bob", "eve"], J).tolist(),
        entities=(Entity("x"), Entity("y", 3.0), Entity("z", parent="y")), entity=rng.integers(-1, 3, J),
        gpu_type_held=rng.integers(-1, 2, J), steps_remaining=rng.integers(1, 99, J),
        resources={"cpus": rng.integers(2, 12, 2), "memory_gib": rng.integers(4, 40, 2)},
        demand={"cpus": rng.integers(0, 5, J), "memory_gib": rng.integers(0, 16, J)},
    )  # fmt: skip


class Dumb:
    """A problem as lists, what is free, and what runs where."""

    def __init__(self, p: AllocationProblem) -> None:
        self.p, self.where = p, Places()
        self.whole: list[list[int]] = p.capacity.tolist()
        self.free: list[list[int]] = p.capacity.tolist()
        self.need: list[list[int]] = p.demand.tolist()
        self.jobs = [j for j in range(p.job_count) if any(self.possible(j, t, self.whole) for t in (0, 1))]

    def possible(self, job: int, t: int, room: list[list[int]]) -> bool:
        return bool(self.p.member_rate_steps_per_s[job, t] > 0) and all(
            need <= left for need, left in zip(self.need[job], room[t], strict=True)
        )

    def start(self, job: int, t: int) -> None:
        self.where[job] = t
        self.free[t] = [left - need for left, need in zip(self.free[t], self.need[job], strict=True)]

    def fastest(self, job: int) -> int:
        rates = self.p.member_rate_steps_per_s[job]
        types = [t for t in (0, 1) if self.possible(job, t, self.free)]
        held = self.p.gpu_type_held[job]
        return max(types, key=lambda t: (rates[t], t == held, self.free[t][0], -t), default=-1)

    def user(self, job: int, by: str) -> tuple[str, int]:
        number = int(self.p.owner[job] if by == "owner" else self.p.entity[job])
        return (by, number) if number >= 0 else ("job", job)

    def weight(self, job: int, by: str) -> Fraction:
        team = self.p.entities[self.p.entity[job]].weight if by == "entity" and self.p.entity[job] >= 0 else 1.0
        return Fraction(self.p.weight[job]) * Fraction(team)

    def dominant(self, user: tuple[str, int], by: str) -> Fraction:
        held = [
            sum(
                (
                    self.need[j][r] / self.weight(j, by)
                    for j in self.where
                    if self.where[j] == t and self.user(j, by) == user
                ),
                Fraction(0),
            )
            / self.whole[t][r]
            for t in (0, 1)
            for r in range(3)
        ]
        return max(held)


def drf_places(p: AllocationProblem, by: str) -> Places:
    dumb = Dumb(p)
    left = list(dumb.jobs)
    while left:
        heads = {dumb.user(job, by): job for job in reversed(left)}
        job = min(heads.values(), key=lambda j: (dumb.dominant(dumb.user(j, by), by), j))
        left.remove(job)
        if (t := dumb.fastest(job)) >= 0:
            dumb.start(job, t)
    return dumb.where


def capacity_places(p: AllocationProblem, least_part: Fraction, factor: Fraction) -> Places:
    """With queues x, y, z below y, and one of no team; parts of capacity as YARN computes them."""
    dumb = Dumb(p)
    queue = {job: int(p.entity[job]) for job in dumb.jobs}
    others = 5 if -1 in queue.values() else 4
    capacity = {0: Fraction(1, others), 1: Fraction(3, others), 2: Fraction(3, others), -1: Fraction(1, others)}
    below = {0: {0}, 1: {1, 2}, 2: {2}, -1: {-1}}
    total = [sum(room) for room in zip(*dumb.whole, strict=True)]

    def used(jobs: list[int]) -> Fraction:
        return max(Fraction(sum(dumb.need[job][r] for job in jobs), total[r]) for r in range(3))

    def running(queues: set[int]) -> list[int]:
        return [job for job in dumb.where if queue[job] in queues]

    users = {q: len({dumb.user(job, "owner") for job in dumb.jobs if queue[job] == q}) for q in below}
    left = list(dumb.jobs)
    while left:
        top = min(left, key=lambda j: (used(running(below[max(min(queue[j], 1), -1)])) / capacity[queue[j]], j))
        inside = [job for job in left if (queue[job] in (1, 2)) == (queue[top] in (1, 2))]
        job = inside[0] if queue[top] in (1, 2) else top
        left.remove(job)
        q = queue[job]
        mine = [other for other in running({q}) if dumb.user(other, "owner") == dumb.user(job, "owner")]
        current = max(capacity[q], used(running(below[q])))
        limit = min(factor * capacity[q], max(least_part, Fraction(1, users[q])) * current)
        if used(mine) <= limit and (t := dumb.fastest(job)) >= 0:
            dumb.start(job, t)
    return dumb.where


def tetris_places(p: AllocationProblem, fairness: Fraction, shortness: int) -> Places:
    dumb = Dumb(p)
    every = [(job, t) for job in dumb.jobs for t in (0, 1) if dumb.possible(job, t, dumb.whole)]

    def aligned(job: int, t: int, free: list[list[int]]) -> Fraction:
        return sum((Fraction(dumb.need[job][r] * free[t][r], dumb.whole[t][r] ** 2) for r in range(3)), Fraction(0))

    def work(job: int, t: int) -> Fraction:
        seconds = Fraction(p.steps_remaining[job]) / Fraction(p.member_rate_steps_per_s[job, t])
        return sum((Fraction(dumb.need[job][r], dumb.whole[t][r]) for r in range(3)), Fraction(0)) * seconds

    epsilon = Fraction(0)
    if every:
        epsilon = sum(aligned(*place, dumb.whole) for place in every) / sum(work(*place) for place in every)
    while True:
        now = [(job, t) for job, t in every if job not in dumb.where and dumb.possible(job, t, dumb.free)]
        if not now:
            return dumb.where
        users = list(dict.fromkeys(dumb.user(job, "owner") for job, _ in now))
        users.sort(key=lambda user: dumb.dominant(user, "owner"))
        users = users[: math.ceil((1 - fairness) * len(users))]
        now = [place for place in now if dumb.user(place[0], "owner") in users]
        dumb.start(*max(now, key=lambda place: aligned(*place, dumb.free) - shortness * epsilon * work(*place)))


def mesos_places(p: AllocationProblem, accept: Fraction) -> Places:
    dumb = Dumb(p)
    for job in dumb.jobs:
        if p.gpu_type_held[job] >= 0 and dumb.possible(job, int(p.gpu_type_held[job]), dumb.free):
            dumb.start(job, int(p.gpu_type_held[job]))
    waiting = [job for job in dumb.jobs if job not in dumb.where]
    shares = {dumb.user(job, "owner"): dumb.dominant(dumb.user(job, "owner"), "owner") for job in waiting}
    for user in sorted(shares, key=lambda each: shares[each]):
        for job in waiting:
            rates = p.member_rate_steps_per_s[job]
            best = max(rates[t] for t in (0, 1) if dumb.possible(job, t, dumb.whole))
            if (
                dumb.user(job, "owner") == user
                and (t := dumb.fastest(job)) >= 0
                and rates[t] >= accept * Fraction(best)
            ):
                dumb.start(job, t)
    return dumb.where


DUMB: dict[str, Callable[[AllocationProblem], Places]] = {
    "drf": lambda p: drf_places(p, "owner"),
    "drf:by=entity": lambda p: drf_places(p, "entity"),
    "capacity": lambda p: capacity_places(p, Fraction(1), Fraction(1)),
    "capacity:user_min_percent=25:user_factor=2": lambda p: capacity_places(p, Fraction(1, 4), Fraction(2)),
    "tetris": lambda p: tetris_places(p, Fraction(1, 4), 1),
    "tetris:fairness=0.75:shortness=0": lambda p: tetris_places(p, Fraction(3, 4), 0),
    "mesos": lambda p: mesos_places(p, Fraction(0)),
    "mesos:accept=0.75": lambda p: mesos_places(p, Fraction(3, 4)),
}


@pytest.mark.parametrize("policy", DUMB)
def test_answers_are_those_of_a_dumb_implementation(policy: str) -> None:
    for seed in range(200):
        problem = random_problem(seed)
        jobs, types = np.nonzero(policy_from(policy).allocate(problem).share)

        assert dict(zip(jobs.tolist(), types.tolist(), strict=True)) == DUMB[policy](problem), seed


# Whole simulations of three owners on one type


def drf_rounds(present: list[DumbJob], now: int) -> list[DumbJob]:
    waiting, chosen = list(present), list[DumbJob]()
    while waiting:
        held = {job.owner: sum(other.gpus for other in chosen if other.owner == job.owner) for job in waiting}
        job = min(waiting, key=lambda each: held[each.owner])  # the first of equals
        waiting.remove(job)
        if job.gpus + sum(other.gpus for other in chosen) <= GPUS:
            chosen.append(job)
    return chosen


def tetris_rounds(present: list[DumbJob], now: int) -> list[DumbJob]:
    """With fairness 0: alignment is g free / 16, remaining work g left / 4; in integers, g free and g left."""
    chosen, free = list[DumbJob](), GPUS
    epsilon = Fraction(sum(job.gpus * GPUS for job in present), sum(job.gpus * job.left for job in present) or 1)
    while fitting := [job for job in present if job.gpus <= free and job not in chosen]:
        chosen.append(max(fitting, key=lambda job: job.gpus * free - epsilon * job.gpus * job.left))
        free -= chosen[-1].gpus
    return chosen


def mesos_rounds(present: list[DumbJob], now: int) -> list[DumbJob]:
    chosen = [job for job in present if job.is_running]
    waiting = [job for job in present if not job.is_running]
    held = {
        owner: sum(job.gpus for job in chosen if job.owner == owner)
        for owner in dict.fromkeys(job.owner for job in waiting)
    }
    for owner in sorted(held, key=lambda each: held[each]):
        for job in waiting:
            if job.owner == owner and job.gpus + sum(other.gpus for other in chosen) <= GPUS:
                chosen.append(job)
    return chosen


# with teams of equal weight and one user each, whose limit never counts, capacity queues do the same on one resource
CASES: dict[str, Choose] = {
    "drf": drf_rounds,
    "capacity:user_factor=9": drf_rounds,
    "tetris:fairness=0": tetris_rounds,
    "mesos": mesos_rounds,
}


@pytest.mark.parametrize("policy", CASES)
@pytest.mark.parametrize("seed", TRACES)
def test_simulation_is_that_of_a_dumb_one(seed: int, policy: str) -> None:
    found = simulated_rounds(random_jobs(seed, owners="abc"), policy)

    assert found == finish_rounds(random_jobs(seed, owners="abc"), CASES[policy])


# The four properties of DRF, section 3: divisible tasks, each of one type


def divisible_problem(seed: int) -> AllocationProblem:
    """Two to five owners with up to three jobs each, a job on one of two types."""
    rng = np.random.default_rng(seed)
    owner = np.repeat([f"u{k}" for k in range(int(rng.integers(2, 6)))], 3)
    owner = np.append(owner[::3], owner[rng.random(len(owner)) < 0.5])
    J = len(owner)
    return AllocationProblem.of(
        [f"j{k}" for k in range(J)], ["v100", "k80"], rng.integers(4, 9, 2), np.eye(2)[rng.integers(0, 2, J)],
        gpus=rng.integers(1, 5, J), owner=owner.tolist(),
        resources={"cpus": rng.integers(8, 20, 2), "memory_gib": rng.integers(8, 40, 2)},
        demand={"cpus": rng.integers(0, 9, J), "memory_gib": rng.integers(0, 9, J)},
    )  # fmt: skip


def bundles(p: AllocationProblem) -> np.ndarray:
    """What each owner's jobs hold of each resource, (U, T, R), by the policy."""
    share = policy_from("drf:divisible=1").allocate(p).share
    held = np.zeros((len(p.owners), *p.capacity.shape))
    np.add.at(held, p.owner, share[:, :, None] * p.demand[:, None, :])
    return held


def wanted(p: AllocationProblem) -> np.ndarray:
    """What each owner's jobs hold if they run all the time, (U, T, R)."""
    held = np.zeros((len(p.owners), *p.capacity.shape))
    np.add.at(held, p.owner, (p.member_rate_steps_per_s > 0)[:, :, None] * p.demand[:, None, :])
    return held


def part(needs: np.ndarray, bundle: np.ndarray) -> float:
    """The part of all its jobs that an owner can run with a bundle."""
    return min(1.0, float(np.divide(bundle, needs, out=np.full(needs.shape, np.inf), where=needs > 0).min()))


def with_false_demand(p: AllocationProblem, owner: int, rng: np.random.Generator) -> AllocationProblem:
    """The owner declares other cores, memory and GPUs of its jobs."""
    factor = np.where((p.owner == owner)[:, None], rng.choice([0.5, 1.0, 1.5, 2.0], p.demand.shape), 1.0)
    declared = (p.demand * factor).astype(np.int64)
    return replace(p, demand=declared, gpus_asked=declared[:, 0] / 1000)


@pytest.mark.parametrize("block", BLOCKS)
def test_divisible_drf_has_the_four_properties_of_the_paper(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        p, rng = divisible_problem(seed), np.random.default_rng(seed)
        needs, held = wanted(p), bundles(p)
        got = [part(*each) for each in zip(needs, held, strict=True)]
        used_up = held.sum(axis=0) >= p.capacity - 1e-6
        for user, mine in enumerate(got):
            assert mine >= part(needs[user], p.capacity / len(got)) - 1e-9, "sharing incentive"
            assert mine > 1 - 1e-9 or used_up[needs[user] > 0].any(), "Pareto efficiency"
            assert mine >= max(part(needs[user], other) for other in held) - 1e-9, "no envy"
            lying = bundles(with_false_demand(p, user, rng))[user]
            assert part(needs[user], lying) <= mine + 1e-9, "strategy-proofness"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("drf:by=node", "by must be 'owner' or 'entity', got 'node'"),
        ("drf:divisible=2", "divisible must be true"),
        ("capacity:user_min_percent=0", "user_min_percent must be in"),
        ("tetris:fairness=1", "fairness must be in"),
        ("tetris:shortness=-1", "shortness must be in"),
        ("mesos:accept=2", "accept must be in"),
        ("capacity:user_factor=0", "user_factor must be in"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        policy_from(text)
