"""ElasticFlow's admission against plain loops, its promises over whole runs, and the order in which GPUs are given."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies import elasticflow
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.elasticflow import ElasticFlow
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

SLOT_S = 100.0
POLICY = ElasticFlow(slot_s=SLOT_S)
SIZES = (1, 2, 4, 8)
FEW = 20
TRACES = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]


@dataclass
class DumbJob:
    """A job that runs at size x efficiency^log2(size) on one type; slots of arrival and deadline."""

    name: str
    arrival: int
    deadline: int
    left: float
    efficiency: float

    def rate(self, gpus: int) -> float:
        return gpus * self.efficiency ** SIZES.index(gpus) if gpus else 0.0


def random_jobs(seed: int, count: int, *, arrivals: int) -> list[DumbJob]:
    rng = np.random.default_rng(seed)
    jobs = []
    for k, arrival in enumerate(np.sort(rng.integers(0, arrivals + 1, count)).tolist()):
        left, slots = float(rng.integers(1, 40)) * SLOT_S, int(rng.integers(1, 25))
        jobs.append(DumbJob(f"j{k:02}", arrival, arrival + slots, left, float(rng.uniform(0.7, 1.0))))
    return jobs


def problem_of(jobs: list[DumbJob], now: int, gpus: int, memory: bytes = b"") -> AllocationProblem:
    problem = AllocationProblem.of(
        [job.name for job in jobs], ["v100"], [gpus], np.ones((len(jobs), 1)),
        steps_remaining=[job.left for job in jobs], age_s=[(now - job.arrival) * SLOT_S for job in jobs],
        deadline_s=[(job.deadline - now) * SLOT_S for job in jobs], memory=memory,
    )  # fmt: skip
    return problem.with_sizes(
        {job.name: [Size(g, efficiency=job.efficiency**k) for k, g in enumerate(SIZES) if k] for job in jobs}
    )


def dumb_plan(job: DumbJob, free: list[int]) -> list[int] | None:
    """The GPUs in each slot by progressive filling; None = the deadline cannot be met."""
    for level in SIZES:
        plan: list[int] = []
        done = 0.0
        for slot in range(job.deadline):
            plan.append(max([g for g in SIZES if g <= min(level, free[slot])], default=0))
            done += job.rate(plan[-1]) * SLOT_S
            if done >= job.left * (1 - 1e-9):
                return plan
    return None


def without(free: list[int], plan: list[int]) -> list[int]:
    return [f - (plan[slot] if slot < len(plan) else 0) for slot, f in enumerate(free)]


def dumb_plans(jobs: list[DumbJob], gpus: int) -> dict[str, list[int]]:
    """Plans of the admitted jobs, which all arrive now."""
    plans: dict[str, list[int]] = {}
    admitted: list[DumbJob] = []
    for job in jobs:
        free = [gpus] * 50
        for plan in plans.values():
            free = without(free, plan)
        found = dumb_plan(job, free)
        if found is not None:
            plans[job.name] = found
            admitted.append(job)
            continue
        again: dict[str, list[int]] = {}
        free = [gpus] * 50
        for each in sorted([*admitted, job], key=lambda one: (one.deadline, one.name)):
            found = dumb_plan(each, free)
            if found is None:
                break
            again[each.name], free = found, without(free, found)
        else:
            plans = again
            admitted.append(job)
    return plans


@pytest.mark.parametrize("seed", TRACES)
def test_admission_is_that_of_plain_loops(seed: int) -> None:
    jobs = random_jobs(seed, 10, arrivals=0)

    answer = POLICY.allocate(problem_of(jobs, 0, gpus=6))

    plans = dumb_plans(jobs, gpus=6)
    assert set(answer.refused) == {job.name for job in jobs} - plans.keys()
    gpus = dict.fromkeys(plans, 0.0) | answer.by_size()["gpus"].to_dict()
    assert all(gpus[name] >= plan[0] for name, plan in plans.items())


def run(jobs: list[DumbJob], gpus: int) -> tuple[set[str], dict[str, int]]:
    """All jobs that were ever promised their deadlines, and the slot at whose start each job is over."""
    memory, promised, over = b"", set[str](), dict[str, int]()
    for now in range(60):
        present = [job for job in jobs if job.arrival <= now and job.name not in over]
        problem = problem_of(present, now, gpus, memory)
        answer: Allocation = POLICY.allocate(problem)
        memory = answer.memory
        promised |= {job.name for job in present} - set(answer.refused)
        rates = dict(zip(problem.job_ids, answer.rate_steps_per_s.tolist(), strict=True))
        assert answer.certificate.violation == 0
        for job in present:
            job.left -= rates[job.name] * SLOT_S  # type: ignore[index]  # ids are strings
            if job.left <= 1e-6:
                over[job.name] = now + 1
    return promised, over


@pytest.mark.parametrize("seed", TRACES)
def test_admitted_jobs_meet_their_deadlines_whatever_arrives_later(seed: int) -> None:
    jobs = random_jobs(seed, 12, arrivals=12)

    promised, over = run(jobs, gpus=6)

    assert promised
    assert all(over[job.name] <= job.deadline for job in jobs if job.name in promised)


def test_refuses_with_a_reason() -> None:
    problem = AllocationProblem.of(
        "abc", ["v100"], [1], np.ones((3, 1)), steps_remaining=[500.0, 500.0, 900.0], deadline_s=[700.0, 700.0, 800.0]
    )
    assert dict(POLICY.allocate(problem).refused) == {
        "b": "GPUs before its deadline are promised to jobs that were admitted",
        "c": "its deadline is in 800 s, too early on any GPUs",
    }


def test_a_later_job_with_an_earlier_deadline_is_planned_before() -> None:
    problem = AllocationProblem.of(
        "ab", ["v100"], [1], np.ones((2, 1)), steps_remaining=[500.0, 200.0], deadline_s=[800.0, 300.0]
    )
    answer = POLICY.allocate(problem)

    assert not answer.refused
    assert answer.share[:, 0].tolist() == [0, 1]


def test_jobs_without_deadlines_get_what_is_left() -> None:
    problem = AllocationProblem.of(
        "abc", ["v100"], [2], np.ones((3, 1)), steps_remaining=500.0, deadline_s=[np.inf, np.inf, 600.0]
    )

    assert POLICY.allocate(problem).share[:, 0].tolist() == [1, 0, 1]


def test_gpus_that_are_left_go_to_the_highest_return() -> None:
    """a gains 0.5 steps/s by its second GPU and b 0.9, of 1 on the first."""
    problem = AllocationProblem.of("ab", ["v100"], [3], np.ones((2, 1)), steps_remaining=500.0, deadline_s=900.0)
    problem = problem.with_sizes({"a": [Size(2, efficiency=0.75)], "b": [Size(2, efficiency=0.95)]})

    assert POLICY.allocate(problem).by_size()["gpus"].to_dict() == {"a": 1.0, "b": 2.0}


def test_a_job_that_was_slower_than_stated_is_still_finished_soon() -> None:
    problem = AllocationProblem.of(
        "ab", ["v100"], [1], np.ones((2, 1)), steps_remaining=300.0, deadline_s=[300.0, 900.0]
    )
    first = POLICY.allocate(problem)
    later = POLICY.allocate(
        replace(problem, age_s=np.full(2, 200.0), deadline_s=problem.deadline_s - 200.0, memory=first.memory)
    )

    assert later.share[:, 0].tolist() == [1, 0]
    assert not later.refused


def test_admitted_jobs_stay_admitted_if_their_plans_are_too_large_for_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = AllocationProblem.of(
        "ab", ["v100"], [1], np.ones((2, 1)), steps_remaining=300.0, deadline_s=[700.0, 800.0]
    )
    monkeypatch.setattr(elasticflow, "MEMORY_BYTES_MAX", 70)
    first = POLICY.allocate(problem)
    later = POLICY.allocate(replace(problem, memory=first.memory))

    assert first.memory == b'{"plans":{"a":[0.0,0,[1000],[3]],"b":[0.0,0,[],[]]},"refused":[]}'
    assert not later.refused
    assert later.share[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize("parameters", [{"slot_s": -1.0}, {"slack_s": float("inf")}])
def test_refuses_parameters(parameters: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="must be finite and >= 0"):
        ElasticFlow(**parameters)


def test_a_scheduler_sets_slots_and_slack() -> None:
    assert ElasticFlow().over_rounds(60.0, 15.0, 0.0) == ElasticFlow(slot_s=60.0, slack_s=75.0, turn_s=15.0)
    assert POLICY.over_rounds(60.0, 15.0, 0.0) == POLICY


def test_simulates_a_trace() -> None:
    table = published_throughputs()
    options = GeneratorOptions(6, rate_jobs_per_h=6.0, deadlines={2.0: 1.0})
    trace = generate(options, table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("elasticflow")], throughputs=table)["elasticflow"]

    assert found.metrics.jobs_unfinished == found.metrics.deadline_misses
