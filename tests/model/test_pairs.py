"""The pairs of a problem: only those with a gain, the best partners of each kind first, up to a limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.model.pairs import with_gaining_pairs
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.max_min_fairness import MaxMinFairness

TYPES = ("v100", "k80")


def make_problem(*rates: float, gpus: int | list[int] = 1) -> AllocationProblem:
    """Jobs with these rates on a V100, and half of them on a K80."""
    names = [f"j{n}" for n in range(len(rates))]
    return AllocationProblem.of(names, TYPES, [1, 1], [[rate, rate / 2] for rate in rates], gpus=gpus)


def pairs_of(problem: AllocationProblem) -> list[tuple[int, ...]]:
    return [members for members in problem.configuration_members() if len(members) == 2]


def test_a_pair_runs_at_the_parts_it_keeps_where_it_gains_and_nowhere_else() -> None:
    slowdowns = np.zeros((2, 2, 2))
    slowdowns[0, 1], slowdowns[1, 0] = [0.7, 0.5], [0.6, 0.5]

    problem = with_gaining_pairs(make_problem(4.0, 2.0), [0, 1], slowdowns)

    assert pairs_of(problem) == [(0, 1)]
    assert problem.member_rate_steps_per_s[2:] == pytest.approx(np.array([[2.8, 0.0], [1.2, 0.0]]))


@pytest.mark.parametrize("kept", [(0.5, 0.5), (0.0, 1.0)])
def test_a_pair_that_gains_nothing_or_does_not_fit_is_left_out(kept: tuple[float, float]) -> None:
    slowdowns = np.zeros((2, 2, 2))
    slowdowns[0, 1], slowdowns[1, 0] = kept

    assert with_gaining_pairs(make_problem(4.0, 2.0), [0, 1], slowdowns).runs_alone


def test_jobs_that_ask_for_other_numbers_of_gpus_are_no_pair() -> None:
    assert with_gaining_pairs(make_problem(4.0, 2.0, gpus=[1, 2]), [0, 0], np.ones((1, 1, 2))).runs_alone


def test_of_many_pairs_the_best_company_of_each_kind_comes_first() -> None:
    gains = np.array([[0.5, 0.9, 0.6], [0.9, 0.5, 0.8], [0.6, 0.8, 0.5]])

    slowdowns = np.repeat(gains[:, :, None], 2, axis=2)
    problem = with_gaining_pairs(make_problem(1.0, 1.0, 1.0), [0, 1, 2], slowdowns, pairs_max=2)

    assert pairs_of(problem) == [(0, 1), (1, 2)]


def test_jobs_that_can_use_other_types_are_not_of_one_kind() -> None:
    rates = [[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]]
    problem = AllocationProblem.of(["a", "b", "c", "d"], TYPES, [1, 1], rates)

    assert pairs_of(with_gaining_pairs(problem, [0, 0, 0, 0], np.full((1, 1, 2), 0.9))) == [(2, 3), (0, 1)]


@given(data=st.data(), jobs=st.integers(2, 7))
def test_the_pairs_of_kinds_are_worth_as_much_as_all_pairs(data: st.DataObject, jobs: int) -> None:
    """Oracle: all pairs are allowed. The worst job's level is the same."""
    keys = data.draw(st.lists(st.integers(0, 2), min_size=jobs, max_size=jobs))
    parts = data.draw(st.lists(st.sampled_from([0.0, 0.4, 0.6, 0.9]), min_size=18, max_size=18))
    slowdowns = np.array(parts).reshape(3, 3, 2)
    allowed = [(1, 1), (1, 0), (0, 1)]
    uses = data.draw(st.lists(st.sampled_from(allowed), min_size=jobs, max_size=jobs))
    rates = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 4.0]])[keys] * uses
    problem = AllocationProblem.of([f"j{n}" for n in range(jobs)], TYPES, [1, 1], rates)

    some = MaxMinFairness().allocate(with_gaining_pairs(problem, keys, slowdowns))
    every = MaxMinFairness().allocate(with_every_pair(problem, keys, slowdowns))

    assert some.certificate.objective == pytest.approx(every.certificate.objective, rel=1e-6)


def with_every_pair(problem: AllocationProblem, keys: list[int], slowdowns: np.ndarray) -> AllocationProblem:
    rows = [(a, b) for a in range(problem.job_count) for b in range(a + 1, problem.job_count)]
    alone = problem.rate_alone_steps_per_s
    both = [(slowdowns[keys[a], keys[b]], slowdowns[keys[b], keys[a]]) for a, b in rows]
    rates = [
        [np.where((one > 0) & (other > 0), alone[row] * part, 0.0) for row, part in ((a, one), (b, other))]
        for (a, b), (one, other) in zip(rows, both, strict=True)
    ]
    return problem.with_pairs(rows, np.array(rates))


def test_table_has_relative_rates_of_co_located_jobs() -> None:
    table = ThroughputTable(
        (("a", 1), ("b", 1), ("c", 1)),
        TYPES,
        np.array([[4.0, 2.0], [2.0, 1.0], [1.0, np.nan]]),
        np.zeros((3, 2), dtype=np.int64),
        ("", "", ""),
        np.array([[0, 1], [2, 2]]),
        np.array([[[2.0, 0.0], [1.5, 0.0]], [[0.5, np.nan], [0.7, np.nan]]]),
    )

    kept = table.slowdowns([("b", 1), ("a", 1), ("c", 1), ("d", 1)], ("k80", "v100", "t4"))

    assert kept[0, 1].tolist() == pytest.approx([0.0, 0.75, np.nan], nan_ok=True)
    assert kept[1, 0].tolist() == pytest.approx([0.0, 0.5, np.nan], nan_ok=True)
    assert kept[2, 2].tolist() == pytest.approx([np.nan, 0.6, np.nan], nan_ok=True)
    assert np.isnan(kept[3]).all()
