"""The highest rates of jobs alone in the cluster: the kernel's bytes are numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import finish_time
from gavelpy.solve.program import program_of
from gavelpy.solve.solver import NUMPY_ROWS_MAX


def highest(seed: int, *, types: int) -> tuple[bytes, bytes]:
    """Rates and their increase per GPU for random jobs; some types have no GPUs, and some rates are equal."""
    rng = np.random.default_rng(seed)
    K = NUMPY_ROWS_MAX + 8
    rate = np.exp(rng.normal(0.0, 1.0, (K, types))) if seed % 2 else rng.integers(1, 5, (K, types)).astype(np.float64)
    rate *= rng.random((K, types)) < 0.8
    rate[np.arange(K), rng.integers(0, types, K)] += 1.0
    counts = rng.integers(0, 12, types)
    counts[0] += 1
    names = [f"t{t}" for t in range(types)]
    problem = AllocationProblem.of(
        [f"j{k}" for k in range(K)], names, counts, rate, gpus=rng.choice([1, 2, 4, 8, 16], K)
    )
    best, per_gpu = finish_time.best_alone(program_of(problem, np.ones(K), np.zeros(K)))
    return best.tobytes(), (per_gpu + 0.0).tobytes()  # -0.0 is 0.0


@pytest.mark.parametrize("types", range(1, 10))
def test_kernel_and_numpy_find_the_same_bytes(types: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [highest(seed, types=types) for seed in range(8)]
    monkeypatch.setattr(finish_time, "NUMPY_ROWS_MAX", NUMPY_ROWS_MAX + 100)

    assert found == [highest(seed, types=types) for seed in range(8)]
