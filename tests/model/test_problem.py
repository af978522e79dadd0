"""Allocation problems: validation, views and transforms."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem, BlindView, Entity
from tests.solve.problems import allocation_problems

NAN, INF = float("nan"), float("inf")


def make_problem(**fields: Any) -> AllocationProblem:
    """Three jobs on 4 V100s and 2 K80s; c runs on the V100 only."""
    given = {
        "job_ids": ["a", "b", "c"],
        "gpu_types": ["v100", "k80"],
        "gpu_counts": [4, 2],
        "rates_steps_per_s": [[4.0, 1.0], [3.0, 3.0], [2.0, 0.0]],
    }
    return AllocationProblem.of(**(given | fields))


def test_pandas_objects_are_aligned_by_their_labels() -> None:
    rates = pd.DataFrame({"k80": [0.0, 1.0, 3.0], "v100": [2.0, 4.0, 3.0]}, index=["c", "a", "b"])
    counts = pd.Series({"k80": 2, "v100": 4})
    gpus = pd.Series([1, 2, 4], index=["b", "a", "c"])
    owner = pd.Series(["bob", "ann", "eve"], index=["b", "a", "c"])

    problem = make_problem(
        rates_steps_per_s=rates, gpu_counts=counts, gpus=gpus, owner=owner, resources={"cpu": 10 * counts},
        demand={"cpu": 3 * gpus},
    )  # fmt: skip

    plain = make_problem(
        gpus=[2, 1, 4], owner=["ann", "bob", "eve"], resources={"cpu": [40, 20]}, demand={"cpu": [6, 3, 12]}
    )
    for field in ("member_rate_steps_per_s", "capacity", "demand", "gpus_asked", "owner"):
        assert getattr(problem, field).tolist() == getattr(plain, field).tolist()
    assert problem.owners == plain.owners


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("rates_steps_per_s", pd.DataFrame(np.ones((3, 2)), columns=["v100", "t4"]), "one column for each of 'v100'"),
        ("rates_steps_per_s", pd.DataFrame(np.ones((3, 2)), index=list("abd")), "one row for each of 'a', 'b', 'c', "),
        ("weight", pd.Series(1.0, index=list("abcd")), r"got 'a', 'b', 'c', 'd'; for values by position, give its"),
        ("weight", pd.Series(1.0, index=list("abb")), "weight must have one row for each of"),
        ("gpu_counts", pd.Series([1, 1], index=["v100", "t4"]), "gpu_counts must have one row for each of"),
    ],
)
def test_pandas_objects_with_other_labels_are_refused(field: str, values: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_problem(**{field: values})


@pytest.mark.parametrize("index", [pd.RangeIndex(3), pd.Index([7, 2, 5])])
def test_index_of_numbers_that_are_no_jobs_counts_as_positions(index: pd.Index) -> None:
    problem = make_problem(weight=pd.Series([1.0, 2.0, 3.0], index=index))

    assert problem.weight.tolist() == [1.0, 2.0, 3.0]


def test_problem_without_gpu_types_is_refused() -> None:
    with pytest.raises(InvalidInput, match="gpu_types must name at least one GPU type"):
        AllocationProblem.of(["a"], [], [], np.zeros((1, 0)))


def by_hand_blind(problem: AllocationProblem, row: int) -> Floats:
    """Capacity-weighted mean over the types a member can run on, in plain Python."""
    rates, gpus = problem.member_rate_steps_per_s[row].tolist(), problem.gpu_counts.tolist()
    here = [(rate, n) for rate, n in zip(rates, gpus, strict=True) if rate > 0]
    total = sum(n for _, n in here)
    mean = sum(rate * n for rate, n in here) / total if total else 0.0
    return np.array([mean if rate > 0 else 0.0 for rate in rates])


# Refused values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"resources": {"cpu": [8.0]}}, "resources['cpu'] must have shape (2,) or be one number, got shape (1,)"),
        ({"resources": {"cpu": [8.0, -1.0]}}, "resources['cpu'][1] must be in [0, 1e+15], got -1.0"),
        ({"resources": {"cpu": [8.0, 1e16]}}, "resources['cpu'][1] must be in [0, 1e+15], got 1e+16"),
        ({"resources": {"gpu": 8.0}}, "resources must be unique, got 'gpu' twice (rows 0 and 1)"),
        ({"resources": {"cpu": 8}, "demand": {"cpu": [1, 2]}}, "demand['cpu'] must have shape (3,) or be one number"),
        ({"resources": {"cpu": 8}, "demand": {"cpus": 1}}, "demand must be of resources (cpu), got 'cpus'"),
        ({"demand": {"cpu": 1}}, "demand must be of resources (no resource is given), got 'cpu'"),
    ],
)
def test_resources_that_make_no_sense_are_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        make_problem(**fields)


def test_capacity_without_a_name_for_each_resource_is_refused() -> None:
    with pytest.raises(InvalidInput, match=re.escape("capacity must have shape (2, 1), got (2, 2)")):
        replace(make_problem(), capacity=np.full((2, 2), 8 * THOUSANDTHS))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"gpu_counts": [4, -2]}, "gpu_counts[1] must be finite and >= 0, got -2.0"),
        ({"gpu_counts": [4, NAN]}, "gpu_counts[1] must be finite and >= 0, got nan"),
        ({"gpu_counts": [4]}, "gpu_counts must have shape (2,), got (1,)"),
        ({"gpu_counts": ["x", "y"]}, "gpu_counts must be numbers, got"),
        ({"rates_steps_per_s": [[1.0, 2.0]]}, "rates_steps_per_s must have shape (3, 2), got (1, 2)"),
        ({"rates_steps_per_s": [[1, 2], [1, NAN], [1, 1]]}, "rate_steps_per_s[1][1] must be in [0, 1e+18], got nan"),
        ({"rates_steps_per_s": [[1, 2], [1, -3], [1, 1]]}, "rate_steps_per_s[1][1] must be in [0, 1e+18], got -3.0"),
        ({"rates_steps_per_s": [[1, 2], [1], [1, 1]]}, "rates_steps_per_s must be numbers in rows of one length"),
        ({"job_ids": ["a", "b", "a"]}, "job_ids must be unique, got 'a' twice (rows 0 and 2)"),
        ({"gpu_types": ["v100", "v100"]}, "gpu_types must be unique, got 'v100' twice"),
        ({"gpus": 0}, "gpus[0] must be finite and > 0, got 0.0"),
        ({"gpus": [1, NAN, 1]}, "gpus[1] must be finite and > 0, got nan"),
        ({"gpus": [1, 2]}, "gpus must have shape (3,) or be one number, got shape (2,)"),
        ({"weight": [1, 0, 1]}, "weight[1] must be > 0 and at most 1e+18, got 0.0"),
        ({"weight": [1, 1]}, "weight must have shape (3,) or be one number, got shape (2,)"),
        ({"steps_remaining": INF}, "steps_remaining[0] must be > 0 and at most 1e+18, got inf"),
        ({"steps_total": -1}, "steps_total[0] must be > 0 and at most 1e+18, got -1.0"),
        ({"age_s": -1}, "age_s[0] must be finite and >= 0, got -1.0"),
        ({"isolated_s": NAN}, "isolated_s[0] must be finite and >= 0, got nan"),
        ({"attained_gpu_s": [0, -1, 0]}, "attained_gpu_s[1] must be finite and >= 0, got -1.0"),
        ({"deadline_s": [1, NAN, 1]}, "deadline_s[1] must be a number, or infinite for none, got nan"),
        ({"price_usd_per_gpu_h": [1, -1]}, "price_usd_per_gpu_h[1] must be finite and >= 0, got -1.0"),
        ({"entity": 0}, "entity[0] must be in [-1, 0), got 0"),
        ({"gpu_type_held": [0, 2, -1]}, "gpu_type_held[1] must be in [-1, 2), got 2"),
        ({"gpu_type_held": [0, 0.5, -1]}, "gpu_type_held[1] must be a whole number, got 0.5"),
    ],
)
def test_bad_value_is_refused_by_field_and_place(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        make_problem(**fields)


@pytest.mark.parametrize("weight", [0.0, -1.0, NAN, INF])
def test_bad_weight_of_an_entity_is_refused(weight: float) -> None:
    with pytest.raises(InvalidInput, match="weight of entity 'vision' must be finite and > 0"):
        Entity("vision", weight)


@pytest.mark.parametrize(
    ("parents", "complaint"),
    [
        (("", "z"), "parent of entity 'y' must be one of x, y, got 'z'"),
        (("", "y"), "parent of entity 'y' must not lead back to itself, got 'y'"),
        (("y", "x"), "parent of entity 'x' must not lead back to itself, got 'y'"),
    ],
)
def test_bad_parent_of_an_entity_is_refused(parents: tuple[str, str], complaint: str) -> None:
    entities = [Entity(name, parent=parent) for name, parent in zip("xy", parents, strict=True)]

    with pytest.raises(InvalidInput, match=complaint):
        make_problem(entities=entities)


def test_two_entities_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="ids of entities must be unique, got 'x' twice"):
        make_problem(entities=[Entity("x"), Entity("x", 2.0)])


def test_parents_of_entities_are_rows() -> None:
    problem = make_problem(entities=[Entity("x", parent="z"), Entity("y", parent="x"), Entity("z")])

    assert problem.entity_parent.tolist() == [2, 0, -1]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"member_job": [0, 1, 3]}, "member_job[2] must be in [0, 3), got 3"),
        ({"member_configuration": [0, 2, 1]}, "member_configuration must be sorted and name each configuration"),
        ({"member_configuration": [0, 1, 1]}, "member_configuration must be sorted and name each configuration"),
        ({"demand": [[1], [1], [-1]]}, "demand[2][0] must be >= 0, got -1"),
        ({"capacity": [[1], [-1]]}, "capacity[1][0] must be >= 0, got -1"),
        ({"capacity": [[1], [0.5]]}, "capacity[1][0] must be a whole number, got 0.5"),
    ],
)
def test_configurations_that_do_not_hang_together_are_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        replace(make_problem(), **fields)


# Views -----------------------------------------------------------------------------------------------------------


def test_one_number_applies_to_all_jobs() -> None:
    problem = make_problem(weight=2.5, gpus=2)

    assert problem.weight.tolist() == [2.5, 2.5, 2.5]
    assert problem.gpus_occupied.tolist() == [2.0, 2.0, 2.0]


def test_steps_in_all_are_those_remaining_unless_said_otherwise() -> None:
    assert make_problem(steps_remaining=5).steps_total.tolist() == [5.0, 5.0, 5.0]
    assert make_problem(steps_remaining=5, steps_total=9).steps_total.tolist() == [9.0, 9.0, 9.0]


def test_a_problem_without_jobs_is_a_problem() -> None:
    problem = AllocationProblem.of([], ["v100"], [1], [])

    assert (problem.job_count, problem.configuration_count, problem.runs_alone) == (0, 0, True)


def test_arrays_of_a_problem_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make_problem().weight[0] = 5.0


def test_fits_needs_a_rate_and_gpus() -> None:
    problem = make_problem(gpu_counts=[4, 0])

    assert problem.fits.tolist() == [[True, False]] * 3
    assert make_problem().fits.tolist() == [[True, True], [True, True], [True, False]]


def test_can_run_and_oversized_tell_hopeless_from_too_large() -> None:
    rates = [[4.0, 1.0], [0.0, 0.0], [0.0, 2.0]]
    problem = make_problem(rates_steps_per_s=rates, gpus=[4, 1, 3])

    assert problem.can_run.tolist() == [True, False, True]
    assert problem.is_oversized.tolist() == [False, False, True]
    assert problem.is_whole.tolist() == [[True, False], [True, True], [True, False]]


# Transforms ------------------------------------------------------------------------------------------------------


@given(problem=allocation_problems())
def test_blind_view_is_the_mean_over_the_gpus_a_job_can_run_on(problem: AllocationProblem) -> None:
    blind = problem.blind_to_type()

    expected = [by_hand_blind(problem, row) for row in range(len(problem.member_job))]
    assert np.allclose(blind.member_rate_steps_per_s, np.reshape(expected, blind.member_rate_steps_per_s.shape))


@given(problem=allocation_problems())
def test_blinding_twice_is_blinding_once(problem: AllocationProblem) -> None:
    once = problem.blind_to_type()

    assert np.allclose(once.blind_to_type().member_rate_steps_per_s, once.member_rate_steps_per_s)


@pytest.mark.parametrize(
    ("view", "rates"),
    [
        (BlindView.MEAN, [[3.0, 3.0], [3.0, 3.0], [2.0, 0.0]]),  # (4 x 4 + 1 x 2) / 6
        (BlindView.ONES, [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]),
        (BlindView.FIRST, [[4.0, 4.0], [3.0, 3.0], [2.0, 2.0]]),
    ],
)
def test_blind_views_by_hand(view: BlindView, rates: list[list[float]]) -> None:
    assert make_problem().blind_to_type(view).member_rate_steps_per_s.tolist() == rates


def test_blind_view_changes_rates_only() -> None:
    problem = make_problem(weight=[1, 2, 3])

    blind = problem.blind_to_type()

    assert blind.job_ids == problem.job_ids
    assert blind.weight.tolist() == [1.0, 2.0, 3.0]
    assert blind.capacity.tolist() == problem.capacity.tolist()


def test_an_unknown_blind_view_is_refused() -> None:
    with pytest.raises(ValueError, match="'myopic' is not a valid BlindView"):
        make_problem().blind_to_type("myopic")  # type: ignore[arg-type]  # what a caller may do


def test_pairs_are_configurations_of_two_jobs_on_the_gpus_of_one() -> None:
    problem = make_problem(gpus=[2, 2, 1]).with_pairs([(0, 1)], [[[3.0, 0.5], [2.0, 1.0]]])

    assert problem.configuration_members() == [(0,), (1,), (2,), (0, 1)]
    assert problem.gpus_occupied.tolist() == [2.0, 2.0, 1.0, 2.0]
    assert problem.member_rate_steps_per_s[3:].tolist() == [[3.0, 0.5], [2.0, 1.0]]
    assert not problem.runs_alone


def test_pairs_do_not_change_what_a_job_does_alone() -> None:
    problem = make_problem()

    paired = problem.with_pairs([(0, 1)], [[[90.0, 90.0], [90.0, 90.0]]])

    assert paired.rate_alone_steps_per_s.tolist() == problem.rate_alone_steps_per_s.tolist()
    assert paired.can_run.tolist() == problem.can_run.tolist()


def test_no_pairs_change_nothing() -> None:
    problem = make_problem().with_pairs([], [])

    assert problem.configuration_count == 3
    assert problem.runs_alone


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ([(0, 0)], "pairs must be of two jobs with the same number of GPUs, got 'a' (1) and 'a' (1)"),
        ([(0, 2)], "pairs must be of two jobs with the same number of GPUs, got 'a' (1) and 'c' (2)"),
        ([(0, 3)], "pairs must name rows in [0, 3), got (0, 3)"),
        ([(0, -1)], "pairs must name rows in [0, 3), got (0, -1)"),
        ([(0, 1), (1, 0)], "rates_steps_per_s of pairs must have shape (2, 2, 2), got (1, 2, 2)"),
    ],
)
def test_bad_pairs_are_refused(pairs: list[tuple[int, int]], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        make_problem(gpus=[1, 1, 2]).with_pairs(pairs, np.ones((1, 2, 2)))


def test_whole_gangs_have_no_rate_where_they_do_not_fit() -> None:
    problem = make_problem(gpus=[4, 3, 1])

    whole = problem.with_whole_gangs()

    assert whole.member_rate_steps_per_s.tolist() == [[4.0, 0.0], [3.0, 0.0], [2.0, 0.0]]


@given(problem=allocation_problems())
def test_with_whole_gangs_no_job_fits_a_type_that_is_too_small(problem: AllocationProblem) -> None:
    whole = problem.with_whole_gangs()

    assert not (whole.fits & ~whole.is_whole).any()
    assert not whole.is_oversized.any()


def test_other_numbers_of_gpus_leave_the_types_not_named() -> None:
    problem = make_problem(gpu_counts=[4, 2.5])

    assert problem.with_gpus({"v100": 7}).gpu_counts.tolist() == [7.0, 2.5]


@given(problem=allocation_problems())
def test_the_numbers_of_gpus_can_be_changed_back(problem: AllocationProblem) -> None:
    counts = dict(zip(problem.gpu_types, problem.gpu_counts.astype(int).tolist(), strict=True))

    again = problem.with_gpus(dict.fromkeys(counts, 9)).with_gpus(counts)

    assert again.capacity.tolist() == problem.capacity.tolist()
    assert (again.capacity % THOUSANDTHS == 0).all()


@pytest.mark.parametrize("counts", [{"a100": 3}, {"v100": -3}, {"v100": NAN}])
def test_bad_numbers_of_gpus_are_refused(counts: dict[str, Any]) -> None:
    (name, value), *_ = counts.items()

    with pytest.raises(InvalidInput, match=rf"gpu_counts must give v100, k80 a number >= 0, got '{name}': {value!r}"):
        make_problem().with_gpus(counts)
