"""The engine where jobs may share GPUs: pairs that gain go into the problem, and their shares into the answer."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.engine import SHARE_UNIT, Engine
from gavelpy.estimator.online import Reading, ThroughputEstimator
from gavelpy.mechanism.commands import SolveAllocation
from gavelpy.mechanism.events import AllocationSolved
from gavelpy.model.problem import AllocationProblem, BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.registry import policy_named, registered

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
    """About jobs 10, 11, ... of these types."""
    rates = RATES[[NAMES.index(name) for name in job_types]]
    problem = AllocationProblem.of([f"j{n}" for n in range(len(job_types))], TYPES, [1, 1], rates)
    return SolveAllocation(1, problem, 10 + np.arange(len(job_types)), packing, job_types if packing else ())


def solved(engine: Engine, question: SolveAllocation) -> AllocationSolved:
    answer = engine.solve(question)
    assert isinstance(answer, AllocationSolved)
    return answer


def test_a_pair_that_gains_gets_a_share_and_is_named_by_serial() -> None:
    answer = solved(
        Engine(policy_named("max_min_fairness"), throughputs=TABLE), make_question("ant", "bee", "ant", "bee")
    )

    assert len(answer.pair_share)
    assert (np.abs(answer.pair_jobs[:, 0] - answer.pair_jobs[:, 1]) % 2 == 1).all()
    assert answer.pair_jobs.min() >= 10
    assert (answer.pair_gpu_type == 0).all()
    assert (answer.pair_share / SHARE_UNIT % 1 == 0).all()


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

    assert all(estimator.observe_beside(*beside).accepted for _ in range(5))
    after = solved(engine, make_question("ant", "ant", "ant"))

    assert 0 in before.pair_gpu_type
    assert 0 not in after.pair_gpu_type


@pytest.mark.parametrize("blind", [None, *BlindView])
@pytest.mark.parametrize("policy", sorted(registered()))
def test_under_every_policy_no_job_gets_more_than_its_time_and_no_type_more_than_its_gpus(
    policy: str, blind: BlindView | None
) -> None:
    question = make_question("ant", "bee", "ant", "crab", "bee")

    answer = solved(Engine(policy_named(policy), blind, throughputs=TABLE), question)

    share = np.zeros((5, 2))
    np.add.at(share, (answer.jobs - 10, answer.gpu_type), answer.share)
    used = share.sum(axis=0)
    np.add.at(used, answer.pair_gpu_type, answer.pair_share)
    np.add.at(share, (answer.pair_jobs - 10, answer.pair_gpu_type[:, None]), answer.pair_share[:, None])
    assert (share.sum(axis=1) <= 1 + 1e-6).all()
    assert (used <= 1 + 1e-6).all()
