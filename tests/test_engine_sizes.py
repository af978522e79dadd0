"""The engine with jobs of several sizes: the library's answer, by serial and size; with pairs, probes and classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.engine import SHARE_UNIT, Engine
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.mechanism.commands import EstimateThroughput, SizesOfJobs, SolveAllocation, Tier
from gavelpy.mechanism.events import AllocationSolved
from gavelpy.model.configurations import Size
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, policy_named, registered, uses_of
from tests.test_engine_pairs import TABLE

TYPES = ("v100", "k80")


def make_question(seed: int, jobs: int = 6) -> SolveAllocation:
    """A request about jobs 10, 11, ...; every second one can also run on 2 or 4 GPUs, at random rates."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(1.0, 5.0, (jobs, 2))
    problem = AllocationProblem.of([f"j{n}" for n in range(jobs)], TYPES, [6, 4], rates)
    rows, gpus = np.repeat(np.arange(0, jobs, 2), 2), np.tile([2, 4], (jobs + 1) // 2)
    more = rates[rows] * gpus[:, None] * rng.uniform(0.4, 1.0, (len(rows), 2))
    return SolveAllocation(1, problem, 10 + np.arange(jobs), sizes=SizesOfJobs(rows, gpus, more))


def solved(engine: Engine, question: SolveAllocation) -> AllocationSolved:
    answer = engine.solve(question)
    assert isinstance(answer, AllocationSolved)
    return answer


def gpus_used(question: SolveAllocation, answer: AllocationSolved) -> list[float]:
    used = np.zeros(2)
    gpus = answer.sizes if len(answer.sizes) else question.problem.gpus_asked[answer.jobs - 10]
    np.add.at(used, answer.gpu_type, answer.share * gpus)
    np.add.at(used, answer.pair_gpu_type, answer.pair_share)
    return used.tolist()


USERS = sorted(name for name in registered() if ProblemInput.SIZES in (uses_of(policy_named(name)) or ()))


@pytest.mark.parametrize("policy", USERS)
@pytest.mark.parametrize("seed", range(3))
def test_shares_are_those_of_the_library_for_the_same_sizes(policy: str, seed: int) -> None:
    question = make_question(seed)
    assert question.sizes is not None
    named: dict[str, list[Size]] = {}
    for row, gpus, rates in zip(*(column.tolist() for column in vars(question.sizes).values()), strict=True):
        named.setdefault(f"j{row}", []).append(Size(gpus, dict(zip(TYPES, rates, strict=True))))

    answer = solved(Engine(policy_named(policy)), question)

    whole = policy_named(policy).allocate(question.problem.with_sizes(named)).by_size().reset_index()
    shares = zip(*(getattr(answer, name).tolist() for name in ("jobs", "sizes", "gpu_type", "share")), strict=True)
    found = {(f"j{job - 10}", gpus, TYPES[kind]): share for job, gpus, kind, share in shares}
    expected = {
        (row["job"], int(row["gpus"]), kind): row[kind]
        for row in whole.to_dict("records")
        for kind in TYPES
        if row[kind] >= SHARE_UNIT
    }
    assert found == pytest.approx(expected, abs=2 * SHARE_UNIT)


@pytest.mark.parametrize("policy", sorted({"isolated", "allox", "gandiva", "min_cost", "strategy_proof"}))
def test_a_policy_that_does_not_use_sizes_refuses_those_jobs_by_name_and_answers_for_the_others(policy: str) -> None:
    question = make_question(0)

    answer = solved(Engine(policy_named(policy)), question)

    assert answer.refused_jobs.tolist() == [10, 12, 14]
    assert set(answer.refused_why) == {f"policy {policy!r} does not use sizes"}
    assert set(answer.jobs.tolist()) <= {11, 13, 15}
    assert len(answer.jobs)


@pytest.mark.parametrize("seed", range(5))
def test_classes_share_the_gpus_without_exceeding_them(seed: int) -> None:
    whole = make_question(seed)
    order = np.random.default_rng(seed).permutation(6)
    tiers = tuple(Tier(np.sort(rows), np.zeros(2, dtype=np.int64)) for rows in (order[:3], order[3:]))

    answer = solved(Engine(policy_named("max_min_fairness")), replace(whole, tiers=tiers))

    used = np.array(gpus_used(whole, answer))
    assert (used <= whole.problem.gpu_counts + 1e-6).all()
    time = np.zeros(6)
    np.add.at(time, answer.jobs - 10, answer.share)
    assert (time <= 1 + 1e-6).all()


def test_jobs_with_several_sizes_share_gpus_with_no_other_job() -> None:
    question = make_question(1, jobs=4)
    packed = replace(question, packing=True, job_types=("ant", "bee", "ant", "bee"))
    crowded = replace(packed, problem=replace(packed.problem, capacity=np.array([[1000], [0]])))

    answer = solved(Engine(policy_named("max_min_fairness"), throughputs=TABLE), crowded)

    assert set(answer.pair_jobs.ravel().tolist()) <= {11, 13}
    assert max(gpus_used(crowded, answer)) <= 1 + 1e-6


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_jobs_of_one_size_are_probed_next_to_jobs_with_several(seed: int, packing: bool) -> None:
    question = make_question(seed)
    left, few = np.full(6, 1e6), np.array([[2000], [1000]])
    long = replace(question.problem, capacity=few, steps_remaining=left, steps_total=left)
    kinds = ("ant", "newt", "crab", "ant", "bee", "olm")
    asked = replace(question, problem=long, packing=packing, job_types=kinds if packing else ())
    engine = Engine(policy_named("max_min_fairness"), estimator=ThroughputEstimator(TABLE), profile_budget_s=600.0)
    engine.estimate(EstimateThroughput(np.array([11, 13, 15]), kinds[1::2], np.ones(3, dtype=np.int64), TYPES))

    answer = solved(engine, asked)

    used = np.array(gpus_used(asked, answer))
    assert (used <= long.gpu_counts + 1e-6).all()
    assert set() < {job for job, _ in engine.profiled.alone} <= {11, 15}, engine.shadow_prices
    time = np.zeros(6)
    np.add.at(time, answer.jobs - 10, answer.share)
    np.add.at(time, answer.pair_jobs.ravel() - 10, np.repeat(answer.pair_share, 2))
    assert (time <= 1 + 1e-6).all()
    assert {10, 12, 14} <= set(answer.jobs.tolist())
