"""Lists of rows are kept up to date, against lists that are made again from the table."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobFact, JobState
from gavelpy.mechanism.row_lists import RowLists
from tests.mechanism.builders import make_jobs

JOBS, CHANGES = 60, 40


def lists_of(jobs: JobTable) -> list[list[int]]:
    lists = jobs.lists
    return [rows.tolist() for rows in (lists.active, lists.leased, lists.shared)]


@pytest.mark.parametrize("seed", range(20))
def test_lists_are_those_of_the_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = make_jobs([[1.0, 2.0]] * JOBS)
    timed: set[int] = set()
    for _ in range(CHANGES):
        rows = np.unique(rng.integers(0, JOBS, int(rng.choice([1, 2, 20]))))
        alive = rows[jobs.state[rows] == JobState.WAITING]
        match rng.integers(0, 4):
            case 0:
                jobs.change(alive, JobFact.CANCELLED)
            case 1:
                jobs.set_leases(alive, alive)
            case 2:
                jobs.set_leases(int(rows[0]), -1)
            case 3:
                jobs.target[:] = 0.0
                jobs.target[rows, 0] = 0.5
                jobs.lists.time_passes(rows)
        if rng.random() < 0.7:
            fresh = RowLists(jobs)
            assert lists_of(jobs) == [rows.tolist() for rows in (fresh.active, fresh.leased, fresh.shared)]
            timed = (timed & set(jobs.active.tolist())) | set(fresh.timed.tolist())
            assert set(fresh.timed.tolist()) <= set(jobs.lists.timed.tolist()) <= set(jobs.active.tolist())
    assert timed
