"""Queueing policies in whole simulations, against a second implementation; and their orders."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.policies.contract import CHECKS, problems
from tests.policies.queue_simulator import (
    ROUND_S,
    Choose,
    DumbJob,
    finish_rounds,
    random_jobs,
    simulated_rounds,
    that_fit,
)

FEW = 4
TRACES = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]


def srtf(present: list[DumbJob], now: int) -> list[DumbJob]:
    return that_fit(sorted(present, key=lambda job: job.left))


def srsf(present: list[DumbJob], now: int) -> list[DumbJob]:
    return that_fit(sorted(present, key=lambda job: job.left * job.gpus))


def least_attained_service(present: list[DumbJob], now: int) -> list[DumbJob]:
    return that_fit(sorted(present, key=lambda job: job.done * job.gpus))


class Queues:
    """Tiresias with lists: a job moves to the next list when it received enough, and to the first when it starved."""

    def __init__(self, thresholds: list[float], promote: float = 0.0, services: list[float] | None = None) -> None:
        self.thresholds, self.knob, self.services = thresholds, promote, services
        self.started: list[DumbJob] = []
        self.base: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def __call__(self, present: list[DumbJob], now: int) -> list[DumbJob]:
        for job in present:
            if job.is_running or job.name not in self.last:
                self.last[job.name] = now
            if job.done and job not in self.started:
                self.started.append(job)
            ran = job.done - self.base.get(job.name, 0)
            if self.knob and ran and now - self.last[job.name] >= self.knob * ran:
                self.base[job.name], self.last[job.name] = job.done, now
        queues: list[list[DumbJob]] = [[] for _ in range(len(self.thresholds) + 1)]
        for job in [*(job for job in self.started if job in present), *(job for job in present if not job.done)]:
            level = 0
            while level < len(self.thresholds) and self.service(job) >= self.thresholds[level]:
                level += 1
            queues[level].append(job)
        if self.services is not None:
            for level, queue in enumerate(queues):
                queue.sort(key=lambda job: -self.index(self.service(job), level))
        return that_fit([job for queue in queues for job in queue])

    def service(self, job: DumbJob) -> float:
        return (job.done - self.base.get(job.name, 0)) * job.gpus * ROUND_S

    def index(self, a: float, level: int) -> float:
        ends = [0.0, *self.thresholds, float("inf")]
        quantum = ends[level + 1] - ends[level]
        longer = [s for s in self.services or [] if s > a]
        gone = sum(1 for s in longer if s - a <= quantum) / len(longer) if longer else 0.0
        return gone / (sum(min(s - a, quantum) for s in longer) / len(longer)) if longer else 0.0


CASES: dict[str, Callable[[], Choose]] = {
    "srtf": lambda: srtf,
    "srsf": lambda: srsf,
    "least_attained_service": lambda: least_attained_service,
    "tiresias:thresholds=300/900": lambda: Queues([300.0, 900.0]),
    "tiresias:thresholds=200:promote=1.5": lambda: Queues([200.0], promote=1.5),
    "tiresias:order=gittins:thresholds=300/900:services=100/250/700/2500": lambda: Queues(
        [300.0, 900.0], services=[100.0, 250.0, 700.0, 2500.0]
    ),
}


@pytest.mark.parametrize("policy", CASES)
@pytest.mark.parametrize("seed", TRACES)
def test_simulation_is_that_of_a_dumb_one(seed: int, policy: str) -> None:
    assert simulated_rounds(random_jobs(seed), policy) == finish_rounds(random_jobs(seed), CASES[policy]())


def test_promotion_changes_who_runs() -> None:
    rounds = [finish_rounds(random_jobs(3), Queues([200.0], promote)) for promote in (0.0, 1.5)]

    assert rounds[0] != rounds[1]


@pytest.mark.parametrize("name", ["tiresias:promote=2", "tiresias:order=gittins"])
@pytest.mark.parametrize("problem", ["random", "no jobs", "sizes"])
def test_variants_keep_nothing_but_their_memory(name: str, problem: str) -> None:
    CHECKS["memory"](policy_from(name), problems(seed=0)[problem])


def test_gittins_learns_the_services_of_jobs_that_end() -> None:
    policy = policy_from("tiresias:order=gittins:thresholds=100")
    jobs = AllocationProblem.of(
        "ab", ["v"], [1], [[1.0]] * 2, attained_gpu_s=[40.0, 10.0], steps_remaining=[60.0, 490.0]
    )
    rest = AllocationProblem.of("b", ["v"], [1], [[1.0]], attained_gpu_s=20.0, memory=policy.allocate(jobs).memory)

    assert json.loads(policy.allocate(rest).memory)["past"] == [100.0]


def test_the_gittins_index_prefers_the_job_that_is_likely_to_end() -> None:
    """Of S in {10, 20, 100} with a quantum of 20: 2/3 / (50/3) = 0.04 at 0, and 1/2 / (30/2) = 0.033 at 10."""
    problem = AllocationProblem.of("ab", ["v"], [1], [[1.0]] * 2, attained_gpu_s=[10.0, 0.0])

    share = policy_from("tiresias:order=gittins:thresholds=20:services=10/20/100").allocate(problem).share

    assert share[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tiresias:order=lifo", "order must be 'start' or 'gittins'"),
        ("tiresias:promote=-1", "promote must be finite"),
        ("tiresias:thresholds=900/300", "thresholds must be ascending"),
        ("tiresias:thresholds=few", "got 'few'"),
        ("tiresias:services=0", "services must be"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        policy_from(text)
