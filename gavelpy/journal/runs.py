"""Intervals of a history: runs of jobs on GPUs that have ended, and times in which two jobs shared GPUs."""

from __future__ import annotations

from array import array

import numpy as np

from gavelpy.model.arrays import Floats, Ints

NONE = -1


class Runs:
    """Runs that have ended, in the order of their ends: job, GPU type, start, end and GPUs of each."""

    def __init__(self) -> None:
        self._jobs, self._types, self._gpus = array("q"), array("q"), array("q")
        self._starts_s, self._ends_s = array("d"), array("d")

    def add(self, job: int, gpu_type: int, start_s: float, end_s: float, gpus: int) -> None:
        """Adds one run."""
        self._gpus.append(gpus)
        self._jobs.append(job)
        self._types.append(gpu_type)
        self._starts_s.append(start_s)
        self._ends_s.append(end_s)

    def extend(self, jobs: Ints, types: Ints, starts_s: Floats, end_s: float, gpus: Ints) -> None:
        """Adds runs that end at the same time."""
        self._gpus.extend(gpus.tolist())
        self._jobs.extend(jobs.tolist())
        self._types.extend(types.tolist())
        self._starts_s.extend(starts_s.tolist())
        self._ends_s.extend([end_s] * len(jobs))

    def until(
        self, now_s: float, jobs: Ints, types: Ints, starts_s: Floats, gpus: Ints
    ) -> tuple[Ints, Ints, Floats, Floats, Ints]:
        """All runs, also these that are not over, which end now: columns (K,)."""
        return (
            np.concatenate([np.array(self._jobs), jobs]),
            np.concatenate([np.array(self._types), types]),
            np.concatenate([np.array(self._starts_s), starts_s]),
            np.concatenate([np.array(self._ends_s), np.full(len(jobs), now_s)]),
            np.concatenate([np.array(self._gpus), gpus]),
        )


class Sharing:
    """Intervals in which two jobs were co-located: each had a running lease on the same GPUs."""

    def __init__(self) -> None:
        self._partner: dict[int, int] = {}
        self._since: dict[int, tuple[float, int]] = {}  # start, and GPU type
        self._times: list[tuple[int, int, int, float, float]] = []

    def begin(self, one: int, other: int, gpu_type: int, now_s: float) -> None:
        """A job starts on the GPUs of another, running job."""
        self._partner[one], self._partner[other] = other, one
        self._since[one] = self._since[other] = (now_s, gpu_type)

    def leave(self, rows: Ints, now_s: float) -> None:
        """The runs of these jobs end."""
        if not self._partner:
            return
        for row in rows.tolist():
            other = self._partner.pop(row, NONE)
            if other != NONE:
                del self._partner[other]
                since_s, gpu_type = self._since[row]
                self._times.append((min(row, other), max(row, other), gpu_type, since_s, now_s))

    def times(self, now_s: float) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """Job, partner, GPU type, start and end, (K,) each; current intervals end now."""
        current = [
            (row, other, self._since[row][1], self._since[row][0], now_s)
            for row, other in self._partner.items()
            if row < other
        ]
        table = np.array([*self._times, *current], dtype=np.float64).reshape(-1, 5)
        job, partner, gpu_type = table[:, :3].astype(np.int64).T
        return job, partner, gpu_type, table[:, 3], table[:, 4]
