"""Lists of rows of the table of jobs: those that are active, leased, have shares, or have time to book.

Most steps of a wake-up look at some of these lists only. A list is made when it is needed; afterwards a change costs as
much as it changes, not as much as there are jobs: a long queue of jobs without shares costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.lifecycle import LAST_ALIVE
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.jobs import JobTable

NO_ROWS: Ints = np.zeros(0, dtype=np.int64)
FEW = 8  # rows that are removed from a list one by one


class RowLists:
    """Rows of a table of jobs, ascending. The table reports what it adds and changes."""

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs
        self.reset()

    def reset(self) -> None:
        """The rows have changed: makes all lists again when they are needed."""
        self._active, self._to, self._any_over = NO_ROWS, 0, False  # of the rows up to `_to`
        self._timed: Ints | None = None
        self._is_timed: Bools = np.zeros(0, dtype=np.bool_)  # by row
        self._any_timed_over = False
        self._leased: Ints | None = None

    def ended(self, rows: Ints) -> None:
        """These jobs are over."""
        self._leased = None
        if len(rows) > FEW:
            self._any_over = self._any_timed_over = True
            return
        for row in rows.tolist():
            self._active = _without(self._active, row)
            self._active.setflags(write=False)
            self._timed = None if self._timed is None else _without(self._timed, row)

    def leases_changed(self, rows: Ints | int) -> None:
        """These jobs have got leases or lost them."""
        self.time_passes(rows)
        self._leased = None

    def time_passes(self, rows: Ints | int) -> None:
        """These jobs have got shares, leases or received time."""
        if self._timed is None:
            return
        if len(self._is_timed) < len(self._jobs.state):
            self._is_timed = np.concatenate([self._is_timed, np.zeros(len(self._jobs.state), dtype=np.bool_)])
        is_timed = self._is_timed[rows]
        if is_timed.all():
            return
        self._is_timed[rows] = True
        new = rows[~is_timed] if isinstance(rows, np.ndarray) else np.array([rows])
        new = new[self._jobs.state[new] <= LAST_ALIVE]  # an answer may have jobs that are over by now
        if len(new):
            self._timed = _with(self._timed, new if len(new) > 1 else new.item())

    @property
    def active(self) -> Ints:
        """Jobs that are not over."""
        jobs = self._jobs
        if self._any_over:
            self._active = self._active[jobs.state[self._active] <= LAST_ALIVE]
        elif self._to == jobs.count:
            return self._active
        if self._to < jobs.count:
            new = np.arange(self._to, jobs.count)
            self._active = np.concatenate([self._active, new[jobs.state[new] <= LAST_ALIVE]])
        self._to, self._any_over = jobs.count, False
        self._active.setflags(write=False)
        return self._active

    @property
    def timed(self) -> Ints:
        """Active jobs but those without shares, leases, owed and received time: for these no time is booked."""
        jobs = self._jobs
        if self._timed is None:
            active = self.active
            is_timed = jobs.lease[active] >= 0
            for column in (jobs.target, jobs.owed_s, jobs.received_s):
                is_timed |= (column.take(active, axis=0) != 0).any(axis=1)
            self._timed = active[is_timed]
            self._is_timed = np.zeros(len(jobs.state), dtype=np.bool_)
            self._is_timed[self._timed] = True
        elif self._any_timed_over:
            self._timed = self._timed[jobs.state[self._timed] <= LAST_ALIVE]
        self._any_timed_over = False
        return self._timed

    @property
    def leased(self) -> Ints:
        """Active jobs with a lease granted or running."""
        if self._leased is None:
            timed = self.timed
            self._leased = timed[self._jobs.lease[timed] >= 0]
            self._leased.setflags(write=False)
        return self._leased

    @property
    def shared(self) -> Ints:
        """Active jobs with a share of their own in the allocation in force; claims have others."""
        timed = self.timed
        return np.asarray(timed[(self._jobs.target.take(timed, axis=0) != 0).any(axis=1)])


def _with(rows: Ints, new: Ints | int) -> Ints:
    """Ascending `rows` and the new ones, each once; `np.union1d` takes ten times as long for one."""
    if not isinstance(new, np.ndarray):
        place = rows.searchsorted(new)
        return np.concatenate([rows[:place], [new], rows[place:]])
    both = np.concatenate([rows, new])
    both.sort()
    is_first = np.ones(len(both), dtype=np.bool_)
    np.not_equal(both[1:], both[:-1], out=is_first[1:])
    return both[is_first]


def _without(rows: Ints, row: int) -> Ints:
    """Ascending `rows` without this one, if it is among them."""
    place = int(rows.searchsorted(row))
    if place == len(rows) or rows[place] != row:
        return rows
    return np.concatenate([rows[:place], rows[place + 1 :]])
