"""The structure of an optimum: the numba kernel finds the kinks that numpy finds, number by number."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices import numba_kernels
from gavelpy.solve.prices.crossover import Vertex, restricted
from gavelpy.solve.prices.structure_kernels import kinks_of, solved
from gavelpy.solve.prices.table import Table
from gavelpy.solve.prices.vertex import _KINK, _as_modes, _Kinks, _kinks, _solved

Kinks = tuple[bytes, ...] | None


def found(seed: int) -> tuple[Kinks, Kinks]:
    """Kinks by numba and by numpy; rates are small whole numbers, so that many modes are equally cheap."""
    rng = np.random.default_rng(seed)
    K, T, gains = int(rng.integers(1, 6)), int(rng.integers(1, 7)), bool(rng.random() < 0.5)
    rate = rng.integers(0, 5, (K, T)).astype(np.float64)
    rate[:, 0] = np.maximum(rate[:, 0], 1.0)
    gain = rate * rng.integers(1, 3, (K, 1)) if gains else np.zeros((0, T))
    table = Table(rate / 4.0, rng.choice([1.0, 2.0], K), np.ones(K), np.full(T, 8.0), gain)
    need, slope = rng.choice([0.0, 0.25, 0.3, 0.5, 0.6], K), np.full(K, float(rng.random() < 0.5))
    price = rng.choice([1e-12, 0.5, 1.0, 2.0, rng.random()], T)
    s = numba_kernels.sweep(table, need, np.zeros(K), price, 0.0, 0.0)
    rows = np.arange(K)
    vertex = Vertex(price, 0.0, False, s.low, s.high, need, slope, rows, np.zeros((K, T)), attempts=0)
    follow = bool(rng.random() < 0.7)
    r = restricted(table, s, need, price)
    ours = compiled_kinks(table, vertex, r.low, r.high, need, times_follow=follow)
    return figures(ours, T), figures(_kinks(table, vertex, r, times_follow=follow), T)


def compiled_kinks(
    table: Table, vertex: Vertex, low: Ints, high: Ints, need: Floats, *, times_follow: bool
) -> _Kinks | None:
    """The kinks by the kernel."""
    T = table.rate.shape[1]
    rows, modes, swap = np.empty(T + 1, np.int64), np.empty((2, T + 1), np.int64), np.empty((T + 1, T + 1))
    B = kinks_of(
        table.rate, table.gain, table.gpus, vertex.rows, low, high, need, vertex.price, _KINK, times_follow,
        rows, modes[0], modes[1], swap,
    )  # fmt: skip
    if B < 0:
        return None
    padded = np.zeros((len(table.gpus), T + 1))
    padded[:, :T] = table.gain if len(table.gain) else 0.0
    low, high = _as_modes(modes[0, :B], table), _as_modes(modes[1, :B], table)
    return _Kinks(rows[:B], low, high, swap[:B, :T], (swap[:B] * padded[rows[:B]]).sum(axis=1))


def figures(kinks: object, gpu_types: int) -> Kinks:
    """The bytes of kinks; none for more kinks than types have prices, which determine nothing."""
    if kinks is None or len(kinks.rows) > gpu_types + 1:
        return None
    arrays: list[Floats | Ints] = [getattr(kinks, name) for name in ("rows", "low", "high", "swap", "gain")]
    return tuple((array + 0).tobytes() for array in arrays)  # -0.0 is 0.0


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_numba_finds_the_kinks_that_numpy_finds(first: int) -> None:
    pairs = [found(seed) for seed in range(first, first + 500)]

    assert [n for n, (ours, numpys) in enumerate(pairs, first) if ours != numpys] == []
    assert sum(ours is not None and len(ours[0]) > 0 for ours, _ in pairs) > 100


def solutions(seed: int) -> tuple[bytes | None, bytes | None, float]:
    """The bytes of a random system's solution by numba and by Python, and the largest relative residual."""
    rng = np.random.default_rng(seed)
    N = int(rng.integers(1, 10))
    matrix = rng.normal(size=(N, N)) if rng.random() < 0.5 else rng.integers(-2, 3, (N, N)).astype(np.float64)
    right, ours = rng.normal(size=N), np.zeros(N)
    is_solved = solved(matrix, right, N, ours)
    try:
        others = _solved(matrix, right)
    except np.linalg.LinAlgError:
        return (ours.tobytes() if is_solved else None), None, 0.0
    residual = float(np.abs(matrix @ others - right).max() / np.abs(matrix).max() / max(np.abs(others).max(), 1.0))
    return (ours.tobytes() if is_solved else None), others.tobytes(), residual


def test_numba_solves_equations_as_python_does() -> None:
    found = [solutions(seed) for seed in range(2000)]

    assert [n for n, (ours, others, _) in enumerate(found) if ours != others] == []
    assert max(residual for _, _, residual in found) < 1e-13
    assert sum(ours is None for ours, _, _ in found) > 20
