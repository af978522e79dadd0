"""Many jobs in few classes, solved with one row for each class, against all jobs in one linear program."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, hstack, vstack

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.solve import equal_jobs, ladder
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX
from gavelpy.solve.equal_jobs import best_of_equal_jobs
from gavelpy.solve.linear import best_linear
from gavelpy.solve.objective import MaxMin, MaxSum, Objective
from gavelpy.solve.solver import Solver

JOBS = 1100


def crowd(rng: np.random.Generator, classes: int, types: int, gpus_a_job: float) -> tuple[AllocationProblem, MaxMin]:
    """Some `JOBS` jobs of so many classes on so many GPUs for each."""
    rates = np.exp(rng.normal(0.0, 1.5, (classes, types))) * (rng.random((classes, types)) > 0.15)
    of_job = rng.integers(0, classes, JOBS)
    gpus, weight = rng.choice([1, 2, 4, 8], classes), rng.choice([1.0, 2.0, 0.5], classes)
    counts = 1 + (rng.dirichlet(np.ones(types)) * gpus_a_job * JOBS).astype(int)
    names = [f"job-{k}" for k in range(JOBS)]
    types_of = [f"type-{t}" for t in range(types)]
    problem = AllocationProblem.of(names, types_of, counts, rates[of_job], gpus=gpus[of_job], weight=weight[of_job])
    return problem, MaxMin(problem.gpus_asked / (problem.weight * equal_share_rate(problem)))


def plain_level(problem: AllocationProblem, scale: Floats) -> float:
    """The highest level by scipy's linear program over all shares of all jobs."""
    can, (J, T) = np.flatnonzero(problem.can_run), problem.fits.shape
    values = scale[:, None] * problem.member_rate_steps_per_s
    unit = float(np.median(values[values > 0]))
    job, gpu_type = np.repeat(np.arange(J), T), np.tile(np.arange(T), J)
    column = np.arange(J * T)
    levels = coo_matrix((-values.ravel() / unit, (job, column)), shape=(J, J * T)).tocsr()[can]
    times = coo_matrix((np.ones(J * T), (job, column)), shape=(J, J * T))
    gpus = coo_matrix((problem.gpus_occupied[job], (gpu_type, column)), shape=(T, J * T))
    rows = vstack([levels, times, gpus]).tocsr()
    level = np.concatenate([np.ones(len(can)), np.zeros(J + T)])[:, None]
    limits = np.concatenate([np.zeros(len(can)), np.ones(J), problem.gpu_counts])
    found = linprog(np.append(np.zeros(J * T), -1.0), hstack([rows, coo_matrix(level)]).tocsr(), limits)
    assert found.status == 0
    return float(-found.fun * unit)


@pytest.mark.parametrize("seed", range(8))
def test_the_level_is_that_of_a_linear_program_over_all_jobs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, objective = crowd(rng, int(rng.choice([2, 9, 24])), int(rng.integers(1, 5)), rng.choice([0.1, 0.4, 1.0]))

    answer = best_of_equal_jobs(problem, objective, Solver())

    assert answer is not None
    assert answer.certificate.objective == pytest.approx(plain_level(problem, objective.scale), rel=1e-7)
    reached = objective.scale * (problem.member_rate_steps_per_s * answer.share).sum(axis=1)
    assert answer.certificate.objective == pytest.approx(reached[problem.can_run].min(), rel=1e-12)
    assert answer.certificate.gap <= GAP_MAX
    assert (problem.gpus_occupied @ answer.share <= problem.gpu_counts * (1 + VIOLATION_MAX)).all()
    assert (answer.share.sum(axis=1) <= 1 + VIOLATION_MAX).all()
    assert (answer.share >= 0).all()


@pytest.mark.parametrize("seed", [*range(12, 24), 57, 64, 92])  # the last: GPUs to spare
def test_shares_and_prices_are_those_of_the_program_over_all_jobs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    problem, objective = crowd(rng, int(rng.choice([2, 9, 24])), int(rng.integers(1, 5)), rng.choice([0.1, 0.4, 1.0]))

    found = ladder.solve(problem, objective)
    monkeypatch.setattr(ladder, "best_of_equal_jobs", lambda *_: None)
    expected = ladder.solve(problem, objective)

    assert found.certificate.path.startswith("classes+")
    assert found.share == pytest.approx(expected.share, abs=1e-11)
    assert found.shadow_prices == pytest.approx(expected.shadow_prices, rel=1e-9)
    assert found.certificate.objective == pytest.approx(expected.certificate.objective, rel=1e-11)


def test_jobs_that_differ_by_rounding_are_one_class_and_the_certificate_is_of_their_own_rates() -> None:
    rng = np.random.default_rng(1)
    problem, objective = crowd(rng, 5, 3, 0.3)
    noise = 1.0 + rng.uniform(-1e-14, 1e-14, JOBS)
    objective = MaxMin(objective.scale * noise)

    answer = best_of_equal_jobs(problem, objective, Solver())

    assert answer is not None
    reached = objective.scale * (problem.member_rate_steps_per_s * answer.share).sum(axis=1)
    assert answer.certificate.objective == pytest.approx(reached[problem.can_run].min(), rel=1e-15)
    whole = best_linear(problem, objective, Solver()).certificate
    assert answer.certificate.bound >= whole.objective  # the classes' digits are given up, not the bound
    assert answer.certificate.gap <= GAP_MAX


def test_unlike_problems_are_left_to_the_other_algorithms() -> None:
    rng = np.random.default_rng(2)
    problem, objective = crowd(rng, 9, 3, 0.3)
    ones = np.ones(JOBS)
    others: list[Objective] = [
        MaxSum(objective.scale), MaxMin(objective.scale, rate_floor_steps_per_s=ones * 1e-6),
        MaxMin(objective.scale, base_steps_per_s=ones), MaxMin(np.where(ones.cumsum() > 1, objective.scale, 0.0)),
    ]  # fmt: skip
    distinct = MaxMin(objective.scale * rng.uniform(1.0, 2.0, JOBS))

    assert all(best_of_equal_jobs(problem, other, Solver()) is None for other in [*others, distinct])
    without = problem.with_gpus({"type-1": 0})  # its price is the worth of a first GPU to one job
    assert best_of_equal_jobs(without, objective, Solver()) is None
    assert best_of_equal_jobs(problem, objective, Solver()) is not None


def test_an_answer_that_is_not_certified_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, objective = crowd(np.random.default_rng(3), 9, 3, 0.3)
    monkeypatch.setattr(equal_jobs, "GAP_MAX", -1.0)

    assert best_of_equal_jobs(problem, objective, Solver()) is None
