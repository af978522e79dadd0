"""All pivots in one compiled call: unique optima, with the bytes of steps in numpy, and those of a linear program."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from gavelpy.model.arrays import Floats
from gavelpy.solve.prices import pivots
from gavelpy.solve.prices.pivots import most_gain
from gavelpy.solve.prices.pivots_search import solved
from gavelpy.solve.prices.table import Table


def table_of(seed: int) -> tuple[Table, Floats]:
    """A random table of up to 60 classes with floors, and gains of any kind."""
    rng = np.random.default_rng(seed)
    K, T = int(rng.integers(1, 60)), int(rng.integers(2, 7))
    rate = rng.uniform(0.05, 1.0, (K, T))
    rate[np.arange(K), rng.integers(0, T, K)] = 1.0
    gpu_counts = np.maximum(np.round(rng.uniform(0.2, 1.5, T) * K), 1.0)
    gpus, count = rng.choice([1.0, 2.0, 4.0], K), rng.integers(1, 4, K).astype(np.float64)
    table = Table(rate, gpus, count, gpu_counts, rate * rng.uniform(0.1, 1.0, K)[:, None])
    even = gpu_counts.sum() / (gpus * count).sum()
    return table, rng.uniform(0.0, 0.3 * min(even, 1.0), K)


def best_sum(table: Table, floor: Floats) -> float:
    """The highest sum of gains, by HiGHS on the whole program."""
    K, T = table.rate.shape
    eye = np.eye(K)
    time = np.repeat(eye, T, axis=1)
    used = np.tile(np.eye(T), K) * np.repeat(table.load, T)
    reached = time * table.rate.ravel()
    answer = linprog(
        -(table.gain * table.count[:, None]).ravel(),
        A_ub=np.vstack([time, used, -reached]),
        b_ub=np.concatenate([np.ones(K), table.gpu_counts, -floor]),
    )
    assert answer.status == 0
    return -float(answer.fun)


@pytest.mark.parametrize("seed", range(60))
def test_one_call_finds_the_highest_sum_with_the_bytes_of_the_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table, floor = table_of(seed)
    at_once = pivots._by_one_call(table, floor)
    monkeypatch.setattr(pivots, "search_kernels", lambda: None)

    by_steps = most_gain(table, floor)

    assert by_steps is not None
    assert by_steps.is_unique == (at_once is not None)
    assert at_once is None or at_once.time.tobytes() == by_steps.time.tobytes()
    assert at_once is None or at_once.price.tobytes() == by_steps.price.tobytes()
    assert at_once is None or at_once.steepness.tobytes() == by_steps.steepness.tobytes()
    found = float((table.gain * by_steps.time * table.count[:, None]).sum())
    assert found == pytest.approx(best_sum(table, floor), rel=1e-9)


def test_an_optimum_that_is_not_unique_is_left_to_the_steps() -> None:
    rate = np.ones((4, 2))
    table = Table(rate, np.ones(4), np.ones(4), np.array([1.0, 1.0]), rate)

    assert pivots._by_one_call(table, np.zeros(4)) is None


def test_floors_that_no_times_reach_have_no_answer() -> None:
    rate = np.array([[1.0, 0.5], [1.0, 0.25], [0.5, 1.0]])
    table = Table(rate, np.full(3, 4.0), np.ones(3), np.array([4.0, 2.0]), rate)

    assert pivots._by_one_call(table, np.full(3, 0.9)) is None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_elimination_solves_equations_as_its_twin_in_python(size: int) -> None:
    rng = np.random.default_rng(size)
    rows, right = rng.normal(size=(size, size)), rng.normal(size=size)
    found = right.copy()

    assert solved(rows.copy(), found)

    assert found.tobytes() == pivots._by_elimination(rows, right).tobytes()
    assert rows @ found == pytest.approx(right, abs=1e-10)
