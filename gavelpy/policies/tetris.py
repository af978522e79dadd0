"""Tetris: pack jobs by how well their needs match what is free, and by how little work remains, within fair bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.room import FreeResources, Users
from gavelpy.solve.solver import Solver

SAME_SCORE = 1e-12


@dataclass(frozen=True)
class Tetris:
    """The job j and GPU type t with the highest  a_jt - ε p_jt  start next, among users far below their fair part.

    a_jt    Σ_r (d_jr / c_tr) (f_tr / c_tr),  the alignment of what the job needs, d, and what is free now, f
    p_jt    Σ_r (d_jr / c_tr) l_jt,  the work that remains: needs times the seconds l that its steps take on the type
    ε       `shortness` x mean of a / mean of p,  over all places of all jobs, with everything free
    c_tr    what the nodes of type t have of resource r

    Tetris (Grandl et al., SIGCOMM '14): alignment in section 3.2, remaining work and the combination in section 3.3,
    the fairness knob in section 3.4. Of the U users (owners) with a job that fits, only those  ⌈(1 - f) U⌉  with the
    lowest dominant shares take part, with f = `fairness`: 0 = the most efficient, near 1 = the fairest (as `drf`). The
    paper finds most of both at its default of 0.25. Its machines are the nodes of a type here, taken together; disks,
    networks, barriers and remote reads do not exist, and a task is a job. All jobs compete again in each round.

    The job that needs more of what is free starts first; that it needs memory, too, makes it align better:

    >>> p = AllocationProblem.of(
    ...     "ab", ["v100"], [4], np.ones((2, 1)), gpus=2, resources={"cpus": 6}, demand={"cpus": [2, 5]}
    ... )
    >>> Tetris(shortness=0).allocate(p).share[:, 0].tolist()
    [0.0, 1.0]
    """

    fairness: float = 0.25
    shortness: float = 1.0

    name: ClassVar[str] = "tetris"
    summary: ClassVar[str] = "Start the job that matches the free GPUs, CPU cores and memory best, short ones first."
    fills_leftover: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.OWNER, ProblemInput.WEIGHT, ProblemInput.STEPS_REMAINING, ProblemInput.RESOURCES}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.fairness < 1:
            raise InvalidInput(f"fairness must be in [0, 1), got {self.fairness!r}")
        if not 0 <= self.shortness <= 1e6:
            raise InvalidInput(f"shortness must be in [0, 1e6], got {self.shortness!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        refuse_unused(self, problem)
        room = FreeResources(problem)
        users, started = Users(problem, room, "owner"), list[int]()
        jobs = np.array(room.runnable, dtype=np.int64)
        part = np.array([room.parts(job) for job in jobs]).reshape(len(jobs), *room.of_all(room.free).shape)
        seconds = _seconds(problem, room.rate[jobs], jobs)
        work = part.sum(axis=2) * seconds
        possible = room.rate[jobs] > 0
        weight = self.shortness * _ratio(self._alignment(part, room)[possible], work[possible])
        waits = np.ones(len(jobs), dtype=np.bool_)
        while True:
            fits = np.array([room.fits(job) for job in jobs], dtype=np.bool_).reshape(seconds.shape) & waits[:, None]
            if not fits.any():
                break
            fits &= self._takes_part(users, jobs, np.asarray(fits.any(axis=1)))[:, None]
            score = np.where(fits, self._alignment(part, room) - weight * work, -np.inf)
            place = int(np.flatnonzero(score.ravel() >= score.max() - SAME_SCORE)[0])
            row, gpu_type = divmod(place, score.shape[1])
            job = int(jobs[row])
            room.start(job, gpu_type)
            users.add(job, gpu_type)
            started.append(job)
            waits[row] = False
        least = np.where(possible, work, np.inf).min(axis=1, initial=np.inf)
        rest = np.flatnonzero(waits)
        return room.answer(started + jobs[rest[np.argsort(least[rest], kind="stable")]].tolist())

    def _alignment(self, part: Floats, room: FreeResources) -> Floats:
        return np.asarray((part * room.of_all(room.free)).sum(axis=2))

    def _takes_part(self, users: Users, jobs: Ints, fits: Bools) -> Bools:
        """Whether each job's user is among those furthest below, (J,); ties: the user with the earliest job."""
        found = list(dict.fromkeys(users.of[jobs[fits]].tolist()))
        count = math.ceil((1 - self.fairness) * len(found) - SAME_SCORE)
        chosen = sorted(found, key=users.dominant_share)[:count]
        return np.isin(users.of[jobs], chosen)


def _seconds(problem: AllocationProblem, rate: Floats, jobs: Ints) -> Floats:
    """Seconds that the steps remaining take on each type, (J, T); 0 where the job cannot run."""
    steps = np.broadcast_to(problem.steps_remaining[jobs, None], rate.shape)
    return np.divide(steps, rate, out=np.zeros(rate.shape), where=rate > 0)


def _ratio(alignment: Floats, work: Floats) -> float:
    """Mean of the first over the mean of the second; 0 without any."""
    return float(alignment.mean() / work.mean()) if len(work) and work.mean() > 0 else 0.0
