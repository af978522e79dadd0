"""Sia's choices against its formula over all combinations, and what it knows of the past."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.sia import Sia
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

TYPES = ["a100", "t4"]


def elastic(seed: int, jobs: int = 3) -> AllocationProblem:
    """Jobs with the sizes 1, 2 and 4, some of which hold GPUs."""
    rng = np.random.default_rng(seed)
    ids = [f"j{row}" for row in range(jobs)]
    problem = AllocationProblem.of(
        ids, TYPES, rng.integers(2, 6, 2), rng.uniform(1.0, 9.0, (jobs, 2)),
        age_s=rng.uniform(100.0, 5_000.0, jobs), restart_s=rng.choice([0.0, 60.0, 300.0], jobs),
        gpu_type_held=rng.integers(-1, 2, jobs), gpus_held=rng.choice([1, 2, 4], jobs),
    )  # fmt: skip
    return problem.with_sizes({job: [Size(2, efficiency=0.9), Size(4, efficiency=0.7)] for job in ids})


def places(problem: AllocationProblem) -> list[tuple[int, float, int, float]]:
    """All places as (job, GPUs, type, rate), by plain loops."""
    found = []
    for m, job in enumerate(problem.member_job.tolist()):
        gpus = float(problem.gpus_occupied[problem.member_configuration[m]])
        for t, rate in enumerate(problem.member_rate_steps_per_s[m].tolist()):
            if rate > 0 and gpus <= problem.gpu_counts[t]:
                found.append((job, gpus, t, rate))
    return found


def value_of(problem: AllocationProblem, place: tuple[int, float, int, float], sia: Sia) -> float:
    """The value of a place by the formula, for jobs that have started once, if at all."""
    job, gpus, t, rate = place
    own = [one for one in places(problem) if one[0] == job]
    goodput = rate / min(one[3] for one in own) * min(one[1] for one in own)
    held, age, restart = int(problem.gpu_type_held[job]), problem.age_s[job], problem.restart_s[job]
    if held >= 0 and (held, problem.gpus_held[job]) != (t, gpus) and restart > 0:
        goodput *= min(max((age - restart) / (age + restart), 1e-3), 1.0)
    return sia.waiting - goodput**sia.power if sia.power < 0 else sia.waiting + goodput**sia.power


@pytest.mark.parametrize("seed", range(30))
def test_chooses_the_most_valuable_combination(seed: int) -> None:
    problem, sia = elastic(seed), Sia(power=(-0.5, 0.5)[seed % 2])
    answer = sia.allocate(problem)

    most = {j: max(2 * problem.gpus_held[j] if problem.gpu_type_held[j] >= 0 else 1, 1) for j in range(3)}
    of_jobs: list[list[tuple[int, float, int, float] | None]] = [
        [None, *(one for one in places(problem) if one[0] == j and one[1] <= most[j])] for j in range(3)
    ]
    best = 0.0
    for combination in itertools.product(*of_jobs):
        chosen = [one for one in combination if one is not None]
        if all(sum(one[1] for one in chosen if one[2] == t) <= problem.gpu_counts[t] for t in range(2)):
            best = max(best, sum(value_of(problem, one, sia) for one in chosen))
    assert answer.certificate.objective == pytest.approx(best, rel=1e-6)
    assert answer.certificate.gap <= 1e-6


def after(problem: AllocationProblem, answer: Allocation) -> AllocationProblem:
    """The problem a minute later, when every job runs where the answer put it."""
    held, gpus = np.full(problem.job_count, -1), np.zeros(problem.job_count)
    assert answer.next_round is not None
    for row, t in answer.next_round.tolist():
        job = int(problem.member_job[np.searchsorted(problem.member_configuration, row)])
        held[job], gpus[job] = t, problem.gpus_occupied[row]
    return replace(problem, gpu_type_held=held, gpus_held=gpus, memory=answer.memory, age_s=problem.age_s + 60.0)


def test_a_job_grows_at_most_twofold_in_a_round() -> None:
    problem = AllocationProblem.of("a", ["a100"], [8], [[1.0]])
    problem = problem.with_sizes({"a": [Size(gpus, efficiency=0.9) for gpus in (2, 4, 8)]})
    sizes = []
    for _ in range(5):
        answer = Sia().allocate(problem)
        sizes.append(float((problem.gpus_occupied @ answer.share)[0]))
        problem = after(problem, answer)

    assert sizes == [1, 2, 4, 8, 8]


def test_a_job_that_was_preempted_may_have_as_many_gpus_as_before() -> None:
    problem = AllocationProblem.of("a", ["a100"], [8], [[1.0]])
    problem = problem.with_sizes({"a": [Size(gpus, efficiency=0.9) for gpus in (2, 4, 8)]})
    for _ in range(3):
        problem = after(problem, Sia().allocate(problem))
    problem = replace(problem, memory=Sia().allocate(problem).memory, gpu_type_held=np.array([-1]))

    assert float((problem.gpus_occupied @ Sia().allocate(problem).share)[0]) == 8


def test_starts_are_counted_so_that_a_job_that_moved_often_stays() -> None:
    problem = AllocationProblem.of(
        "a", TYPES, [1, 1], [[1.3, 1.0]], age_s=600.0, restart_s=60.0, gpu_type_held=1, gpus_held=1
    )
    first = Sia().allocate(problem)
    memory = b'{"a":[1,1,1,5]}'  # five starts: half of its time was spent on them
    later = Sia().allocate(replace(problem, memory=memory))

    assert first.share.tolist() == [[1.0, 0.0]]  # f = 540 / 660 = 0.82, and 0.82 x 1.3 = 1.06: it is worth a move
    assert later.share.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"power": 0.0}, "power must be in"), ({"power": 2.0}, "power must be in"), ({"waiting": 0.5}, "waiting must be")],
)
def test_refuses_parameters(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Sia(**parameters)


@pytest.mark.slow
def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(20, rate_jobs_per_h=6.0), table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("sia")], throughputs=table)["sia"]

    assert found.metrics.jobs_unfinished == 0
