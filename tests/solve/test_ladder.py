"""Edge cases of `solve`: empty problems, objectives of other problems, rungs that fail."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import certificate, ladder, linear
from gavelpy.solve.certificate import VIOLATION_MAX
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxMinLexicographic, MaxSum, MaxSumLog, Objective
from gavelpy.solve.solver import QUICK, HighsEffort, Solver
from tests.solve.problems import random_problem


def two_jobs(gpus: int = 1) -> AllocationProblem:
    return AllocationProblem.of("ab", ["v100"], [gpus], [[4.0], [2.0]])


@pytest.mark.parametrize("kind", [MaxMin, MaxSum, MaxSumLog])
def test_no_jobs_get_no_shares(kind: type[Objective]) -> None:
    problem = AllocationProblem.of([], ["v100", "k80"], [1, 1], np.zeros((0, 2)))

    allocation = solve(problem, kind(np.zeros(0)))

    assert allocation.share.shape == (0, 2)
    assert allocation.shadow_prices.tolist() == [0, 0]
    assert allocation.certificate.path == "nothing runs"


@pytest.mark.parametrize("kind", [MaxMin, MaxSum, MaxSumLog])
def test_a_job_that_can_run_nowhere_spoils_nothing(kind: type[Objective]) -> None:
    problem = AllocationProblem.of("abc", ["v100"], [2], [[4.0], [0.0], [2.0]], gpus=[1, 1, 1])

    allocation = solve(problem, kind(np.ones(3)))

    assert allocation.share[:, 0] == pytest.approx([1, 0, 1])
    assert allocation.certificate.gap <= certificate.GAP_MAX_CONCAVE


def test_a_pair_with_a_job_that_cannot_run_alone_is_not_used() -> None:
    alone = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [0.0]])
    problem = alone.with_pairs([(0, 1)], [[[4.0], [1.0]]])

    share = solve(problem, MaxMin(np.ones(2))).share

    assert share[:, 0].tolist() == [1, 0, 0]


def test_a_gang_gets_nothing_of_a_type_too_small_for_it() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [3, 4], [[9.0, 2.0], [9.0, 2.0]], gpus=[4, 1])

    share = solve(problem.with_whole_gangs(), MaxMin(np.ones(2))).share

    assert share[0].tolist() == [0, pytest.approx(1)]


@pytest.mark.parametrize("objective", [MaxMin(np.ones(3)), MaxSum(np.ones(1)), MaxSumLog(np.ones(3))])
def test_an_objective_of_other_jobs_is_refused(objective: Objective) -> None:
    with pytest.raises(InvalidInput, match="one entry for each of 2 jobs"):
        solve(two_jobs(), objective)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_a_scale_below_zero_or_without_end_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"scale\[1\] must be finite and >= 0"):
        MaxMin(np.array([1.0, value]))


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_of_levels_that_is_no_positive_number_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"scale\[1\] must be finite and > 0"):
        MaxMinLexicographic(np.array([1.0, value]))


def test_a_minimum_over_nobody_is_refused() -> None:
    with pytest.raises(InvalidInput, match="scale must be > 0 for some job, got 0 for all 2"):
        MaxMin(np.zeros(2))


def test_worths_of_other_types_are_refused() -> None:
    with pytest.raises(InvalidInput, match="gpu_type_worth must be empty or have one entry for each of 1 types, got 2"):
        solve(two_jobs(), MaxSum(np.ones(2), gpu_type_worth=np.ones(2)))


def test_floors_of_other_jobs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="rate_floor_steps_per_s must be empty or have one entry for each of 2"):
        MaxSum(np.ones(2), np.ones(3))


def test_floors_that_nobody_can_keep_are_infeasible() -> None:
    with pytest.raises(SolverFailed) as failure:
        solve(two_jobs(), MaxSum(np.ones(2), np.array([3.0, 1.0])))

    assert failure.value.status == "infeasible"


def test_a_floor_for_a_job_that_can_run_nowhere_is_infeasible() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [0.0]])

    with pytest.raises(SolverFailed, match="'b' can run nowhere") as failure:
        solve(problem, MaxMin(np.ones(2), np.array([0.0, 1.0])))

    assert failure.value.status == "infeasible"


def test_an_answer_that_is_not_certified_falls_to_the_next_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    crippled = HighsEffort("highs", {**QUICK.options, "simplex_iteration_limit": 1}, on_face=True)
    monkeypatch.setattr(linear, "QUICK", crippled)
    solver = Solver()
    crowded = random_problem(0, jobs=20).with_gpus({"type-0": 1, "type-1": 1, "type-2": 1})

    allocation = solve(crowded, MaxMin(np.ones(20)), solver)

    assert allocation.certificate.path == "careful after highs"
    assert solver.falls == {"highs": 1}
    assert solver.answers == {"careful after highs": 1}


def test_an_answer_that_no_rung_can_prove_is_given_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "GAP_MAX", -1.0)

    certificate = solve(two_jobs(), MaxMin(np.ones(2))).certificate

    assert certificate.gap <= 1e-8
    assert certificate.warning.startswith("feasible, but proved to a gap of ")


@pytest.mark.parametrize("objective", [MaxMin(np.ones(20)), MaxSum(np.ones(20))])
def test_where_no_rung_answers_an_even_split_has_an_honest_gap(
    objective: MaxMin | MaxSum, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(0, jobs=20)
    best = solve(problem, objective).certificate.objective
    monkeypatch.setattr(linear, "_rungs", lambda *_: [("highs", stuck)])
    monkeypatch.setattr(ladder, "search_kernels", lambda: None)

    allocation = solve(problem, objective)

    c = allocation.certificate
    assert c.path == "even split"
    assert c.warning.endswith("(highs: Unknown)")
    assert 0 < c.objective <= best <= c.bound * (1 + 1e-12)
    assert c.violation <= VIOLATION_MAX


def test_floors_that_an_even_split_breaks_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_rungs", lambda *_: [("highs", stuck)])
    monkeypatch.setattr(ladder, "search_kernels", lambda: None)

    with pytest.raises(SolverFailed, match="not certified") as failure:
        solve(two_jobs(), MaxSum(np.ones(2), np.array([3.0, 0.0])))

    assert failure.value.jobs == 2
    assert failure.value.gpu_types == 1


def stuck(_: Solver) -> None:
    raise SolverFailed("Unknown", jobs=2, gpu_types=1)


@pytest.mark.parametrize("ratio", [1e-6, 1e6, 1e-12, 1e12])
def test_levels_hold_for_jobs_that_need_next_to_no_time(ratio: float) -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[1.0], [ratio]])

    allocation = solve(problem, MaxMin(np.ones(2)))

    best = 1 / (1 + 1 / ratio)
    assert allocation.rate_steps_per_s.min() == pytest.approx(best, rel=1e-8)


def test_the_lp_path_loads_no_cvxpy() -> None:
    script = (
        "import sys, numpy as np; from gavelpy.policies.base import registered;"
        "policies = registered(); assert 'highspy' not in sys.modules;"
        "from gavelpy.model.problem import AllocationProblem;"
        "p = AllocationProblem.of('ab', ['v100'], [1], [[4.0], [2.0]]);"
        "[policy().allocate(p) for policy in policies.values()];"
        "assert 'highspy' in sys.modules;"
        "assert not {'cvxpy', 'numba', 'pandas', 'scipy'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", script], check=True)
