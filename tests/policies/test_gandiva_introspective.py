"""Gandiva's trials with true rates that differ from the expected ones, growth, shrinking and migration."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.contract import CHECKS, problems
from gavelpy.policies.gandiva_introspective import GandivaIntrospective
from gavelpy.policies.isolated import Isolated
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

POLICY = GandivaIntrospective(trial_s=10.0)
STEP_S = 10.0
FEW = 3
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(100)]


def crowded(seed: int, jobs: int = 6) -> tuple[AllocationProblem, np.ndarray]:
    """Six jobs on two GPUs with all pairs, which promise 0.55 to 1 of the rates; and what pairs really keep, (C,)."""
    rng = np.random.default_rng(seed)
    p = AllocationProblem.of(
        [f"j{row}" for row in range(jobs)], ["v100"], [2], rng.uniform(1.0, 9.0, (jobs, 1)), steps_remaining=1e6
    )
    pairs = np.array([(i, k) for i in range(jobs) for k in range(i + 1, jobs)])
    p = p.with_pairs(pairs.tolist(), p.member_rate_steps_per_s[pairs] * rng.uniform(0.55, 1.0, (len(pairs), 2, 1)))
    return p, rng.choice([0.3, 0.8], p.configuration_count)


def after(p: AllocationProblem, answer: Allocation, truth: np.ndarray) -> AllocationProblem:
    """The problem a while later: each group ran for its share of STEP_S, a pair with its true rates."""
    share = answer.share[p.member_configuration, 0]
    alone = p.rate_alone_steps_per_s[p.member_job, 0]
    rate = np.where(p.member_count[p.member_configuration] == 2, truth[p.member_configuration], 1.0) * alone
    steps = np.bincount(p.member_job, weights=rate * share * STEP_S, minlength=p.job_count)
    ran = np.bincount(p.member_job, weights=share * STEP_S, minlength=p.job_count)
    return replace(
        p, steps_remaining=p.steps_remaining - steps, attained_gpu_s=p.attained_gpu_s + ran * p.gpus_asked,
        gpu_type_held=np.where(ran > 0, 0, -1), memory=answer.memory,
    )  # fmt: skip


def pairs_in(p: AllocationProblem, answer: Allocation) -> list[int]:
    rows = np.flatnonzero(answer.share[:, 0])
    return [row for row in rows.tolist() if p.member_count[row] == 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_that_stay_are_those_that_truly_gain(seed: int) -> None:
    p, truth = crowded(seed)
    undone: set[int] = set()
    for _ in range(120):
        answer = POLICY.allocate(p)
        assert not undone & set(pairs_in(p, answer)), "a pair was tried again"
        row = {(p.job_ids[a], p.job_ids[b]): c for c, (a, *rest) in enumerate(p.configuration_members()) for b in rest}
        kept = json.loads(answer.memory).get("verdicts", []) if answer.memory else []
        undone = {row[a, b] for a, b, is_kept in kept if not is_kept}
        p = after(p, answer, truth)
    found = pairs_in(p, POLICY.allocate(p))

    assert all(2 * truth[row] >= 1.0 for row in found)
    assert all(2 * truth[row] < 1.0 for row in undone)
    left = set(range(p.job_count)) - {job for row in found for job in p.configuration_members()[row]}
    good = [c for c, members in enumerate(p.configuration_members()) if len(members) == 2 and 2 * truth[c] >= 1.0]
    assert len(found) == 3 or not any(set(p.configuration_members()[c]) <= left for c in good), "a good pair is untried"


def test_a_trial_needs_time_to_settle_and_time_to_count() -> None:
    p = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]], steps_remaining=1e6)
    p = p.with_pairs([(0, 1)], [[[3.0], [3.0]]])
    truth = np.array([1.0, 1.0, 0.4])  # both do less than by turns
    shares = []
    for _ in range(4):
        answer = POLICY.allocate(p)
        shares.append(answer.share[:, 0].tolist())
        p = after(p, answer, truth)

    assert shares == [[0, 0, 1], [0, 0, 1], [0.5, 0.5, 0], [0.5, 0.5, 0]]
    assert answer.again_s == np.inf


def test_a_job_that_stands_still_ends_a_pair() -> None:
    p = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]], steps_remaining=1e6)
    p = p.with_pairs([(0, 1)], [[[3.0], [3.0]]])
    p = replace(p, memory=b'{"trials":[["a","b",true,[1000040.0,1000000.0],[0.0,0.0]]]}')
    p = replace(p, attained_gpu_s=np.full(2, 10.0), gpu_type_held=np.zeros(2, dtype=np.int64))

    assert POLICY.allocate(p).share[:, 0].tolist() == [0.5, 0.5, 0.0]


def test_without_pairs_a_crowded_cluster_is_shared_equally() -> None:
    p = problems(seed=0)["crowded"]

    assert POLICY.allocate(p).share.tobytes() == Isolated().allocate(p).share.tobytes()


def test_with_gpus_for_all_each_job_runs_all_the_time_and_none_is_packed() -> None:
    p = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 1.0], [4.0, 1.0]])
    p = p.with_pairs([(0, 1)], [[[3.9, 0.9], [3.9, 0.9]]])

    assert POLICY.allocate(p).share.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_a_job_migrates_to_a_faster_type_that_becomes_free() -> None:
    p = AllocationProblem.of("b", ["v100", "k80"], [1, 1], [[4.0, 1.0]], gpu_type_held=1)

    assert POLICY.allocate(p).share.tolist() == [[1, 0]]


def test_jobs_grow_into_gpus_that_were_idle_twice_and_shrink_at_once() -> None:
    """b gains more per GPU; a new job needs the GPUs."""
    two = AllocationProblem.of("ab", ["v100"], [4], [[1.0], [1.0]])
    two = two.with_sizes({"a": [Size(2, efficiency=0.8)], "b": [Size(2, efficiency=0.95), Size(4, efficiency=0.6)]})
    first = POLICY.allocate(two)
    then = POLICY.allocate(replace(two, memory=first.memory))
    three = AllocationProblem.of("abc", ["v100"], [4], [[1.0]] * 3, gpus=[1, 1, 2], memory=then.memory)
    three = three.with_sizes({"a": [Size(2, efficiency=0.8)], "b": [Size(2, efficiency=0.95)]})
    shrunk = POLICY.allocate(three)

    assert (two.gpus_occupied @ first.share).tolist() == [2.0]
    assert first.again_s == 10.0
    assert {int(g) for g in two.gpus_occupied[then.share[:, 0] > 0]} == {2}
    assert then.again_s == np.inf
    assert sorted(three.gpus_occupied[shrunk.share[:, 0] > 0].tolist()) == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("seed", range(10))
def test_growth_stays_within_what_was_idle_and_raises_no_job_to_a_slower_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = AllocationProblem.of("abc", ["v100", "k80"], rng.integers(3, 9, 2), rng.uniform(1.0, 4.0, (3, 2)))
    sizes = {job: [Size(g, efficiency=float(rng.uniform(0.3, 1.0))) for g in (2, 4)] for job in "abc"}
    p = p.with_sizes(sizes)
    first = POLICY.allocate(p)
    then = POLICY.allocate(replace(p, memory=first.memory))

    assert (p.demand.T @ then.share <= p.capacity.T).all()
    assert (then.rate_steps_per_s >= first.rate_steps_per_s).all()


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("problem", ["pairs", "sizes"])
def test_with_memory_it_keeps_the_contract(check: str, problem: str) -> None:
    p = problems(seed=0)[problem]
    with_memory = replace(p, memory=POLICY.allocate(p).memory)

    if check != "names_mean_nothing":  # the memory has names
        CHECKS[check](POLICY, with_memory)


def test_refuses_parameters() -> None:
    with pytest.raises(InvalidInput, match="trial_s must be finite and at least 1"):
        GandivaIntrospective(trial_s=0.0)


@pytest.mark.slow
def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(16, rate_jobs_per_h=30.0), table, np.random.default_rng(0))
    run = PolicyRun("gandiva_introspective")
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [run], throughputs=table)["gandiva_introspective"]

    assert found.metrics.jobs_unfinished == 0
