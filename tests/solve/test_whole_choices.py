"""One whole choice for each job, against trying all combinations, and Sia's policy against its formula."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.solve import whole_choices
from gavelpy.solve.whole_choices import best_whole_choices


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_no_combination_is_worth_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    J, R = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    job = np.sort(rng.integers(0, J, int(rng.integers(1, 12))))
    value, demand = rng.uniform(-0.3, 2.0, len(job)), rng.integers(0, 5, (len(job), R)).astype(float)
    capacity = rng.integers(1, 9, R).astype(float)

    best = best_whole_choices(job, value, demand, capacity)

    of_jobs = [[None, *np.flatnonzero(job == j).tolist()] for j in range(J)]
    most = 0.0
    for combination in itertools.product(*of_jobs):
        rows = [k for k in combination if k is not None]
        if (demand[rows].sum(axis=0) <= capacity).all():
            most = max(most, float(value[rows].sum()))
    assert best.value == pytest.approx(most, rel=1e-6, abs=1e-9)
    assert best.bound == pytest.approx(most, rel=1e-6, abs=1e-9)
    assert best.value == pytest.approx(value[best.chosen].sum())
    assert len(set(job[best.chosen].tolist())) == len(best.chosen)
    assert (demand[best.chosen].sum(axis=0) <= capacity).all()


def test_a_limit_of_nodes_leaves_an_answer_with_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    job, gpus = np.repeat(np.arange(60), 4), np.tile([1.0, 3.0, 5.0, 7.0], 60)
    value, demand, capacity = rng.uniform(0.5, 1.0, 240) * gpus**0.8, gpus[:, None], np.array([97.0])
    exact = best_whole_choices(job, value, demand, capacity)
    monkeypatch.setattr(whole_choices, "NODES_MAX", 0)

    limited = best_whole_choices(job, value, demand, capacity)

    assert 0.9 * exact.value <= limited.value <= exact.value * (1 + 1e-9)
    assert limited.bound >= exact.value * (1 - 1e-9)
    assert (demand[limited.chosen].sum(axis=0) <= capacity).all()
