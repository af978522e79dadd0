"""The engine with co-location: pairs with a gain become part of the problem, and their shares part of the answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.engine import SHARE_UNIT, Engine
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.estimator.rate_filter import Reading
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.events import AllocationSolved
from gavelpy.mechanism.gpu_memory import GpuMemory
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem, BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import policy_named, registered

TYPES = ("v100", "k80")
RATES = np.array([[4.0, 1.0], [2.0, 2.0], [3.0, 1.0]])
NAMES = ("ant", "bee", "crab")
TABLE = ThroughputTable(
    tuple((name, 1) for name in NAMES),
    TYPES,
    RATES,
    np.zeros(RATES.shape, dtype=np.int64),
    ("",) * 3,
    np.array([[0, 1], [1, 2]]),
    np.array([[[3.2, 0.4], [1.6, 0.4]], [[0.2, 0.2], [0.3, 0.1]]]),
)


def make_question(*job_types: str, packing: bool = True) -> SolveAllocation:
    """A request about jobs 10, 11, ... of these types."""
    rates = RATES[[NAMES.index(name) for name in job_types]]
    problem = AllocationProblem.of([f"j{n}" for n in range(len(job_types))], TYPES, [1, 1], rates)
    return SolveAllocation(1, problem, 10 + np.arange(len(job_types)), packing, job_types if packing else ())


def solved(engine: Engine, question: SolveAllocation) -> AllocationSolved:
    answer = engine.solve(question)
    assert isinstance(answer, AllocationSolved)
    return answer


def spent(answer: AllocationSolved) -> tuple[Floats, Floats]:
    """Time of each of five jobs, alone and co-located (5,), and GPUs in use of each of two types (2,)."""
    share = np.zeros((5, 2))
    np.add.at(share, (answer.jobs - 10, answer.gpu_type), answer.share)
    used = share.sum(axis=0)
    np.add.at(used, answer.pair_gpu_type, answer.pair_share)
    np.add.at(share, (answer.pair_jobs - 10, answer.pair_gpu_type[:, None]), answer.pair_share[:, None])
    return share.sum(axis=1), used


def test_a_pair_that_gains_gets_a_share_and_is_named_by_serial() -> None:
    answer = solved(
        Engine(policy_named("max_min_fairness"), throughputs=TABLE), make_question("ant", "bee", "ant", "bee")
    )

    assert len(answer.pair_share)
    assert (np.abs(answer.pair_jobs[:, 0] - answer.pair_jobs[:, 1]) % 2 == 1).all()
    assert answer.pair_jobs.min() >= 10
    assert (answer.pair_gpu_type == 0).all()
    assert (answer.pair_share / SHARE_UNIT % 1 == 0).all()


@pytest.mark.parametrize(
    ("needed_gib", "shares"),
    [([6.0] * 4, True), ([11.0] * 4, False), ([0.0] * 4, False)],
    ids=["they fit", "they do not fit", "none declared it"],
)
def test_only_jobs_that_fit_together_share_a_gpu(needed_gib: list[float], shares: bool) -> None:
    memory = GpuMemory(np.array(needed_gib), np.array([16.0, 0.0]))
    question = replace(make_question("ant", "bee", "ant", "bee"), memory=memory)

    answer = solved(Engine(policy_named("max_min_fairness"), throughputs=TABLE), question)

    assert bool(len(answer.pair_jobs)) == shares
    assert set(answer.pair_gpu_type.tolist()) <= {0}, "the memory of the other type is not known"


def test_a_kind_of_job_with_two_needs_shares_where_both_fit() -> None:
    memory = GpuMemory(np.array([6.0, 12.0, 6.0, 12.0]), np.array([16.0, 16.0]))
    question = replace(make_question("ant", "ant", "bee", "bee"), memory=memory)

    answer = solved(Engine(policy_named("max_min_fairness"), throughputs=TABLE), question)

    assert {tuple(sorted(row)) for row in answer.pair_jobs.tolist()} == {(10, 12)}


def test_without_packing_the_answer_has_no_pairs() -> None:
    question = make_question("ant", "bee", "ant", packing=False)

    assert not len(solved(Engine(policy_named("max_min_fairness"), throughputs=TABLE), question).pair_share)


def test_an_engine_that_knows_of_no_pairs_gives_none() -> None:
    assert not len(solved(Engine(policy_named("max_min_fairness")), make_question("ant", "bee", "ant")).pair_share)


def test_an_estimator_says_which_pairs_gain() -> None:
    estimator = ThroughputEstimator(TABLE)
    beside = Reading("ant", 1, "v100", 60.0 * 0.04, 60.0), ("ant", 1)
    engine = Engine(policy_named("max_min_fairness"), estimator=estimator)
    before = solved(engine, make_question("ant", "ant", "ant"))

    assert all(estimator.observe_colocated(*beside).accepted for _ in range(5))
    after = solved(engine, make_question("ant", "ant", "ant"))

    assert 0 in before.pair_gpu_type
    assert 0 not in after.pair_gpu_type


def make_profiled(budget_s: float) -> Engine:
    """An engine that has estimated the rates of jobs 10 to 14 alone and has no rates of pairs."""
    alone = replace(TABLE, pair_rows=np.zeros((0, 2), dtype=np.int64), pair_rate_steps_per_s=np.zeros((0, 2, 2)))
    engine = Engine(policy_named("max_min_fairness"), estimator=ThroughputEstimator(alone), profile_budget_s=budget_s)
    kinds = ("ant", "bee", "ant", "crab", "bee")
    engine.estimate(EstimateThroughput(10 + np.arange(5), kinds, np.ones(5, dtype=np.int64), TYPES))
    return engine


def pairs_of(answer: AllocationSolved) -> set[tuple[int, int, int]]:
    found = np.column_stack([np.sort(answer.pair_jobs, axis=1), answer.pair_gpu_type]).tolist()
    return {(a, b, t) for a, b, t in found}


def make_long_question(*, packing: bool = True) -> SolveAllocation:
    """A request about jobs with days of remaining work."""
    question = make_question("ant", "bee", "ant", "crab", "bee", packing=packing)
    left = np.full(5, 1e6)
    return replace(question, problem=replace(question.problem, steps_remaining=left, steps_total=left))


def test_pairs_that_are_worth_measuring_get_time_within_the_budget() -> None:
    question = make_long_question()
    engine = make_profiled(800.0)

    before, after = solved(make_profiled(0.0), question), solved(engine, question)

    probed = {(min(a, b), max(a, b), t) for a, b, t in engine.profiled.pairs}
    assert probed
    assert probed <= pairs_of(after)
    assert not probed & pairs_of(before)
    assert 0.0 < engine.profiled.gpu_s <= 800.0


def test_without_packing_no_pair_is_probed() -> None:
    engine = make_profiled(1e4)

    answer = solved(engine, make_long_question(packing=False))

    assert not len(answer.pair_share)
    assert not engine.profiled.pairs


def test_with_probes_of_pairs_no_job_gets_more_than_its_time_and_no_type_more_than_its_gpus() -> None:
    answer = solved(make_profiled(1e5), make_long_question())

    job_time, used = spent(answer)
    assert (job_time <= 1 + 1e-6).all()
    assert (used <= 1 + 1e-6).all()


@pytest.mark.parametrize("blind", [None, *BlindView])
@pytest.mark.parametrize("policy", sorted(registered()))
def test_under_every_policy_no_job_gets_more_than_its_time_and_no_type_more_than_its_gpus(
    policy: str, blind: BlindView | None
) -> None:
    question = make_question("ant", "bee", "ant", "crab", "bee")

    answer = solved(Engine(policy_named(policy), blind, throughputs=TABLE), question)

    job_time, used = spent(answer)
    assert (job_time <= 1 + 1e-6).all()
    assert (used <= 1 + 1e-6).all()
