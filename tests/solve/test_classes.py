"""Equal jobs are solved as one class, and the answer is that of the separate jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import program
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin
from gavelpy.solve.prices.table import compiled_classes_of
from gavelpy.solve.program import are_distinct, classes_of
from tests.solve.problems import random_problem


def test_classes_are_numbered_by_their_first_job() -> None:
    features = np.array([[3.0, 1.0], [2.0, 1.0], [3.0, 1.0], [2.0, 2.0], [2.0, 1.0]])

    found = classes_of(features)

    assert found.of_job.tolist() == [0, 1, 0, 2, 1]
    assert found.representative.tolist() == [0, 1, 3]
    assert found.count.tolist() == [2, 2, 1]


def test_figures_that_differ_by_rounding_are_equal() -> None:
    features = np.array([[0.1 + 0.2], [0.3], [0.3 + 1e-9]])

    assert classes_of(features).of_job.tolist() == [0, 0, 1]


def test_rows_that_differ_under_one_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_FEW", 0)  # use hashes even for so few
    monkeypatch.setattr(program, "_MULTIPLIER", 0)  # every row has hash 0

    found = classes_of(np.array([[1.0], [2.0], [1.0]]))

    assert found.count.tolist() == [1, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_class_answers_as_its_jobs_do_apart(seed: int) -> None:
    problem = random_problem(seed, jobs=40, job_types=7)
    scale = problem.gpus_asked / problem.rate_alone_steps_per_s.mean(axis=1)
    apart = MaxMin(scale * (1 + 1e-9 * np.arange(40)))  # no two jobs are equal

    together, alone = solve(problem, MaxMin(scale)), solve(problem, apart)

    assert together.certificate.path == "classes+highs"
    assert alone.certificate.path == "highs"
    assert together.certificate.objective == pytest.approx(alone.certificate.objective, rel=1e-7)


def test_equal_jobs_get_equal_shares() -> None:
    problem = AllocationProblem.of("abcd", ["v100", "k80"], [1, 2], [[4.0, 1.0]] * 3 + [[9.0, 5.0]])

    share = solve(problem, MaxMin(np.ones(4))).share

    assert (share[:3] == share[0]).all()


def test_jobs_that_count_steps_in_other_units_are_still_one_class() -> None:
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], [[4.0, 1.0], [400.0, 100.0], [4.0, 2.0]])

    allocation = solve(problem, MaxMin(np.array([1.0, 0.01, 1.0])))

    assert allocation.certificate.path == "classes+highs"
    assert (allocation.share[0] == allocation.share[1]).all()


def test_equal_jobs_are_one_class_also_where_they_share_gpus() -> None:
    alone = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])
    problem = alone.with_pairs([(0, 1)], [[[3.0], [3.0]]])

    allocation = solve(problem, MaxMin(np.ones(2)))

    assert allocation.certificate.path == "classes+highs"
    assert allocation.share[2, 0] == pytest.approx(1)
    assert allocation.certificate.objective == pytest.approx(3)


def test_jobs_alike_alone_at_unequal_rates_together_are_two_classes() -> None:
    alone = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [5.0]])
    problem = alone.with_pairs([(0, 1)], [[[3.0], [4.0]]])  # 3/4 and 4/5 of their best

    allocation = solve(problem, MaxMin(np.array([1 / 4, 1 / 5])))

    assert allocation.certificate.path == "highs"
    assert allocation.certificate.objective == pytest.approx(16 / 21)  # 0.8 y = 0.75 y + 1 - y


def test_a_job_with_other_gpus_is_of_another_class() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [3], [[4.0], [4.0]], gpus=[1, 2])

    allocation = solve(replace(problem, capacity=np.array([[2000]])), MaxMin(np.ones(2)))

    assert allocation.certificate.path == "highs"
    assert allocation.rate_steps_per_s == pytest.approx([8 / 3, 8 / 3])


@pytest.mark.parametrize("seed", range(40))
def test_jobs_that_are_equal_up_to_rounding_never_count_as_distinct(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate = 10.0 ** rng.uniform(-12, 0, (60, 3)) * (rng.random((60, 3)) < 0.8)
    gpus, value = rng.choice([1.0, 2.0, 8.0], 60), 10.0 ** rng.uniform(-9, 9, 60)
    rate[-1], gpus[-1], value[-1] = rate[0] * (1 + 3e-13), gpus[0], value[0] * (1 - 3e-13)

    assert not are_distinct(*rate.T, gpus, value)


def test_distinct_jobs_are_seen_by_one_sum() -> None:
    rng = np.random.default_rng(0)

    assert are_distinct(*rng.uniform(0.1, 1.0, (3, 500)), np.ones(500), rng.uniform(1.0, 2.0, 500))


@pytest.mark.parametrize("seed", range(300))
def test_compiled_classes_are_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, kinds, figures = rng.integers(0, 300), rng.integers(1, 40), rng.integers(1, 8)
    kind = np.rint(rng.random((kinds, figures)) * 3) * 10.0 ** rng.integers(-12, 13, figures)
    kind *= 1.0 + rng.choice([0.0, 0.0, 1e-9, 2.0**-40, 2.0**-41, 1e-13], kind.shape)
    rows = kind[rng.integers(0, kinds, jobs)] * rng.choice([1.0, 1.0, -0.0, 1.0 + 1e-15], (jobs, figures))

    expected, found = classes_of(rows), compiled_classes_of(rows.copy())

    for name in ("of_job", "representative", "count"):
        assert np.array_equal(getattr(expected, name), getattr(found, name)), name
