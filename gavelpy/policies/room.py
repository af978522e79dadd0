"""What is free on each GPU type while a policy gives jobs whole GPUs one by one, and what each user holds of it.

GPUs, CPU cores and memory of the nodes of one GPU type are separate resources from those of another type. Limits of
teams are resources too, but of no user's dominant share.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Literal

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ruled
from gavelpy.policies.in_order import places
from gavelpy.policies.isolated import lone_configurations
from gavelpy.policies.queue import jobs_running

By = Literal["owner", "entity"]


class FreeResources:
    """The resources that are free, and the jobs that run, each alone on the GPUs that it requested."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        lone = lone_configurations(problem)
        self._row = np.full(problem.job_count, -1)
        self._row[problem.member_job[np.searchsorted(problem.member_configuration, lone)]] = lone
        self.demand: Ints = problem.demand[self._row] * (self._row >= 0)[:, None]  # (J, R) thousandths
        self.free: Ints = problem.capacity.copy()  # (T, R)
        possible = (self.demand[:, None, :] <= self.free).all(axis=2) & (problem.gpu_counts > 0)
        self.rate: Floats = np.where(possible & (self._row >= 0)[:, None], problem.rate_alone_steps_per_s, 0.0)
        self._limits = len(problem.resources) - problem.team_rows  # resources before those of teams
        self._share = np.zeros(problem.fits.shape)

    @property
    def runnable(self) -> list[int]:
        """The jobs that can run somewhere if all is free, in order of arrival."""
        return [int(job) for job in np.flatnonzero((self.rate > 0).any(axis=1))]

    def copied(self) -> FreeResources:
        """An independent copy, for a trial."""
        other = copy(self)
        other.free, other._share = self.free.copy(), self._share.copy()
        return other

    def row(self, job: int) -> int:
        """The configuration of the job alone on the GPUs that it requested, -1 = none."""
        return int(self._row[job])

    def fits(self, job: int) -> Bools:
        """The types on which the job can start now, (T,)."""
        return np.asarray((self.rate[job] > 0) & (self.demand[job] <= self.free).all(axis=1))

    def fastest(self, job: int, least_rate: float = 0.0) -> int:
        """The fastest type on which the job can start now, -1 = none; ties: the one held, then most GPUs free."""
        types = [t for t in np.flatnonzero(self.fits(job)).tolist() if self.rate[job, t] >= least_rate]
        held = int(self._problem.gpu_type_held[job])
        return max(types, key=lambda t: (self.rate[job, t], t == held, self.free[t, 0], -t), default=-1)

    def start(self, job: int, gpu_type: int) -> None:
        """Gives the job what it needs of a type."""
        self.free[gpu_type] -= self.demand[job]
        self._share[self._row[job], gpu_type] = 1.0

    def parts(self, job: int) -> Floats:
        """What the job holds of all that each type has while it runs there, (T, R) without limits of teams."""
        return self.of_all(np.broadcast_to(self.demand[job], self.free.shape))

    def of_all(self, amounts: Ints) -> Floats:
        """Amounts (T, R) as parts of all that there is, without limits of teams."""
        whole = self._problem.capacity[:, : self._limits]
        return np.divide(amounts[:, : self._limits], whole, out=np.zeros(whole.shape), where=whole > 0)

    def as_shares(self, of_jobs: Floats) -> Floats:
        """Shares of jobs (J, T) as those of their configurations, (C, T)."""
        share, alone = np.zeros(self._share.shape), self._row >= 0
        share[self._row[alone]] = of_jobs[alone]
        return share

    def answer(self, order: list[int], *, only_these: bool = False) -> Allocation:
        """The running jobs, and the round by this order of jobs; `only_these`: no job that does not run now."""
        named = places(self._problem, np.array(order, dtype=np.int64), self._share)
        if only_these:
            named = named[self._share[named[:, 0], named[:, 1]] > 0]
        running = jobs_running(self._problem, self._share)
        return replace(ruled(self._problem, self._share, objective=running), next_round=named)


class Users:
    """What each user holds: an owner, or a team; a job without one is a user of its own."""

    def __init__(self, problem: AllocationProblem, room: FreeResources, by: By) -> None:
        self._room = room
        self.of: Ints = users_of(problem, by)
        self._weight = weights_of(problem, by)
        self._used = np.zeros((int(self.of.max(initial=-1)) + 1, *room.parts(0).shape)) if len(self.of) else np.zeros(0)

    def add(self, job: int, gpu_type: int) -> None:
        """Counts a job that runs on a type."""
        self._used[self.of[job], gpu_type] += self._room.parts(job)[gpu_type] / self._weight[job]

    def dominant_share(self, user: int) -> float:
        """The largest part of any resource that the user holds, over its weight."""
        return float(self._used[user].max(initial=0.0))

    def lowest_first(self, jobs: list[int]) -> Iterator[int]:
        """The jobs, each time the next one of the user with the lowest dominant share; ties: the earliest job.

        The caller counts a job that it starts before it takes the next one.
        """
        queues: dict[int, list[int]] = {}
        for job in reversed(jobs):
            queues.setdefault(int(self.of[job]), []).append(job)
        heap = [(self.dominant_share(user), queue[-1], user) for user, queue in queues.items()]
        heapq.heapify(heap)
        while heap:
            _, _, user = heapq.heappop(heap)
            yield queues[user].pop()
            if queues[user]:
                heapq.heappush(heap, (self.dominant_share(user), queues[user][-1], user))


def users_of(problem: AllocationProblem, by: By) -> Ints:
    """The user of each job, (J,)."""
    given, count = (problem.owner, len(problem.owners)) if by == "owner" else (problem.entity, len(problem.entities))
    return np.where(given >= 0, given, count + np.arange(problem.job_count))


def weights_of(problem: AllocationProblem, by: By) -> Floats:
    """The weight by which what a job holds counts less, (J,): its own, times that of its team."""
    if by == "owner":
        return problem.weight
    of_team = np.array([entity.weight for entity in problem.entities] + [1.0])  # the last place: no team
    return np.asarray(problem.weight * of_team[problem.entity])
