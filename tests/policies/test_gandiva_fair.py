"""Gandiva-Fair's strides in whole simulations, against a second implementation; trades, tickets and gangs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Entity
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.gandiva_fair import GandivaFair, ticket_shares, traded
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs
from tests.policies.queue_simulator import GPUS, ROUND_S, DumbJob, finish_rounds, random_jobs, simulated_rounds

FEW = 10
TRACES = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]
TRADES = range(200)


class Stride:
    """Owners with one ticket each: the least pass is served, a job at a time, and its pass rises."""

    def __init__(self) -> None:
        self.users: dict[str, float] = {}
        self.jobs: dict[str, float] = {}
        self.ran: list[DumbJob] = []

    def __call__(self, present: list[DumbJob], now: int) -> list[DumbJob]:
        owners = list(dict.fromkeys(job.owner for job in present))
        least = min((self.users[owner] for owner in owners if owner in self.users), default=0.0)
        self.users = {owner: self.users.get(owner, least) for owner in owners}
        for job in self.ran:
            self.jobs[job.name] += job.gpus * ROUND_S
            if job.owner in owners:
                self.users[job.owner] += job.gpus * ROUND_S
        old = {job.name: self.jobs[job.name] for job in present if job.name in self.jobs}
        for job in present:
            others = [old[one.name] for one in present if one.owner == job.owner and one.name in old]
            self.jobs[job.name] = old.get(job.name, min(others, default=0.0))
        self.ran = self.chosen(present, owners)
        return self.ran

    def chosen(self, present: list[DumbJob], owners: list[str]) -> list[DumbJob]:
        passes, left, found = dict(self.users), GPUS, list[DumbJob]()
        while True:
            fits = [job for job in present if job not in found and job.gpus <= left]
            if not fits:
                return found
            place = {job.name: k for k, job in enumerate(present)}
            first = min(fits, key=lambda j: (passes[j.owner], owners.index(j.owner), self.jobs[j.name], place[j.name]))
            found.append(first)
            left -= first.gpus
            passes[first.owner] += first.gpus * ROUND_S


@pytest.mark.parametrize("seed", TRACES)
def test_simulation_is_that_of_a_dumb_one(seed: int) -> None:
    jobs = [random_jobs(seed, owners="abc") for _ in range(2)]

    assert simulated_rounds(jobs[0], f"gandiva_fair:quantum_s={ROUND_S:g}") == finish_rounds(jobs[1], Stride())


@pytest.mark.parametrize("seed", TRADES)
def test_no_user_is_below_its_ticket_share_after_trades(seed: int) -> None:
    rng = np.random.default_rng(seed)
    users, types = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    value = rng.uniform(0.05, 1.0, (users, types)) * (rng.random((users, types)) < 0.9)
    shares = ticket_shares(rng.uniform(0.5, 4.0, users), rng.integers(0, 9, types).astype(float))

    after = traded(shares, value)

    assert (after >= 0).all()
    assert after.sum(axis=0) == pytest.approx(shares.sum(axis=0))
    assert ((after * value).sum(axis=1) >= (shares * value).sum(axis=1) * (1 - 1e-9)).all()


def test_the_price_is_that_of_the_second_user() -> None:
    """Speedups 6, 3 and 1.2: the first buys from the last at 3, until its slow GPU is sold."""
    value = np.array([[1.0, 1 / 6], [1.0, 1 / 3], [1.0, 1 / 1.2]])

    after = traded(ticket_shares(np.ones(3), np.array([3.0, 3.0])), value)

    assert after[0].tolist() == pytest.approx([1 + 1 / 3, 0.0])
    assert after[1].tolist() == pytest.approx([1 + 2 / 3, 0.2])
    assert after[2].tolist() == pytest.approx([0.0, 2.8])


def test_tickets_divide_time() -> None:
    problem = AllocationProblem.of(
        "abc", ["v100"], [1], np.ones((3, 1)), entity=[0, 0, 1], entities=[Entity("one", 3.0), Entity("two")]
    )
    served, memory, attained = np.zeros(3), b"", np.zeros(3)
    for _ in range(40):
        answer = GandivaFair(quantum_s=1.0).allocate(replace(problem, memory=memory, attained_gpu_s=attained))
        memory, served = answer.memory, served + answer.share[:, 0]
        attained = served.copy()

    assert served.tolist() == [15, 15, 10]


def test_a_gang_that_does_not_fit_is_first_in_a_later_round() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [2], np.ones((3, 1)), gpus=[1, 1, 2], owner=["x", "y", "z"])
    first = GandivaFair(quantum_s=1.0).allocate(problem)
    then = GandivaFair(quantum_s=1.0).allocate(
        replace(problem, memory=first.memory, attained_gpu_s=np.array([1.0, 1.0, 0.0]))
    )

    assert first.share[:, 0].tolist() == [1, 1, 0]
    assert then.share[:, 0].tolist() == [0, 0, 1]


def test_refuses_parameters() -> None:
    with pytest.raises(InvalidInput, match="quantum_s must be finite"):
        GandivaFair(quantum_s=-1.0)


def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(6, rate_jobs_per_h=6.0), table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("gandiva_fair")], throughputs=table)[
        "gandiva_fair"
    ]

    assert found.metrics.jobs_unfinished == 0
