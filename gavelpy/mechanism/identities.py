"""Stable serials of jobs, whose rows are reused: the map between both, and the core's table by serial for shells.

A job's serial is the number of jobs submitted before it, and never changes. Rows are positions in the core's tables, in
the order of serials. As long as no job has left, row and serial are the same number. When jobs leave (`archiving`), the
rows of the others move up. Events and commands name serials: `translation` replaces them at the core's border.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.jobs import JobTable

GONE = -1  # row of a job that has left
_FIRST_ROWS = 64


class JobGone(LookupError):
    """The job has left the core's tables; the archive has it."""


class Identities:
    """The serials of the jobs in a table, ascending."""

    def __init__(self) -> None:
        self.next_serial = 0
        self.in_rows = False  # events and commands name rows, in a copy of a core that is discarded
        self._room: Ints | None = None  # serials by row, and room for more; None = row and serial are the same
        self._count = 0  # of these
        self._first = 0  # the least serial in `_row_of`
        self._row_of: Ints = np.zeros(0, dtype=np.int64)  # by serial from `_first` on, and room for more; GONE = left

    @property
    def is_plain(self) -> bool:
        """Whether no job has left, so that row and serial are the same."""
        return self._room is None

    @property
    def are_translated(self) -> bool:
        """Whether events and commands have serials that are not rows."""
        return not (self.is_plain or self.in_rows)

    @property
    def serials(self) -> Ints:
        """The serial of each row."""
        return np.arange(self.next_serial) if self._room is None else self._room[: self._count]

    def add(self) -> int:
        """The serial of a new job in the next row."""
        serial = self.next_serial
        if self._room is not None:
            if self._count == len(self._room):
                self._room = np.concatenate([self._room, np.zeros_like(self._room)])
            if serial - self._first == len(self._row_of):
                self._row_of = np.concatenate([self._row_of, np.full_like(self._row_of, GONE)])
            self._room[self._count], self._row_of[serial - self._first] = serial, self._count
            self._count += 1
        self.next_serial += 1
        return serial

    def keep(self, rows: Ints) -> None:
        """Keeps the jobs in these rows (ascending), which move up in order."""
        self.restore(self.serials[rows], self.next_serial)

    def restore(self, serials: Ints, next_serial: int) -> None:
        """Sets the serials of all rows, and that of the next job."""
        self._room = np.zeros(max(_FIRST_ROWS, 2 * len(serials)), dtype=np.int64)
        self._count, self.next_serial = len(serials), next_serial
        self._room[: self._count] = serials
        self._first = int(serials[0]) if len(serials) else next_serial
        self._row_of = np.full(max(_FIRST_ROWS, 2 * (next_serial - self._first)), GONE)
        self._row_of[serials - self._first] = np.arange(len(serials))

    def serial(self, row: int) -> int:
        """The serial of the job in a row."""
        return row if self._room is None else int(self._room[row])

    def of_rows(self, rows: Ints) -> Ints:
        """The serials of the jobs in these rows."""
        return rows if self._room is None else self._room[rows]

    def row(self, serial: int) -> int:
        """The row of a job; GONE if it has left or was never submitted."""
        if self._room is None:
            return serial if 0 <= serial < self.next_serial else GONE
        return int(self._row_of[serial - self._first]) if self._first <= serial < self.next_serial else GONE

    def rows(self, serials: Ints) -> Ints:
        """The rows of jobs, (K,); GONE for those that have left or were never submitted."""
        if serials.shape == (1,):  # most events
            return np.array([self.row(serials.item())])
        is_given = (serials >= self._first) & (serials < self.next_serial)
        if self._room is None:
            return np.where(is_given, serials, GONE)
        if is_given.all():
            return self._row_of[serials - self._first]
        return np.where(is_given, self._row_of[np.where(is_given, serials - self._first, 0)], GONE)

    def has(self, serials: Ints) -> Bools:
        """Whether these jobs are in the table, (K,)."""
        return np.asarray(self.rows(serials) != GONE)


class _Column:
    """A column by serial, to read."""

    def __init__(self, values: Any, ids: Identities) -> None:  # Any: an array, or the list of specs
        self._values, self._ids = values, ids

    def __getitem__(self, serials: Any) -> Any:  # Any: a serial, an array or list of them, or (serials, column)
        rest: tuple[Any, ...] = ()
        if isinstance(serials, tuple):
            serials, *others = serials
            rest = tuple(others)
        if isinstance(serials, int | np.integer):
            row = self._ids.row(int(serials))
            if row == GONE:
                raise JobGone(f"job {serials} has left the scheduler's tables")
            return self._values[(row, *rest)] if rest else self._values[row]
        rows = self._ids.rows(np.asarray(serials, dtype=np.int64))
        if (rows == GONE).any():
            raise JobGone(f"job {np.asarray(serials)[rows == GONE][0]} has left the scheduler's tables")
        return self._values[(rows, *rest)] if rest else self._values[rows]


class _ByJob:
    """A dict by row, to read by serial."""

    def __init__(self, values: dict[int, Any], ids: Identities) -> None:
        self._values, self._ids = values, ids

    def get(self, serial: int, default: Any = None) -> Any:
        """The value of a job, or the default."""
        return self._values.get(self._ids.row(serial), default)

    def items(self) -> list[tuple[int, Any]]:
        """Serials and values."""
        return [(self._ids.serial(row), value) for row, value in self._values.items()]

    def __contains__(self, serial: object) -> bool:
        return isinstance(serial, int) and self._ids.row(serial) in self._values


_NOT_BY_JOB = ("serial_of", "rule_columns", "owners", "job_types")


class _TableBySerial:
    """Reads a table of jobs by serial instead of by row."""

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Any:  # Any: whatever the table has
        value, ids = getattr(self._jobs, name), self._jobs.ids
        if isinstance(value, dict) and name not in _NOT_BY_JOB:
            return _ByJob(value, ids)
        if name in ("active", "leased", "unmeasured", "with_stopping"):
            return ids.of_rows(value)
        return _Column(value, ids) if isinstance(value, np.ndarray) or name == "specs" else value

    @property
    def count(self) -> int:
        """Serial of the next job."""
        return self._jobs.ids.next_serial

    def gpus_held(self, job: int) -> Ints:
        """GPUs of a job's lease."""
        return self._jobs.gpus_held(self._row(job))

    def gpus_stopping(self, job: int) -> Ints:
        """GPUs of a job's stopping lease that may still be in use."""
        return self._jobs.gpus_stopping(self._row(job))

    def ran_s(self, jobs: Ints, now_s: float) -> Any:
        """Running time of jobs under all their leases so far, (K,)."""
        return self._jobs.ran_s(self._jobs.ids.rows(jobs), now_s)

    def _row(self, job: int) -> int:
        row = self._jobs.ids.row(job)
        if row == GONE:
            raise JobGone(f"job {job} has left the scheduler's tables")
        return row


def by_serial(jobs: JobTable) -> JobTable:
    """The table for shells: to read by serial. The table itself, as long as no job has left."""
    return jobs if jobs.ids.is_plain else cast("JobTable", _TableBySerial(jobs))
