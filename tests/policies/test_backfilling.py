"""EASY and conservative backfilling, against their definitions: the jobs that start delay no reservation."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.configurations import Size
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.backfilling import JobStarts
from gavelpy.policies.base import policy_from
from gavelpy.policies.easy_backfilling import reservation
from tests.policies.queue_simulator import GPUS, Choose, DumbJob, finish_rounds, random_jobs, simulated_rounds

FEW = 4
TRACES = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]
NAMES = ["easy_backfilling", "conservative_backfilling"]


def first_start(running: list[DumbJob], job: DumbJob) -> int:
    """Rounds from now until enough GPUs are free for the job if only these run, to their ends."""
    rounds = 0
    while job.gpus > GPUS - sum(one.gpus for one in running if one.left > rounds):
        rounds += 1
    return rounds


def easy(present: list[DumbJob], now: int) -> list[DumbJob]:
    """A job starts if it fits and the first that waits would start as early without it."""
    chosen = [job for job in present if job.is_running]
    head = None
    for job in present:
        if job in chosen:
            continue
        fits = first_start(chosen, job) == 0
        if fits and (head is None or first_start([*chosen, job], head) == first_start(chosen, head)):
            chosen.append(job)
        elif head is None:
            head = job
    return chosen


def conservative(present: list[DumbJob], now: int) -> list[DumbJob]:
    """Every job in a table of the free GPUs of the next 300 rounds, at the first place for all its rounds."""
    free = [GPUS] * 300
    chosen = []
    for job in sorted(present, key=lambda job: not job.is_running):
        at = next(k for k in range(300) if min(free[k : k + job.left]) >= job.gpus)
        for k in range(at, at + job.left):
            free[k] -= job.gpus
        chosen += [job] if at == 0 else []
    return chosen


DUMB: dict[str, Choose] = {"easy_backfilling": easy, "conservative_backfilling": conservative}


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("seed", TRACES)
def test_simulation_is_that_of_a_dumb_one(seed: int, policy: str) -> None:
    assert simulated_rounds(random_jobs(seed), policy) == finish_rounds(random_jobs(seed), DUMB[policy])


@pytest.mark.parametrize("seed", TRACES)
def test_conservative_backfilling_delays_no_job_for_later_ones(seed: int) -> None:
    ends = finish_rounds(random_jobs(seed), conservative)
    first = {f"j{k}": finish_rounds(random_jobs(seed)[: k + 1], conservative)[f"j{k}"] for k in range(len(ends))}

    assert all(ends[job] <= first[job] for job in ends)


def random_cluster(seed: int) -> AllocationProblem:
    """Jobs of which some hold GPUs, on two types, some too small for some gangs."""
    rng = np.random.default_rng(seed)
    J = int(rng.integers(4, 14))
    counts, gpus = rng.integers(2, 9, 2), rng.choice([1, 1, 2, 4], J)
    held, left = np.full(J, -1), counts.copy()
    for job in range(J // 2):
        kind = int(rng.integers(0, 2))
        if gpus[job] <= left[kind]:
            held[job], left[kind] = kind, left[kind] - gpus[job]
    return AllocationProblem.of(
        [f"j{k}" for k in range(J)], ["v100", "k80"], counts, rng.uniform(0.5, 4.0, (J, 2)), gpus=gpus,
        steps_remaining=rng.uniform(10.0, 500.0, J), gpu_type_held=held,
    ).with_whole_gangs()  # fmt: skip


def first_reservation_s(problem: AllocationProblem) -> tuple[str, float]:
    """The first waiting job that fits nowhere among those in order, and when it would start by the jobs that run."""
    starts = JobStarts(problem)
    for job in starts.waiting:
        free = [t for t in starts.by_speed(job) if starts.gpus[job] <= starts.free[t]]
        if not free:
            return problem.job_ids[job], reservation(starts, job)[0]
        starts.start(job, free[0])
    return "", 0.0


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] * (s >= 40)) for s in range(1000)])
def test_easy_backfilling_never_delays_the_first_reservation(seed: int) -> None:
    problem = random_cluster(seed)
    head, at_s = first_reservation_s(problem)
    share = policy_from("easy_backfilling").allocate(problem).share
    runs, gpu_type = np.nonzero(share)

    starts = JobStarts(problem)
    for job, kind in zip(runs.tolist(), gpu_type.tolist(), strict=True):
        if problem.gpu_type_held[job] < 0:
            starts.start(job, kind)

    assert (starts.free >= 0).all()
    assert not head or reservation(starts, problem.job_ids.index(head))[0] <= at_s + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_refused_by_name(name: str) -> None:
    problem = AllocationProblem.of("ab", ["v100"], [4], [[1.0]] * 2).with_sizes({"a": [Size(2, efficiency=0.9)]})

    with pytest.raises(InvalidInput, match=f"policy '{name}' does not use sizes"):
        policy_from(name).allocate(problem)
