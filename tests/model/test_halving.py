"""Successive halving and HyperBand against the papers' algorithms and a plain loop; roles of jobs as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.model.apps import AppRole, Direction, HalvingSchedule, Rung, check_apps
from gavelpy.model.halving import Bracket, hyperband, successive_halving

# Li et al. (JMLR 2018), algorithm 1 with R = 81 and η = 3: (n_i, r_i) by bracket s = 4, 3, 2, 1, 0.
R_81 = [
    [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
    [(34, 3), (11, 9), (3, 27), (1, 81)],
    [(15, 9), (5, 27), (1, 81)],
    [(8, 27), (2, 81)],
    [(5, 81)],
]


def stages(bracket: Bracket, steps_max: float) -> list[tuple[int, float]]:
    """(n_i, r_i) of a bracket: jobs that do so many steps, up to the last one."""
    jobs = [bracket.jobs, *(rung.keep for rung in bracket.rungs)]
    return list(zip(jobs, [*(rung.steps for rung in bracket.rungs), steps_max], strict=True))


def test_hyperband_gives_the_brackets_of_algorithm_1_for_81_steps() -> None:
    assert [stages(bracket, 81) for bracket in hyperband(1, 81, 3)] == R_81


@given(s_max=st.integers(0, 5), eta=st.integers(2, 4), unit=st.integers(1, 50))
def test_hyperband_is_the_algorithm_in_whole_numbers(s_max: int, eta: int, unit: int) -> None:
    """Oracle: algorithm 1 with exact integers, for R = η^s_max units."""
    expected = []
    for s in range(s_max, -1, -1):
        n = -(-(s_max + 1) * eta**s // (s + 1))
        expected.append([(n // eta**i, unit * eta ** (s_max - s + i)) for i in range(s + 1)])

    found = hyperband(unit, unit * eta**s_max, eta)

    assert [stages(bracket, unit * eta**s_max) for bracket in found] == expected


def test_brackets_of_hyperband_have_about_equal_budgets() -> None:
    budgets = [sum(n * r for n, r in stages(bracket, 81)) for bracket in hyperband(1, 81, 3)]

    assert max(budgets) <= 5 * 81, "B = (s_max + 1) R"
    assert min(budgets) >= 0.75 * 5 * 81


@given(jobs=st.integers(1, 500), eta=st.integers(2, 5), steps_min=st.integers(1, 20), ratio=st.integers(1, 400))
def test_successive_halving_keeps_one_of_eta_until_too_few_jobs_or_steps_are_left(
    jobs: int, eta: int, steps_min: int, ratio: int
) -> None:
    expected, n, r = [], jobs, steps_min
    while r < steps_min * ratio and n >= eta:
        n, r = n // eta, r * eta
        expected.append((r // eta, n))

    found = successive_halving(jobs, steps_min, steps_min * ratio, eta)

    assert [(rung.steps, rung.keep) for rung in found.rungs] == expected


@pytest.mark.parametrize(
    ("steps_min", "steps_max", "eta", "message"),
    [
        (1, 81, 1.0, "eta must be > 1"),
        (1, 81, math.nan, "eta must be > 1"),
        (0, 81, 3, "steps_min must be in"),
        (100, 81, 3, "steps_min must be in"),
        (1, 1e9, 3, "at most 100000 jobs"),
    ],
)
def test_schedules_that_cannot_be_are_refused(steps_min: float, steps_max: float, eta: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        hyperband(steps_min, steps_max, eta)


@given(
    at=st.integers(0, 8),
    direction=st.sampled_from(Direction),
    bracket=st.integers(0, 4),
    rungs=st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 9)), max_size=4, unique_by=lambda rung: rung[0]),
)
def test_a_role_is_the_same_after_text(
    at: int, direction: Direction, bracket: int, rungs: list[tuple[float, int]]
) -> None:
    steps = tuple(Rung(*rung) for rung in sorted(rungs))
    role = AppRole("tune", at, 9, "val/loss", direction, HalvingSchedule.HYPERBAND, bracket, steps)

    assert AppRole.parse(role.text) == role


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tune", "jobs of an app must be in"),
        ("tune:at=9:jobs=9", "at of an app must be in"),
        ("tu ne:at=0:jobs=9", "name of an app must be"),
        ("tune:at=0:jobs=9:metric=a b", "metric of an app must be"),
        ("tune:at=0:jobs=9:schedule=hyperband:rungs=5/3,5/1", "rungs of an app must be steps"),
        ("tune:at=0:jobs=9:schedule=hyperband:rungs=5/0", "rungs of an app must be STEPS/JOBS"),
        ("tune:at=0:jobs=9:schedule=hyperband:rungs=nan/1", "rungs of an app must be steps"),
        ("tune:at=0:jobs=9:rungs=5/3", "rungs of an app must be none"),
        ("tune:at=0:jobs=9:speed=5", "app must be NAME and"),
        ("tune:at=0:jobs=9:at=1", "app must be NAME and"),
        ("tune:at=x:jobs=9", "app must have numbers, min or max, and a schedule"),
        ("tune:at=0:jobs=9:schedule=best", "app must have numbers, min or max, and a schedule"),
    ],
)
def test_a_role_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        AppRole.parse(text)


@pytest.mark.parametrize(
    "places",
    [[0, 1], [0, 2, 1], [1, 2, 0], [0, 1, 1]],
    ids=["one is missing", "out of order", "begins elsewhere", "twice"],
)
def test_jobs_of_an_app_are_next_to_each_other_in_order_and_complete(places: list[int]) -> None:
    roles = [AppRole("tune", at, 3).text for at in places]

    check_apps(["", *(AppRole("tune", at, 3).text for at in range(3)), ""])
    with pytest.raises(InvalidInput, match="app 'tune' must be of 3 jobs next to each other"):
        check_apps(["", *roles])
