"""Infeasible rate floors: the first rung that detects them proves it, and no other rung runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import solver
from gavelpy.solve.certificate import MARGIN, Duals, contradiction
from gavelpy.solve.feasible_floors import max_feasible_floors
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.solver import Solver
from tests.solve.problems import allocation_problems, random_problem


def shared(problem: AllocationProblem) -> AllocationProblem:
    """The same problem with a pair for every two jobs of equal gang size."""
    asked, jobs = problem.gpus_asked, range(problem.job_count)
    pairs = [(i, j) for i in jobs for j in jobs if i < j and asked[i] == asked[j]]
    return problem.with_pairs(pairs, 0.6 * problem.rate_alone_steps_per_s[np.array(pairs)])


def keeps(allocation: Allocation, floor: Floats) -> bool:
    """Whether rates reach their floors, up to 2e-9 of the floor or of a millionth of the best rate."""
    best = allocation.problem.rate_alone_steps_per_s.max(axis=1)
    return bool((allocation.rate_steps_per_s >= floor - 2e-9 * np.maximum(floor, 1e-6 * best)).all())


def can_be_kept(problem: AllocationProblem, floor: Floats) -> float:
    """The fraction of all floors that is feasible at once, by scipy; infinite if there are none."""
    C, T = problem.fits.shape
    cannot = np.bincount(problem.member_configuration, weights=~problem.can_run[problem.member_job], minlength=C)
    admissible = problem.fits & (cannot == 0)[:, None]
    entry = np.arange(C * T).reshape(C, T)
    best = np.maximum(problem.rate_alone_steps_per_s.max(axis=1), 1e-300)
    rows = np.zeros((2 * problem.job_count + T, C * T + 1))
    for m, (j, c) in enumerate(zip(problem.member_job, problem.member_configuration, strict=True)):
        rows[j, entry[c]] += 1.0
        rows[problem.job_count + T + j, entry[c]] -= problem.member_rate_steps_per_s[m] / best[j]
    for t in range(T):
        rows[problem.job_count + t, entry[:, t]] = problem.gpus_occupied
    rows[problem.job_count + T :, -1] = floor / best
    limits = np.concatenate([np.ones(problem.job_count), problem.gpu_counts, np.zeros(problem.job_count)])
    bounds = [(0.0, None if open_ else 0.0) for open_ in admissible.ravel()] + [(0.0, 1e6)]
    found = linprog(np.append(np.zeros(C * T), -1.0), rows, limits, bounds=bounds, method="highs")
    assert found.success
    return float(found.x[-1])


@pytest.mark.parametrize("jobs", [6, 40, 150, 300, 600])
@pytest.mark.parametrize("sum_of_rates", [True, False])
def test_the_first_rung_that_finds_floors_infeasible_proves_it(jobs: int, sum_of_rates: bool) -> None:
    problem, solver = random_problem(1, jobs=jobs), Solver()
    floor = 0.95 * problem.rate_alone_steps_per_s.max(axis=1)
    objective: LinearObjective = MaxSum(np.ones(jobs), floor) if sum_of_rates else MaxMin(np.ones(jobs), floor)

    with pytest.raises(SolverFailed, match="Farkas ray") as failure:
        solve(problem, objective, solver)

    assert failure.value.status == "infeasible"
    assert not solver.falls
    assert not solver.answers


@pytest.mark.parametrize("jobs", [6, 60])
def test_floors_of_jobs_that_share_gpus_are_proved_infeasible_by_the_first_rung(jobs: int) -> None:
    problem, solver = shared(random_problem(1, jobs=jobs)), Solver()
    floor = 0.95 * problem.rate_alone_steps_per_s.max(axis=1)

    with pytest.raises(SolverFailed, match=f"Farkas ray of {'columns' if jobs == 60 else 'highs'}"):
        solve(problem, MaxSum(np.ones(jobs), floor), solver)

    assert not solver.falls


def test_a_search_for_the_most_floors_has_no_falls() -> None:
    problem, solver = random_problem(2, jobs=80), Solver()
    floor = 0.6 * problem.rate_alone_steps_per_s.max(axis=1)

    found = max_feasible_floors(problem, MaxSum(np.ones(80)), floor, solver)

    assert 0 < found.kept.sum() < 80
    assert solver.answers.total() == 1
    assert not solver.falls


def test_a_ray_that_proves_nothing_leaves_the_answer_to_the_other_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gavelpy.solve.linear.contradiction", lambda *_: 0.0)
    problem, solver = random_problem(1, jobs=6), Solver()

    with pytest.raises(SolverFailed, match="highs: infeasible; careful: infeasible") as failure:
        solve(problem, MaxSum(np.ones(6), problem.rate_alone_steps_per_s.max(axis=1)), solver)

    assert failure.value.status == "infeasible"
    assert solver.falls == {"highs": 1, "careful": 1}


@given(problem=allocation_problems(), part=st.floats(0.2, 3.0), with_level=st.booleans())
def test_floors_proved_infeasible_are_so_and_others_are_kept(
    problem: AllocationProblem, part: float, with_level: bool
) -> None:
    fair = solve(problem, MaxMin(np.ones(problem.job_count))).rate_steps_per_s
    floor = part * np.where(problem.can_run, np.maximum(fair, 0.1 * problem.rate_alone_steps_per_s.max(axis=1)), 0.0)
    kept, solver = can_be_kept(problem, floor), Solver()
    objective = (MaxMin if with_level else MaxSum)(np.ones(problem.job_count), floor)

    if kept >= 1 + 1e-6:
        assert keeps(solve(problem, objective, solver), floor)
    elif kept < 1 - 1e-6:
        with pytest.raises(SolverFailed, match="Farkas ray") as failure:
            solve(problem, objective, solver)
        assert failure.value.status == "infeasible"
        assert not solver.falls


@given(problem=allocation_problems(decades=6), seed=st.integers(0, 10**6))
def test_no_ray_speaks_against_floors_that_are_kept(problem: AllocationProblem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    floor = solve(problem, MaxSum(rng.uniform(0.1, 10.0, problem.job_count))).rate_steps_per_s
    J, T = problem.job_count, len(problem.gpu_types)
    best = np.maximum(problem.rate_alone_steps_per_s.max(axis=1), 1e-300)

    for _ in range(20):
        drawn = [rng.choice([0.0, 1.0, 1e-6], n) * rng.uniform(-0.1, 1.0, n) for n in (J, J, T)]
        ray = Duals(np.zeros(J), drawn[0] / best, drawn[1], drawn[2])

        assert contradiction(problem, floor, ray) <= MARGIN


def test_a_contradiction_is_relative_to_what_is_promised() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [2.0]])
    ray = Duals(np.zeros(2), np.array([1 / 4, 1 / 2]), np.zeros(2), np.ones(1))

    assert contradiction(problem, np.array([3.0, 1.0]), ray) == pytest.approx(0.25 / 2.25)
    assert contradiction(problem, np.array([2.0, 1.0]), ray) == 0.0
    assert contradiction(problem, np.array([3.0, 1.0]), replace(ray, price=-ray.price)) <= 0.0
    assert contradiction(problem, np.array([3.0, 1.0]), replace(ray, price=np.full(1, np.nan))) <= 0.0


def test_a_second_run_is_not_made_where_the_first_one_has_a_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(solver.Run, "_optimum", lambda _: runs.append(1))
    problem = random_problem(1, jobs=6)

    with pytest.raises(SolverFailed, match="Farkas ray of highs"):
        solve(problem, MaxSum(np.ones(6), problem.rate_alone_steps_per_s.max(axis=1)))

    assert not runs
