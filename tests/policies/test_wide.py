"""Random problems with sizes and further resources: no failure, no refuted certificate, nothing ignored.

A few of them in every run, all in `make test-slow`; `python -m benchmarks certainty --wide` prints details.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.solve.solver import Solver
from tests.policies.many import POLICIES
from tests.policies.wide import OPTIMISING, PROBLEMS, judged_together, judged_wide

BLOCK = 500


def test_a_few_wide_problems_have_answers_that_hold() -> None:
    solver = Solver()

    verdicts = [judged_wide(number, solver) for number in range(2 * len(POLICIES))]

    assert [verdict for verdict in verdicts if verdict.wrong] == []
    assert {verdict.path for verdict in verdicts} >= {"refused", "rule", "highs"}


@given(number=st.integers(PROBLEMS, 10**9))
@settings(max_examples=8, deadline=None)
def test_any_wide_problem_has_an_answer_that_holds(number: int) -> None:
    assert judged_wide(number).wrong == ""


def test_all_inputs_together_have_answers_that_hold() -> None:
    solver = Solver()

    verdicts = [judged_together(number, solver) for number in range(len(OPTIMISING))]

    assert [verdict for verdict in verdicts if verdict.wrong] == []
    assert {verdict.policy for verdict in verdicts} == set(OPTIMISING)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROBLEMS, BLOCK))
def test_ten_thousand_problems_with_all_inputs_together_have_answers_that_hold(first: int) -> None:
    solver = Solver()

    verdicts = [judged_together(number, solver) for number in range(first, first + BLOCK)]

    assert [verdict for verdict in verdicts if verdict.wrong] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROBLEMS, BLOCK))
def test_ten_thousand_wide_problems_have_answers_that_hold(first: int) -> None:
    solver = Solver()

    verdicts = [judged_wide(number, solver) for number in range(first, first + BLOCK)]

    assert [verdict for verdict in verdicts if verdict.wrong] == []
