"""All pivots in one compiled call: unique optima, with the bytes of steps in numpy, and those of a linear program."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from gavelpy.model.arrays import Floats
from gavelpy.solve.prices import numba_search, pivots
from gavelpy.solve.prices.numpy_search import by_elimination
from gavelpy.solve.prices.pivots import most_gain, most_gain_of_whole_jobs
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


@pytest.mark.parametrize("seed", range(60))
def test_one_search_finds_times_and_prices_where_whole_jobs_fill_whole_gpus(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = table_of(seed)
    none = np.zeros(len(table.gpus))
    monkeypatch.setattr(pivots, "search_kernels", lambda: numba_search)
    at_once = most_gain_of_whole_jobs(table, none)
    monkeypatch.setattr(pivots, "search_kernels", lambda: None)

    by_steps, plain = most_gain_of_whole_jobs(table, none), most_gain(table, none)

    assert plain is not None
    if at_once is None or by_steps is None:  # a few: see below
        assert at_once is by_steps is None
        return
    assert at_once.time.tobytes() == by_steps.time.tobytes()
    assert at_once.price.tobytes() == by_steps.price.tobytes()
    assert at_once.steepness.tobytes() == by_steps.steepness.tobytes()
    assert at_once.time == pytest.approx(plain.time, abs=1e-9)
    assert at_once.price.tobytes() == plain.price.tobytes() or not plain.is_unique
    assert (table.load @ at_once.time <= table.gpu_counts * (1 + 1e-12)).all()
    found = float((table.gain * at_once.time * table.count[:, None]).sum())
    bound = at_once.price @ table.gpu_counts
    bound += ((table.gain - table.gpus[:, None] * at_once.price).max(axis=1, initial=0.0) * table.count).sum()
    assert found == pytest.approx(best_sum(table, none), rel=1e-9)
    assert found == pytest.approx(float(bound), rel=1e-12)


def test_few_problems_need_a_second_search() -> None:
    tables = [table_of(seed)[0] for seed in range(60)]

    assert sum(most_gain_of_whole_jobs(table, np.zeros(len(table.gpus))) is None for table in tables) <= 3


@pytest.mark.parametrize("is_compiled", [True, False])
def test_gpus_that_are_used_to_the_last_one_have_the_price_of_the_next(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = np.array([[1.0, 0.5]])
    table = Table(rate, np.ones(1), np.full(1, 3.0), np.array([3.0, 3.0]), rate)
    monkeypatch.setattr(pivots, "search_kernels", lambda: numba_search if is_compiled else None)

    mix = most_gain_of_whole_jobs(table, np.zeros(1))

    assert mix is not None
    assert mix.is_unique
    assert mix.time.tolist() == [[1.0, 0.0]]
    assert mix.price.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("short", [1e-9, 1e-10], ids=["a GPU less than a trace short", "nearer"])
def test_kinks_that_are_right_with_more_gpus_only_are_no_answer(
    short: float, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = np.array([[1.0, 0.5]])
    table = Table(rate, np.array([1.0 + short]), np.full(1, 3.0), np.array([3.0, 3.0]), rate)
    monkeypatch.setattr(pivots, "search_kernels", lambda: numba_search if is_compiled else None)

    assert most_gain_of_whole_jobs(table, np.zeros(1)) is None


@pytest.mark.parametrize("is_compiled", [True, False])
def test_jobs_that_are_worth_the_same_are_left_to_the_steps(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = np.ones((4, 2))
    table = Table(rate, np.ones(4), np.ones(4), np.array([1.0, 1.0]), rate)
    monkeypatch.setattr(pivots, "search_kernels", lambda: numba_search if is_compiled else None)

    assert most_gain_of_whole_jobs(table, np.zeros(4)) is None


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

    assert found.tobytes() == by_elimination(rows, right).tobytes()
    assert rows @ found == pytest.approx(right, abs=1e-10)
