"""The timeline of a virtual cluster: leases that start and end, and jobs that finish, in order of time.

Events of the same time are in the order in which they were put there. A finish or a start may have become void: the
cluster compares its lease with the one in force.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gavelpy.model.arrays import Bools, Floats, Ints


class Starts(NamedTuple):
    """Leases that start: the GPUs and jobs they wait for are free."""

    jobs: Ints
    leases: Ints
    gpu_counts: Ints
    gpus: Ints
    gpu_sets: npt.NDArray[np.uint64]  # a hash of each job's GPUs


class Ends(NamedTuple):
    """Revoked leases with complete checkpoints."""

    jobs: Ints
    leases: Ints
    steps_done: Floats


class Finish(NamedTuple):
    """A job's last step, or the last one of a phase, unless it is stopped earlier."""

    job: int
    lease: int


class CoLocated(NamedTuple):
    """Two jobs on the same GPUs both make steps from now on, unless one was stopped earlier."""

    jobs: tuple[int, int]
    leases: tuple[int, int]


class TurnTimes(NamedTuple):
    """What the starts and stops of these leases have cost their jobs."""

    jobs: Ints
    leases: Ints
    restart_s: Floats
    save_s: Floats


class PhaseBegun(NamedTuple):
    """Jobs have entered other phases, in which they run at other rates."""

    jobs: Ints


class Saved(NamedTuple):
    """The last checkpoints of leases that stop are complete, and are reported before their ends."""

    jobs: Ints
    leases: Ints
    steps: Floats


Due = Starts | Ends | Finish | CoLocated | TurnTimes | PhaseBegun | Saved


class Timeline:
    """A queue by time, then by order of arrival."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Due]] = []
        self._serial = 0

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite if there is none."""
        return self._queue[0][0] if self._queue else math.inf

    def push(self, moment_s: float, due: Due) -> None:
        """Puts an event on the timeline."""
        heapq.heappush(self._queue, (moment_s, self._serial, due))
        self._serial += 1

    def pop(self) -> tuple[float, Due]:
        """The next event and its time."""
        moment_s, _, due = heapq.heappop(self._queue)
        return moment_s, due


def by_moment(moment_s: Floats) -> list[tuple[float, Bools]]:
    """Rows by moment, earliest first."""
    if len(moment_s) == 1 or (moment_s == moment_s[0]).all():
        return [(float(moment_s[0]), np.ones(len(moment_s), dtype=np.bool_))]
    return [(float(moment), moment_s == moment) for moment in np.unique(moment_s)]
