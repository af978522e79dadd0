"""POP: its parts against problems made by hand and a plain linear program, its balance, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import PolicyRun, policy_from, uses_of
from gavelpy.policies.contract import CHECKS, problems
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.pop import Pop
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

FEW = 3
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(100)]


def random_problem(seed: int, jobs: int = 40) -> AllocationProblem:
    rng = np.random.default_rng(seed)
    rates = rng.uniform(1.0, 9.0, (jobs, 1)) * rng.uniform(0.1, 1.0, (jobs, 3))
    return AllocationProblem.of(
        [f"j{row}" for row in range(jobs)], ["v100", "p100", "k80"], rng.integers(4, 12, 3), rates,
        gpus=rng.choice([1, 1, 2, 4], jobs), weight=rng.choice([1.0, 2.0], jobs),
    )  # fmt: skip


def parts_of(memory: bytes, problem: AllocationProblem) -> np.ndarray:
    """The part of each job, (J,)."""
    kept = json.loads(memory)
    return np.array([kept[job] for job in problem.job_ids])


def best_level(rates: np.ndarray, gpus: np.ndarray, weight: np.ndarray, counts: np.ndarray, whole: np.ndarray) -> float:
    """The largest minimum of g r(x) / (w r(x_equal)) by a plain linear program; `whole` are the GPUs of r(x_equal)."""
    J, T = rates.shape
    scale = gpus / (weight * (rates @ whole / whole.sum()))
    level = np.hstack([-(scale[:, None, None] * np.eye(J)[:, :, None] * rates).reshape(J, J * T), np.ones((J, 1))])
    time = np.hstack([np.kron(np.eye(J), np.ones(T)), np.zeros((J, 1))])
    load = np.hstack([np.kron(gpus, np.eye(T)), np.zeros((T, 1))])
    found = linprog(
        -np.eye(J * T + 1)[-1], np.vstack([level, time, load]), np.concatenate([np.zeros(J), np.ones(J), counts])
    )
    return float(found.x[-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_each_part_has_the_best_level_of_a_plain_program(seed: int) -> None:
    p = random_problem(seed)
    answer = Pop(k=3, jobs_min=1, seed=seed).allocate(p)
    scale = p.gpus_asked / (p.weight * (p.rate_alone_steps_per_s @ p.gpu_counts / p.gpu_counts.sum()))

    part = parts_of(answer.memory, p)
    for one in range(3):
        mine = part == one
        rates = p.rate_alone_steps_per_s[mine]
        best = best_level(rates, p.gpus_asked[mine], p.weight[mine], p.gpu_counts / 3, p.gpu_counts)
        assert (scale * answer.rate_steps_per_s)[mine].min() == pytest.approx(best, rel=1e-3)  # thousandths of a GPU


@pytest.mark.parametrize("seed", SEEDS)
def test_joined_shares_are_feasible_and_no_better_than_the_exact_answer(seed: int) -> None:
    p = random_problem(seed)
    scale = p.gpus_asked / (p.weight * (p.rate_alone_steps_per_s @ p.gpu_counts / p.gpu_counts.sum()))
    answer, exact = Pop(k=4, jobs_min=1).allocate(p), MaxMinFairness().allocate(p)

    assert answer.certificate.violation <= 1e-9
    assert (scale * answer.rate_steps_per_s).min() <= exact.certificate.objective * (1 + 1e-9)
    assert (scale * answer.rate_steps_per_s).min() >= 0.5 * exact.certificate.objective  # of 40 jobs, in parts of 10


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("problem", ["random", "pairs", "sizes"])
def test_small_parts_keep_the_contract(check: str, problem: str) -> None:
    CHECKS[check](Pop(k=3, jobs_min=1), problems(seed=0)[problem])


def test_with_few_jobs_the_answer_is_the_exact_one() -> None:
    p = random_problem(0, jobs=31)

    assert Pop().allocate(p).share.tobytes() == MaxMinFairness().allocate(p).share.tobytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_have_equally_many_gpus_requested_up_to_a_gang(seed: int) -> None:
    p = random_problem(seed)

    part = parts_of(Pop(k=4, jobs_min=1, seed=seed).allocate(p).memory, p)

    asked = np.bincount(part, weights=p.gpus_asked, minlength=4)
    assert asked.max() - asked.min() <= p.gpus_asked.max()


def test_jobs_keep_their_parts_while_others_come_and_go() -> None:
    p, policy = replace(random_problem(1), gpus_asked=np.ones(40), demand=np.full((40, 1), 1000)), Pop(k=2, jobs_min=1)
    first = policy.allocate(p)
    before = dict(zip(p.job_ids, parts_of(first.memory, p).tolist(), strict=True))
    later = replace(p, job_ids=(*p.job_ids[2:], "new-1", "new-2"), memory=first.memory)

    after = dict(zip(later.job_ids, parts_of(policy.allocate(later).memory, later).tolist(), strict=True))

    assert all(after[job] == before[job] for job in p.job_ids[2:])


def test_uneven_parts_are_dealt_again() -> None:
    p, policy = random_problem(1), Pop(k=2, jobs_min=1)
    one_part = json.dumps(dict.fromkeys(p.job_ids, 0)).encode()

    again = policy.allocate(replace(p, memory=one_part))

    assert again.share.tobytes() == policy.allocate(p).share.tobytes()


def test_another_seed_deals_other_parts() -> None:
    p = random_problem(3)

    assert len({Pop(jobs_min=1, seed=seed).allocate(p).memory for seed in range(5)}) == 5


def test_a_pair_of_two_parts_is_not_used() -> None:
    p = random_problem(4, jobs=12)
    rows = [(i, k) for i in range(12) for k in range(i) if p.gpus_asked[i] == p.gpus_asked[k]]
    paired = p.with_pairs(rows, 0.95 * p.member_rate_steps_per_s[np.array(rows)])
    answer = Pop(k=2, jobs_min=1).allocate(paired)

    part, members = parts_of(answer.memory, paired), paired.configuration_members()
    used = [members[row] for row in np.flatnonzero(answer.share.any(axis=1)) if len(members[row]) == 2]
    assert used
    assert all(part[one] == part[other] for one, other in used)


def test_parameters_of_the_wrapped_policy_are_passed_on() -> None:
    p = random_problem(5, jobs=20)

    wrapped = policy_from("pop:policy=max_sum_throughput+normalised=1:k=3")

    assert wrapped == Pop(policy="max_sum_throughput+normalised=1", k=3)
    assert (
        wrapped.allocate(p).share.tobytes()
        == policy_from("max_sum_throughput:normalised=1").allocate(p).share.tobytes()
    )
    assert uses_of(wrapped) == uses_of(policy_from("max_sum_throughput:normalised=1"))


def test_floors_for_deadlines_are_joined() -> None:
    p = replace(random_problem(6), deadline_s=np.full(40, 100.0), steps_remaining=np.full(40, 10.0))

    answer = policy_from("pop:policy=min_cost+deadlines=1:k=2:jobs_min=1").allocate(p)

    assert (answer.rate_steps_per_s >= answer.rate_floor_steps_per_s * (1 - 1e-9)).all()
    assert answer.rate_floor_steps_per_s.any()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pop:k=0", "k must be a whole number >= 1"),
        ("pop:jobs_min=0.5", "jobs_min must be a whole number >= 1"),
        ("pop:seed=-1", "seed must be a whole number"),
        ("pop:policy=pop", "other than pop"),
        ("pop:policy=fifo", "policy must optimise shares"),
        ("pop:policy=sia", "policy must optimise shares"),
        ("pop:policy=lottery", "lottery"),
        ("pop:policy=max_sum_throughput+speed=1", "no parameter 'speed'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        policy_from(text)


@pytest.mark.parametrize("policy", ["mine.py", "mine.py+Greedy", "mine.py:Greedy", "/tmp/mine.py:Greedy"])
def test_no_file_is_executed(policy: str) -> None:
    """Clients of the scheduler may set parameters."""
    with pytest.raises(InvalidInput, match="not in a file"):
        Pop(policy=policy)


def test_what_the_wrapped_policy_does_not_use_is_refused() -> None:
    p = random_problem(7, jobs=20).with_sizes({"j0": [Size(8, efficiency=0.9)]})

    with pytest.raises(InvalidInput, match="policy 'pop' does not use sizes"):
        Pop(policy="min_cost", jobs_min=1).allocate(p)


def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(24, rate_jobs_per_h=60.0), table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("pop:k=2:jobs_min=4")], throughputs=table)

    assert found["pop:k=2:jobs_min=4"].metrics.jobs_unfinished == 0
