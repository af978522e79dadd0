"""The largest feasible set of floors, against all sets of small problems, each checked by scipy."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import feasible_floors
from gavelpy.solve.feasible_floors import max_feasible_floors
from gavelpy.solve.objective import MaxSum
from tests.solve.problems import small_problem
from tests.solve.test_farkas import can_be_kept, keeps

MARGIN = 1e-6  # sets that are feasible or not by less than this may count or not


def floors_of(problem: AllocationProblem, seed: int) -> Floats:
    """A floor for most jobs, of a tenth to all of the best rate."""
    part = np.random.default_rng(seed).choice([0.0, 0.1, 0.4, 0.7, 1.0], problem.job_count)
    return part * problem.rate_alone_steps_per_s.max(axis=1)


def feasible_sets(problem: AllocationProblem, floor: Floats, by: float) -> list[tuple[int, ...]]:
    """The largest sets of floors that are feasible when all are multiplied by `by`, in order of their positions."""
    rows = np.flatnonzero((floor > 0) & problem.can_run).tolist()
    for size in range(len(rows), 0, -1):
        chosen = [one for one in combinations(rows, size) if can_be_kept(problem, _only(floor, one) * by) >= 1.0]
        if chosen:
            return chosen
    return [()]


def _only(floor: Floats, rows: tuple[int, ...]) -> Floats:
    is_chosen: Bools = np.isin(np.arange(len(floor)), rows)
    return np.where(is_chosen, floor, 0.0)


@given(seed=st.integers(0, 2**32))
def test_set_is_the_largest_and_of_those_the_earliest(seed: int) -> None:
    problem = small_problem(seed)
    floor = floors_of(problem, seed)

    found = max_feasible_floors(problem, MaxSum(np.ones(problem.job_count)), floor)

    surely, perhaps = (feasible_sets(problem, floor, by) for by in (1 + MARGIN, 1 - MARGIN))
    assert len(surely[0]) <= found.kept.sum() <= len(perhaps[0]) <= found.most
    assert keeps(found.allocation, np.where(found.kept, floor, 0.0))
    rows = np.flatnonzero((floor > 0) & problem.can_run).tolist()
    if surely == perhaps:  # no set is on the edge
        assert sum(map(rows.index, np.flatnonzero(found.kept))) == min(sum(map(rows.index, one)) for one in surely)


@given(seed=st.integers(0, 2**32))
def test_many_floors_are_rounded_down_below_a_bound(seed: int) -> None:
    problem = small_problem(seed)
    floor = floors_of(problem, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feasible_floors, "MILP_JOBS", 1)
        found = max_feasible_floors(problem, MaxSum(np.ones(problem.job_count)), floor)

    assert len(feasible_sets(problem, floor, 1 + MARGIN)[0]) <= found.most
    assert found.kept.sum() <= found.most
    assert keeps(found.allocation, np.where(found.kept, floor, 0.0))


@given(seed=st.integers(0, 2**32), cuts=st.sampled_from([1, 20]))
def test_set_that_fails_its_certificate_is_replaced(seed: int, cuts: int) -> None:
    problem = small_problem(seed)
    floor = floors_of(problem, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feasible_floors, "KEPT", 1.2)  # sets of the search fail here
        patch.setattr(feasible_floors, "CUTS_MAX", cuts)
        found = max_feasible_floors(problem, MaxSum(np.ones(problem.job_count)), floor)

    assert keeps(found.allocation, np.where(found.kept, 1.2 * floor, 0.0))
    assert found.kept.sum() <= len(feasible_sets(problem, floor, 1.2 - MARGIN)[0])
