"""Water fillings and their certificates against an oracle in exact numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX
from gavelpy.solve.filling import rungs, saturation, water_level
from gavelpy.solve.filling.targets import Targets
from gavelpy.solve.filling.water_level import Residual
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxMinLexicographic, MaxSum, ProgressiveFilling
from gavelpy.solve.solver import QUICK, HighsEffort, Solver
from gavelpy.traces.problem_json import read_problem
from tests.conftest import first_fast
from tests.solve.filling_oracle import slow_filling, slow_water_filling
from tests.solve.many import random_problem as any_problem
from tests.solve.plain import optimum
from tests.solve.problems import random_problem, small_problem

FIXTURES = Path(__file__).parent / "fixtures"


def scale_of(problem: AllocationProblem) -> Floats:
    """Levels are fractions of the best rate per GPU and weight; 1 for a job that can run nowhere."""
    best = np.where(problem.can_run, problem.rate_alone_steps_per_s.max(axis=1, initial=0.0), 1.0)
    return problem.gpus_asked / (problem.weight * best)


def scarce(seed: int, *, jobs: int, types: int, load: float) -> AllocationProblem:
    """GPUs for only some of the jobs, distributed randomly over the types, so that there are many levels."""
    rng, problem = np.random.default_rng(seed), random_problem(seed, jobs=jobs, types=types)
    gpus = problem.gpus_asked.sum() * load * rng.dirichlet(np.ones(types))
    return replace(
        problem, capacity=1000 * np.maximum(1, np.rint(gpus))[:, None], weight=10.0 ** rng.uniform(-1, 1, jobs)
    )


def rounds_of(path: str) -> int:
    return int(path.rpartition(" x ")[2])


@pytest.mark.parametrize("seed", first_fast(range(30), 15))
@pytest.mark.parametrize("decades", [1.0, 3.0])
def test_rates_are_those_of_the_slow_way_in_exact_numbers(seed: int, decades: float) -> None:
    problem = small_problem(seed, decades=decades)
    scale = scale_of(problem)

    allocation = solve(problem, MaxMinLexicographic(scale))

    expected = slow_water_filling(problem, scale)
    least = 1e-9 * problem.rate_alone_steps_per_s.max(initial=0.0)
    np.testing.assert_allclose(allocation.rate_steps_per_s, expected, rtol=1e-6, atol=least)
    assert allocation.certificate.gap <= GAP_MAX
    assert allocation.certificate.violation <= VIOLATION_MAX


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_fillings_are_those_of_the_slow_way(block: int) -> None:
    solver, wrong = Solver(), []
    for seed in range(100 * block, 100 * (block + 1)):
        problem = small_problem(seed, decades=float(np.random.default_rng(seed).uniform(0, 3)))
        scale, best = scale_of(problem), problem.rate_alone_steps_per_s.max(axis=1, initial=0.0)
        rates = solve(problem, MaxMinLexicographic(scale), solver).rate_steps_per_s
        expected = slow_water_filling(problem, scale)
        off = np.abs(rates - expected) > 1e-5 * np.maximum(expected, 1e-6 * best)
        wrong += [(seed, rates, expected)] * bool(off.any())

    assert wrong == [], "(seed, ours, the exact ones)"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("load", [0.2, 0.6, 1.1])
def test_nobody_can_gain_and_rounds_are_no_more_than_types(seed: int, load: float) -> None:
    problem = scarce(seed, jobs=60, types=5, load=load)
    scale = scale_of(problem)

    allocation = solve(problem, MaxMinLexicographic(scale))

    rates = allocation.rate_steps_per_s
    better = solve(problem, MaxSum(scale, rates * (1 - 1e-10))).rate_steps_per_s
    assert (better <= rates * (1 + 1e-4)).all()
    assert rounds_of(allocation.certificate.path) <= 6  # one round per type, and one for jobs that reach their best
    assert allocation.certificate.gap <= GAP_MAX


@pytest.mark.parametrize("types", [3, 8])
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_many_distinct_jobs_take_few_rounds(types: int, load: float) -> None:
    problem, solver = scarce(1, jobs=512, types=types, load=load), Solver()

    allocation = solve(problem, MaxMinLexicographic(scale_of(problem)), solver)

    assert rounds_of(allocation.certificate.path) <= types + 1
    assert allocation.certificate.gap <= GAP_MAX
    assert allocation.certificate.violation <= VIOLATION_MAX


def test_jobs_at_their_own_best_rate_make_no_round() -> None:
    """100 jobs reach their best rates at 100 levels before the two heavy ones run out of GPUs."""
    weight = np.append(np.linspace(2000, 3000, 100), [1.0, 1.0])
    ids = [str(i) for i in range(102)]
    problem = AllocationProblem.of(ids, ["v100"], [101], np.linspace(1, 2, 102)[:, None], weight=weight)

    allocation = solve(problem, MaxMinLexicographic(scale_of(problem)))

    assert rounds_of(allocation.certificate.path) == 1
    assert allocation.share[:, 0] == pytest.approx(np.append(np.ones(100), [0.5, 0.5]))


def test_an_idle_cluster_gives_everybody_its_best_rate() -> None:
    problem = replace(random_problem(2, jobs=9), capacity=np.full((3, 1), 90_000))

    allocation = solve(problem, MaxMinLexicographic(scale_of(problem)))

    assert allocation.rate_steps_per_s == pytest.approx(problem.rate_alone_steps_per_s.max(axis=1))
    assert allocation.shadow_prices.tolist() == [0, 0, 0]
    assert allocation.certificate.gap == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gpu_type", range(3))
def test_price_is_what_the_least_level_gains_by_one_more_gpu(seed: int, gpu_type: int) -> None:
    problem = random_problem(seed, jobs=24)
    objective = MaxMinLexicographic(scale_of(problem))
    capacity = problem.capacity.copy()
    capacity[gpu_type] += 1  # a thousandth of a GPU: levels are piecewise linear in it

    allocation = solve(problem, objective)

    more = solve(replace(problem, capacity=capacity), objective)
    gained = more.certificate.objective - allocation.certificate.objective
    assert allocation.shadow_prices[gpu_type] == pytest.approx(1000 * gained, rel=1e-4, abs=1e-6)


def test_price_at_a_kink_is_that_of_the_next_gpu() -> None:
    problem = AllocationProblem.of("abc", ["v100", "k80"], [3, 1], [[4.0, 0.0]] * 3)

    allocation = solve(problem, MaxMinLexicographic(np.ones(3)))

    assert allocation.certificate.objective == pytest.approx(4)
    assert allocation.shadow_prices.tolist() == [0, 0]  # the last V100 was worth 4 / 3


def test_a_type_without_gpus_has_the_price_of_its_first_one() -> None:
    problem = AllocationProblem.of("ab", ["v100", "h100"], [1, 0], [[2.0, 6.0], [2.0, 6.0]])

    allocation = solve(problem, MaxMinLexicographic(np.ones(2)))

    assert allocation.shadow_prices == pytest.approx(solve(problem, MaxMin(np.ones(2))).shadow_prices)


def test_where_the_least_level_is_a_jobs_own_best_only_faster_gpus_have_a_price() -> None:
    problem = AllocationProblem.of("ab", ["v100", "h100"], [1, 0], [[1.0, 3.0], [9.0, 9.0]], weight=[9.0, 1.0])

    allocation = solve(problem, MaxMinLexicographic(np.array([0.1, 1.0])))

    assert allocation.certificate.objective == pytest.approx(0.1 * 9 / 9.1)  # the first runs 10 / 11 of the time
    assert (allocation.shadow_prices > 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_classes_fill_as_their_jobs_do_apart(seed: int) -> None:
    problem = random_problem(seed, jobs=40, job_types=7)
    scale = scale_of(problem)

    together = solve(problem, MaxMinLexicographic(scale))
    apart = solve(problem, MaxMinLexicographic(scale * (1 + 1e-9 * np.arange(40))))

    assert together.certificate.path.startswith("classes+")
    assert not apart.certificate.path.startswith("classes+")
    assert together.rate_steps_per_s == pytest.approx(apart.rate_steps_per_s, rel=1e-6)


def test_a_used_solver_gives_the_bytes_of_a_fresh_one() -> None:
    problem, used = scarce(4, jobs=80, types=4, load=0.5), Solver()
    objective = MaxMinLexicographic(scale_of(problem))
    solve(random_problem(3, jobs=20), MaxMin(np.ones(20)), used)

    warm, fresh = (solve(problem, objective, solver) for solver in (used, Solver()))

    assert warm.share.tobytes() == fresh.share.tobytes()
    assert warm.shadow_prices.tobytes() == fresh.shadow_prices.tobytes()


def test_a_rung_that_fails_is_counted_and_the_next_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    crippled = HighsEffort("highs", {**QUICK.options, "simplex_iteration_limit": 1}, on_face=True)
    monkeypatch.setattr(rungs, "QUICK", crippled)
    solver = Solver()

    allocation = solve(random_problem(0, jobs=20), MaxMinLexicographic(np.ones(20)), solver)

    assert allocation.certificate.path.startswith("refined x ")
    assert solver.falls == {"highs": 1}


def test_an_answer_that_no_rung_can_prove_is_given_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rungs, "GAP_MAX", -1.0)
    monkeypatch.setattr(rungs, "GAP_MAX_LAST", -1.0)

    certificate = solve(random_problem(0, jobs=5), MaxMinLexicographic(np.ones(5))).certificate

    assert certificate.gap <= GAP_MAX
    assert "refined: gap" in certificate.warning


def test_where_no_rung_answers_an_even_split_has_an_honest_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise SolverFailed("Unknown", jobs=5, gpu_types=3)

    problem = random_problem(0, jobs=5)
    best = solve(problem, MaxMinLexicographic(np.ones(5))).rate_steps_per_s
    monkeypatch.setattr(saturation, "highest_water_level", fails)

    allocation = solve(problem, MaxMinLexicographic(np.ones(5)))

    assert allocation.certificate.path == "even split"
    assert "Unknown" in allocation.certificate.warning
    assert allocation.certificate.objective <= best.min() <= allocation.certificate.bound * (1 + 1e-12)
    assert (best <= allocation.rate_steps_per_s * (1 + allocation.certificate.gap)).all()


def test_a_filling_whose_third_level_is_not_found_keeps_the_first_two(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = scarce(1, jobs=40, types=8, load=0.8)
    whole = solve(problem, MaxMinLexicographic(scale_of(problem)))
    level, starts = saturation.highest_water_level, set()

    def fails_later(residual: Residual, rise: Targets, *arguments: Any, **options: Any) -> Any:
        starts.add(rise.start)
        if sorted(starts).index(rise.start) >= 2:
            raise SolverFailed("Unknown", jobs=20, gpu_types=3)
        return level(residual, rise, *arguments, **options)

    monkeypatch.setattr(saturation, "highest_water_level", fails_later)

    allocation = solve(problem, MaxMinLexicographic(scale_of(problem)))

    rose = whole.rate_steps_per_s / allocation.rate_steps_per_s - 1
    assert rounds_of(whole.certificate.path) > 2
    assert allocation.certificate.objective == pytest.approx(whole.certificate.objective)
    assert rose.max() <= allocation.certificate.gap
    assert "highs: Unknown" in allocation.certificate.warning


def of_late_levels() -> tuple[Allocation, float]:
    """1e-10 of the early jobs' rates is 0.03 % of a late job's. The allocation, and by how much that job can gain."""
    problem = read_problem(FIXTURES / "packed_late_levels.json")
    scale = problem.gpus_asked / (problem.weight * equal_share_rate(problem))
    allocation = solve(problem, MaxMinLexicographic(scale))
    late, rates = 2, allocation.rate_steps_per_s
    early = np.where(scale * rates <= (scale * rates)[late] * (1 + 1e-7), rates, 0.0)
    return allocation, optimum(problem, MaxSum(np.eye(len(rates))[late] / rates, early)).value - 1


def test_a_late_job_gains_nothing_where_early_rates_matter_to_their_last_digits() -> None:
    """A hundred units in the last place of the early rates are 7e-7 of the late one: its gain is known to some 1e-8."""
    allocation, gain = of_late_levels()

    assert gain <= 1e-7
    assert allocation.certificate.gap <= GAP_MAX
    assert allocation.certificate.warning == ""


def test_the_gap_of_a_packed_filling_covers_its_late_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rung's answer: a proof of a weighted sum would still claim 1e-10."""
    monkeypatch.setattr(rungs, "GAP_MAX", 1.0)

    allocation, gain = of_late_levels()

    assert 1e-5 < gain <= allocation.certificate.gap < 5e-3


@pytest.mark.parametrize("seed", [7, 61, 141])
def test_late_levels_are_as_exact_as_rates_are(seed: int) -> None:
    """Earlier, their rates were off by 3e-5 to 6e-3, with certificates of 1e-12."""
    problem = any_problem(seed, decades_max=1.0, pairs=False)
    scale = problem.gpus_asked / (problem.weight * equal_share_rate(problem))

    certificate = solve(problem, MaxMinLexicographic(scale)).certificate

    assert certificate.gap <= GAP_MAX
    assert certificate.violation <= 1e-14


def test_speeds_change_when_a_job_saturates() -> None:
    """The first job has the whole GPU until it reaches its best; then the others share the rest, 1 to 3."""

    def speed(saturated: Bools) -> Floats:
        return np.array([1.0, 0.0, 0.0]) if not saturated[0] else np.array([0.0, 1.0, 3.0])

    problem = AllocationProblem.of("abc", ["v100"], [2], [[2.0], [4.0], [4.0]])

    allocation = solve(problem, ProgressiveFilling(speed))

    assert allocation.rate_steps_per_s == pytest.approx([2, 1, 3])
    assert allocation.certificate.objective == pytest.approx(2)  # the level at which the first job stops


@pytest.mark.parametrize("seed", range(30))
def test_changing_speeds_are_followed_exactly(seed: int) -> None:
    problem = small_problem(seed)
    base = 2.0 ** np.random.default_rng(seed).integers(-3, 4, problem.job_count)

    def speed(saturated: Bools) -> Floats:  # every third job waits for the one before it
        waits = (np.arange(len(saturated)) % 3 == 1) & ~np.roll(saturated, 1)
        return np.where(waits, 0.0, base * (1 + saturated.sum()))

    allocation = solve(problem, ProgressiveFilling(speed))

    expected = slow_filling(problem, speed)
    least = 1e-9 * problem.rate_alone_steps_per_s.max(initial=0.0)
    np.testing.assert_allclose(allocation.rate_steps_per_s, expected, rtol=1e-6, atol=least)
    assert allocation.certificate.gap <= GAP_MAX


def test_a_job_of_speed_zero_keeps_what_it_has() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])

    allocation = solve(problem, ProgressiveFilling(lambda _: np.array([1.0, 0.0])))

    assert allocation.rate_steps_per_s == pytest.approx([4, 0])


def test_where_nobody_rises_nobody_runs() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])

    allocation = solve(problem, ProgressiveFilling(lambda _: np.zeros(2)))

    assert allocation.share.tolist() == [[0], [0]]
    assert allocation.certificate.path == "nothing rises"


def test_jobs_that_can_run_nowhere_count_as_saturated() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [0.0], [4.0]])

    allocation = solve(problem, ProgressiveFilling(lambda saturated: np.where(saturated[1], [1.0, 1.0, 3.0], 0.0)))

    assert allocation.rate_steps_per_s == pytest.approx([1, 0, 3])


def test_jobs_said_to_be_alike_are_one_class() -> None:
    problem = AllocationProblem.of("abcd", ["v100"], [1], [[4.0], [4.0], [4.0], [8.0]])

    allocation = solve(problem, ProgressiveFilling(lambda _: np.array([1.0, 1.0, 1.0, 2.0]), np.array([0, 0, 1, 0])))

    assert allocation.certificate.path.startswith("classes+")
    assert allocation.share[:, 0] == pytest.approx([1 / 4] * 4)


@pytest.mark.parametrize(
    ("speeds", "complaint"),
    [
        ([1.0], r"speed must have shape \(2,\), got \(1,\)"),
        ([1.0, -1.0], r"speed\[1\] must be finite and >= 0, got -1.0"),
        ([np.nan, 1.0], r"speed\[0\] must be finite and >= 0, got nan"),
        ([1.0, 2.0], "speed must be equal for jobs with equal `alike`"),
    ],
)
def test_speeds_that_are_none_are_refused(speeds: list[float], complaint: str) -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])

    with pytest.raises(InvalidInput, match=complaint):
        solve(problem, ProgressiveFilling(lambda _: np.array(speeds), alike=np.zeros(2, dtype=np.int64)))


@pytest.mark.parametrize("objective", [MaxMinLexicographic(np.ones(3)), ProgressiveFilling(np.ones, np.zeros(3, int))])
def test_an_objective_of_other_jobs_is_refused(objective: MaxMinLexicographic | ProgressiveFilling) -> None:
    with pytest.raises(InvalidInput, match="one entry for each of 5 jobs, got 3"):
        solve(random_problem(0, jobs=5), objective)


@pytest.mark.parametrize("seed", range(2))
def test_some_hundred_distinct_jobs_get_the_same_rates_by_prices_as_by_highs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(seed, jobs=water_level.CLASSES_MIN + 10)
    objective = MaxMinLexicographic(scale_of(problem))

    by_prices = solve(problem, objective)
    monkeypatch.setattr(water_level, "CLASSES_MIN", water_level.NEWTON_MIN)
    by_highs = solve(problem, objective)

    assert ("prices" in by_prices.certificate.path, "highs" in by_highs.certificate.path) == (True, True)
    assert by_prices.certificate.gap <= GAP_MAX
    assert by_prices.rate_steps_per_s == pytest.approx(by_highs.rate_steps_per_s, rel=1e-8)
