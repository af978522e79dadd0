"""Capacity queues as of YARN: guaranteed parts of the cluster for teams, elastic up to their quotas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Guarantee, ProblemInput
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.room import FreeResources, users_of
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class CapacityQueues:
    """The next job of the queue with the lowest  u_q / c_q  starts, until no job fits.

    u_q    max_r  Σ_j d_jr / D_r  over the running jobs j of queue q and the queues below it, with what they hold d_jr
           and what there is D_r of resource r, all GPU types together: the part of the cluster that the queue uses
    c_q    capacity: the part that is guaranteed to it,  weight / weights of the queues next to it x  that of the parent

    The Capacity Scheduler of Apache Hadoop YARN (Vavilapalli et al., SoCC '13, section 3; its documentation, section
    "Configuration"), with the DominantResourceCalculator. A queue is a team: its weight is the capacity and its quota,
    which all policies keep, the maximum up to which it is elastic; GPUs guaranteed to a team are kept for it, too. From
    the top, the queue that is served least of its capacity comes first (ties: the earliest job), down to one with jobs
    of its own. Jobs without a team are in a queue of weight 1. Inside a queue, first in, first out; a job that does not
    fit is skipped, and takes the fastest GPUs that have room.

    User limit: a user of queue q starts no more jobs while it uses more than  min(user_factor c_q,
    max(user_min_percent / 100, 1 / n_q) max(c_q, u_q)), with n_q users that have jobs in q. The defaults are those of
    YARN. A user is an owner; a job without one is a user of its own. All jobs compete again in each round.

    >>> from gavelpy.model.problem import Entity
    >>> teams = [Entity("vision", weight=3), Entity("speech")]
    >>> p = AllocationProblem.of("abcde", ["v100"], [4], np.ones((5, 1)), entity=[1, 1, 0, 0, 0], entities=teams)
    >>> CapacityQueues().allocate(p).share[:, 0].tolist()
    [1.0, 0.0, 1.0, 1.0, 1.0]
    """

    user_min_percent: float = 100.0
    user_factor: float = 1.0

    name: ClassVar[str] = "capacity"
    summary: ClassVar[str] = "Start the next job of the team that uses the least of its guaranteed capacity (YARN)."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = False
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.ENTITY, ProblemInput.OWNER, ProblemInput.RESOURCES}
    )

    def __post_init__(self) -> None:
        if not 0 < self.user_min_percent <= 100:
            raise InvalidInput(f"user_min_percent must be in (0, 100], got {self.user_min_percent!r}")
        if not 0 < self.user_factor <= 1e6:
            raise InvalidInput(f"user_factor must be in (0, 1e6], got {self.user_factor!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        refuse_unused(self, problem)
        room = FreeResources(problem)
        queues = _Queues(problem, room)
        started, waiting = list[int](), list[int]()
        while (job := queues.next_job()) >= 0:
            gpu_type = room.fastest(job)
            if queues.is_limited(job, self.user_min_percent / 100, self.user_factor):
                continue  # nor does it get GPUs that become free within the round
            if gpu_type < 0:
                waiting.append(job)
            else:
                room.start(job, gpu_type)
                queues.add(job)
                started.append(job)
        return room.answer(started + waiting)


class _Queues:
    """A tree of queues with the jobs that still wait in each: those of teams, and in the last place that of no team."""

    def __init__(self, problem: AllocationProblem, room: FreeResources) -> None:
        count = len(problem.entities)
        self._queue: Ints = np.where(problem.entity >= 0, problem.entity, count)
        self._user = users_of(problem, "owner")
        self._parent: list[int] = [*problem.entity_parent.tolist(), -1]
        self._jobs: list[list[int]] = [[] for _ in range(count + 1)]  # in reverse, so that the first is popped
        for job in reversed(room.runnable):
            self._jobs[self._queue[job]].append(job)
        self._users = [len({int(self._user[job]) for job in jobs}) for jobs in self._jobs]
        self._capacity = self._capacities(problem)
        limits = len(problem.resources) - problem.team_rows
        total = problem.capacity[:, :limits].sum(axis=0)
        needed = room.demand[:, :limits]
        self._part: Floats = np.divide(needed, total, out=np.zeros(needed.shape), where=total > 0)
        self._used = np.zeros((count + 1, limits))
        self._of_user: dict[tuple[int, int], Floats] = {}

    def _capacities(self, problem: AllocationProblem) -> list[float]:
        """c of each queue; queues without jobs have one, too, but that of no team only if it has jobs."""
        weight = [entity.weight for entity in problem.entities] + [1.0 if self._jobs[-1] else 0.0]
        siblings: dict[int, float] = {}
        for parent, each in zip(self._parent, weight, strict=True):
            siblings[parent] = siblings.get(parent, 0.0) + each

        def capacity(queue: int) -> float:
            parent = self._parent[queue]
            own = weight[queue] / siblings[parent] if weight[queue] else 0.0
            return own * (capacity(parent) if parent >= 0 else 1.0)

        return [capacity(queue) for queue in range(len(weight))]

    def next_job(self) -> int:
        """The next job, which no longer waits; -1 = none."""
        first = [jobs[-1] if jobs else np.inf for jobs in self._jobs]  # the earliest job, also below the queue
        for queue, jobs in enumerate(self._jobs):
            above = self._parent[queue]
            while above >= 0 and jobs:
                first[above] = min(first[above], jobs[-1])
                above = self._parent[above]
        at = -1
        while True:
            below = [queue for queue, above in enumerate(self._parent) if above == at and first[queue] < np.inf]
            if at >= 0 and self._jobs[at] and (not below or self._jobs[at][-1] == first[at]):
                return self._jobs[at].pop()
            if not below:
                return -1
            at = min(below, key=lambda queue: (self._level(queue), first[queue]))

    def _level(self, queue: int) -> float:
        return float(self._used[queue].max()) / self._capacity[queue]

    def add(self, job: int) -> None:
        """Counts a job that runs, for its queue, those above it and its user."""
        queue = int(self._queue[job])
        key = (queue, int(self._user[job]))
        self._of_user[key] = self._of_user.get(key, np.zeros(self._used.shape[1])) + self._part[job]
        while queue >= 0:
            self._used[queue] += self._part[job]
            queue = self._parent[queue]

    def is_limited(self, job: int, least_part: float, factor: float) -> bool:
        """Whether the user of the job uses more than its limit in the queue."""
        queue = int(self._queue[job])
        used = self._of_user.get((queue, int(self._user[job])))
        if used is None:
            return False
        whole = self._capacity[queue]
        current = max(whole, float(self._used[queue].max()))
        limit = min(factor * whole, max(least_part, 1.0 / self._users[queue]) * current)
        return float(used.max()) > limit + 1e-9
