"""The problems of requests: what is kept from the last one equals what is read again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gavelpy.mechanism.requests import JobNames
from gavelpy.model.arrays import Floats, row_sums
from tests.mechanism.builders import make_jobs

FINITE = st.floats(-1e9, 1e9, width=64)


@given(problems=st.lists(st.sets(st.integers(0, 19)), max_size=12))
def test_ids_that_are_kept_are_those_of_the_rows(problems: list[set[int]]) -> None:
    jobs, names = make_jobs([[1.0]] * 20), JobNames()

    found = [names.of(jobs, np.array(sorted(rows), dtype=np.int64)) for rows in problems]

    assert found == [tuple(jobs.specs[row].id for row in sorted(rows)) for rows in problems]


@given(table=hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40), elements=FINITE))
def test_sums_of_rows_are_numpys_to_the_last_bit(table: Floats) -> None:
    assert (row_sums(table) == table.sum(axis=1)).all()
