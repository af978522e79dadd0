"""The engine with an estimator: it answers every request for rates, and allocates time for probes when configured."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.engine import KEYS_SPARE, Engine
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.estimator.rate_filter import Reading
from gavelpy.mechanism.commands import EstimateThroughput, RequestedSize, SolveAllocation
from gavelpy.mechanism.events import AllocationSolved
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.max_min_fairness import MaxMinFairness
from tests.estimator.tables import TYPES, job_type, lawful_rates, make_table, true_rate

KNOWN, NEW = job_type("ant", 8), job_type("bee", 128)


def make_engine(**options: float) -> Engine:
    return Engine(MaxMinFairness(), estimator=ThroughputEstimator(make_table(lawful_rates())), **options)  # type: ignore[arg-type]  # floats only


def ask(engine: Engine, *job_types: str) -> list[list[float]]:
    serials = np.arange(len(job_types))
    answer = engine.estimate(EstimateThroughput(serials, job_types, np.ones(len(job_types), dtype=np.int64), TYPES))
    return answer.rates_steps_per_s.tolist()  # type: ignore[no-any-return]  # of numpy


def test_what_the_table_knows_is_told_as_it_stands_and_the_rest_is_estimated() -> None:
    known, new = ask(make_engine(), KNOWN, NEW)

    assert known == [true_rate("ant", 8, name) for name in TYPES]
    assert new == pytest.approx([true_rate("bee", 128, name) for name in TYPES], rel=0.5)


def test_a_cautious_engine_tells_less() -> None:
    assert np.all(np.array(ask(make_engine(quantile=0.1), NEW)) < np.array(ask(make_engine(), NEW)))


def test_jobs_without_a_type_are_strangers_to_one_another() -> None:
    engine = make_engine()
    assert engine.estimator is not None
    engine.estimator.observe(Reading("job 0 (no type)", 1, "old", 60000.0, 60.0))

    first, second = ask(engine, "", "")

    assert first[0] == pytest.approx(1000.0, rel=0.1)
    assert second[0] < 500.0


def test_what_running_jobs_report_overrules_the_table() -> None:
    engine = make_engine()
    assert engine.estimator is not None
    for_a_while = [engine.estimator.observe(Reading(KNOWN, 1, "old", 60.0 * 50.0, 60.0)) for _ in range(10)]

    assert all(verdict.accepted for verdict in for_a_while)
    assert ask(engine, KNOWN)[0][0] == pytest.approx(50.0, rel=0.05)


@pytest.mark.parametrize(("budget_s", "types_used"), [(0.0, 1), (1e6, 2)])
def test_probes_get_time_on_types_that_the_policy_would_not_use(budget_s: float, types_used: int) -> None:
    engine = make_engine(profile_budget_s=budget_s)
    ask(engine, "stranger")
    rates = np.array([[1.0, 1.0, 1.5]])
    problem = AllocationProblem.of(["a"], TYPES, [1, 1, 1], rates, steps_remaining=1e6)

    answer = engine.solve(SolveAllocation(1, problem, np.array([0])))

    assert isinstance(answer, AllocationSolved)
    assert len(answer.gpu_type) >= types_used
    assert (len(answer.gpu_type) > 1) == (types_used > 1)
    assert answer.share.sum() <= 1.0


def test_jobs_that_are_over_are_forgotten_and_those_that_have_just_come_are_not() -> None:
    engine = make_engine(profile_budget_s=1e6)
    jobs = 10 * KEYS_SPARE
    asked = EstimateThroughput(np.arange(jobs), (KNOWN,) * jobs, np.ones(jobs, dtype=np.int64), TYPES)
    problem = AllocationProblem.of(["a"], TYPES, [1, 1, 1], np.array([[1.0, 1.0, 1.5]]), steps_remaining=1e6)
    engine.estimate(asked)

    engine.solve(SolveAllocation(1, problem, np.array([3])))

    assert sorted(engine._keys) == [3, *range(jobs - KEYS_SPARE, jobs)]


def test_keys_are_forgotten_where_nothing_is_profiled_too() -> None:
    engine = make_engine()
    ask(engine, *[KNOWN] * (3 * KEYS_SPARE))
    problem = AllocationProblem.of(["a"], TYPES, [1, 1, 1], np.array([[1.0, 1.0, 1.5]]))

    engine.solve(SolveAllocation(1, problem, np.array([0])))

    assert len(engine._keys) <= KEYS_SPARE + 1


def requested_on_one(rates: dict[str, float], engine: Engine) -> tuple[np.ndarray, ...]:
    """The answer about a job that requests 1 GPU at these rates, and runs on 2 as well."""
    sized = (RequestedSize(1, rates),)
    answer = engine.estimate(EstimateThroughput(np.array([7]), ("",), np.array([2]), TYPES, sized))
    return answer.sizes, answer.rates_steps_per_s[0]


def test_rate_of_another_size_is_in_proportion_to_the_claim() -> None:
    gpus, slow = requested_on_one({TYPES[0]: 1.0, TYPES[1]: 4.0}, make_engine())
    _, fast = requested_on_one({TYPES[0]: 100.0, TYPES[1]: 400.0}, make_engine())

    assert gpus.tolist() == [2]
    assert fast[:2] == pytest.approx(100.0 * slow[:2])
    assert (1.0 < slow[0] < 2.5, slow[1] / slow[0]) == (True, pytest.approx(4.0, rel=0.3))


def test_measured_rate_of_a_size_is_not_scaled_by_a_claim() -> None:
    engine = make_engine()
    assert engine.estimator is not None
    for _ in range(5):
        engine.estimator.observe(Reading("job 7 (no type)", 2, TYPES[0], 900.0, 60.0))

    assert requested_on_one({TYPES[0]: 100.0}, engine)[1][0] == pytest.approx(15.0, rel=0.1)


def test_job_with_several_sizes_is_not_probed() -> None:
    engine = make_engine(profile_budget_s=600.0)
    requested_on_one({TYPES[0]: 100.0}, engine)

    assert 7 not in engine._keys
