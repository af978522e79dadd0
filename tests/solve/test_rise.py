"""Targets of a water filling, at levels and roots, against arithmetic by hand; and costs of rates, against an LP."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from gavelpy.model.arrays import Bools, Floats
from gavelpy.solve.filling import saturation
from gavelpy.solve.filling.saturation import worths_of
from gavelpy.solve.filling.targets import EvenTargets, PiecewiseTargets, Targets
from gavelpy.solve.prices import numba_search
from gavelpy.solve.prices.curve_kernels import level_of


def both(speed: list[float], limit: list[float]) -> list[Targets]:
    """The same targets in both forms."""
    return [
        EvenTargets.of(np.array(speed), np.array(limit)),
        PiecewiseTargets.of(lambda _: np.array(speed), np.array(limit)),
    ]


@pytest.mark.parametrize("rise", both([1.0, 2.0], [3.0, 2.0]))
def test_targets_rise_to_their_limits(rise: Targets) -> None:
    assert rise.at(0.5).tolist() == [0.5, 1]
    assert rise.at(2.0).tolist() == [2, 2]
    assert rise.at(np.inf).tolist() == [3, 2]
    assert rise.first_limit == 1


@pytest.mark.parametrize("rise", both([1.0, 2.0], [3.0, 2.0]))
@pytest.mark.parametrize(
    ("budget", "level"), [(2.0, 0.4), (5.0, 1.0), (6.0, 2.0), (7.0, np.inf), (9.0, np.inf), (0.0, 0.0), (-1.0, 0.0)]
)
def test_root_is_where_the_targets_cost_the_budget(rise: Targets, budget: float, level: float) -> None:
    assert rise.root(np.array([1.0, 2.0]), budget) == pytest.approx(level)


@pytest.mark.parametrize("rise", both([1.0, 2.0, 1.0], [3.0, 2.0, 9.0]))
def test_the_saturated_stay_where_they_are(rise: Targets) -> None:
    later = rise.advanced(0.5, np.array([True, False, False]), np.array([3.0, 1.6, 9.0]))

    assert later.saturated.tolist() == [True, False, False]
    assert later.at(1.0).tolist() == pytest.approx([0.5, 1.6, 1])
    assert later.start == 0.5
    assert later.root(np.array([1.0, 1.0, 0.0]), 2.0) == pytest.approx(0.75)


@pytest.mark.parametrize("rise", both([1.0, 2.0], [3.0, 2.0]))
def test_a_class_at_its_new_limit_is_saturated(rise: Targets) -> None:
    later = rise.advanced(0.5, np.zeros(2, dtype=np.bool_), np.array([0.5, 2.0]))

    assert later.saturated.tolist() == [True, False]


def test_speeds_are_asked_again_at_every_limit() -> None:
    def speeds(saturated: Bools) -> Floats:
        return np.array([1.0, 0.0, 1.0 + saturated.sum()])

    rise = PiecewiseTargets.of(speeds, np.array([2.0, 5.0, 8.0]))

    assert rise.at(2.0).tolist() == [2, 0, 2]
    assert rise.at(4.0).tolist() == [2, 0, 6]
    assert rise.at(np.inf).tolist() == [2, 0, 8]
    assert rise.root(np.array([0.0, 0.0, 1.0]), 6.0) == pytest.approx(4)


@pytest.mark.parametrize("seed", range(20))
def test_cost_of_a_rate_is_that_of_a_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate, cost = rng.choice([0.0, 0.3, 0.6, 1.0], (6, 3)), rng.choice([0.0, 1.0, 2.0, 7.0], (6, 3))
    need = rate.max(axis=1) * rng.choice([0.0, 0.4, 0.5, 1.0], 6)

    worth, budget = worths_of(rate, cost, need)

    answers = [
        linprog(c, A_ub=[-r, np.ones(3)], b_ub=[-n, 1.0], bounds=[(0, None if x else 0) for x in r]).fun
        for r, c, n in zip(rate, cost, need, strict=True)
    ]
    assert worth * need - budget == pytest.approx(np.array(answers), abs=1e-12)


def test_worth_at_a_corner_is_the_steeper_slope() -> None:
    rate, cost = np.array([[0.5, 1.0]]), np.array([[0.0, 3.0]])

    worth, budget = worths_of(rate, cost, np.array([0.5]))

    assert worth == pytest.approx([6])
    assert budget == pytest.approx([3])


def random_worths(seed: int) -> tuple[Floats, Floats, Floats]:
    """Rates, costs and needs of random classes: ties, zeros, free types and twelve decades among them."""
    rng = np.random.default_rng(seed)
    classes, types, decades = 50, int(rng.integers(1, 9)), float(rng.choice([0.5, 3.0, 12.0]))
    rate = 10.0 ** -rng.uniform(0.0, decades, (classes, types)) * (rng.random((classes, types)) < 0.8)
    price = 10.0 ** -rng.uniform(0.0, decades, types) * (rng.random(types) < 0.8)
    cost = rng.choice([1.0, 2.0, 8.0], (classes, 1)) * price
    need = rate.max(axis=1) * rng.choice([0.0, 0.3, 1.0 - 1e-15, 1.0], classes)
    if seed % 3 == 0:
        rate[:, 0] = cost[:, 0]  # one slope for all classes
    return rate, cost, need


@pytest.mark.parametrize("seed", range(60))
def test_worths_by_kernel_have_the_bytes_of_numpy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rate, cost, need = random_worths(seed)
    found = []

    for kernels in (numba_search, None):
        monkeypatch.setattr(saturation, "search_kernels", lambda kernels=kernels: kernels)
        found.append([figures.tobytes() for figures in worths_of(rate, cost, need)])

    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(40))
def test_compiled_roots_of_lines_are_those_of_targets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speed, limit = 10.0 ** rng.uniform(-4.0, 4.0, 30), rng.choice([1.0, 0.5, 1e-3], 30)
    worth = 10.0 ** rng.uniform(-3.0, 0.0, 30) * (rng.random(30) < 0.9)
    budget = float(worth @ limit) * rng.uniform(0.05, 1.1)

    expected = EvenTargets.of(speed, limit).root(worth, budget)

    starts = (1e-9, 1.0, 1e9)
    assert [level_of(np.zeros(30), speed, limit, worth, budget, start) for start in starts] == pytest.approx(
        [expected] * 3, rel=1e-9
    )
