"""Dominant resource fairness (DRF): the user with the lowest dominant share is next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Guarantee, ProblemInput, flag, ruled
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.room import By, FreeResources, Users, users_of, weights_of
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class Drf:
    """The next job of the user with the lowest  s_u  starts, until no job fits.

    s_u    max_r  Σ_j d_jr / (w_j c_r),  the dominant share of user u, over its running jobs j
    d_jr   what job j holds of resource r;  c_r: what there is of it
    w_j    weight of the job, times that of its team with `by=entity`

    DRF (Ghodsi et al., NSDI '11), section 4.1, algorithm 1; weights: section 4.3. A resource is the GPUs of one type,
    or the CPU cores or the memory of its nodes. The paper has no choice among types: a job takes the fastest type with
    enough of everything. `by`: a user is an owner (default) or a team (`entity`, without the tree of teams); a job
    without one is a user of its own. Inside a user, jobs start in order of arrival. The paper stops when the job of the
    lowest user does not fit; here that job is skipped. All jobs compete again in each round.

    `divisible=1`: the paper's setting for its theorems (section 5), as shares of time. The jobs of a user, each on its
    fastest type, rise together, and the dominant shares of all users at one speed per weight, until a user's jobs run
    all the time or need a resource that is used up (progressive filling, section 5.2). Then users have the sharing
    incentive, do not envy each other, cannot gain by false demands, and no rate rises at no cost to others (1,000
    random problems), if rates on other types do not count. Whole jobs break the first two: one of two users waits.

    >>> p = AllocationProblem.of("abc", ["v100"], [2], np.ones((3, 1)), owner=["ann", "ann", "bob"])
    >>> Drf().allocate(p).share[:, 0].tolist()
    [1.0, 0.0, 1.0]
    """

    by: By = "owner"
    divisible: bool | float | str = False

    name: ClassVar[str] = "drf"
    summary: ClassVar[str] = "Start the next job of the user with the lowest dominant share (DRF)."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = False
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def __post_init__(self) -> None:
        check_by(self.by)
        object.__setattr__(self, "divisible", flag("divisible", self.divisible))

    @property
    def uses(self) -> frozenset[ProblemInput]:
        """Owners or teams."""
        return frozenset({ProblemInput(self.by), ProblemInput.WEIGHT, ProblemInput.RESOURCES})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round; or shares of time."""
        refuse_unused(self, problem)
        room = FreeResources(problem)
        if self.divisible:
            return self._divided(problem, room)
        users, started, waiting = Users(problem, room, self.by), list[int](), list[int]()
        for job in users.lowest_first(room.runnable):
            gpu_type = room.fastest(job)
            (started if gpu_type >= 0 else waiting).append(job)
            if gpu_type >= 0:
                room.start(job, gpu_type)
                users.add(job, gpu_type)
        return room.answer(started + waiting)

    def _divided(self, problem: AllocationProblem, room: FreeResources) -> Allocation:
        users, weight = users_of(problem, self.by), weights_of(problem, self.by)
        jobs = np.array(room.runnable, dtype=np.int64)
        kind = room.rate[jobs].argmax(axis=1) if len(jobs) else jobs
        whole = problem.capacity.astype(np.float64)
        count, limits = int(users.max(initial=-1)) + 1, len(problem.resources) - problem.team_rows
        demand, weighted = np.zeros((2, count, *whole.shape))
        np.add.at(demand, (users[jobs], kind), room.demand[jobs])
        np.add.at(weighted, (users[jobs], kind), room.demand[jobs] / weight[jobs, None])
        counted = weighted[:, :, :limits]
        part = np.divide(counted, whole[:, :limits], out=np.zeros(counted.shape), where=whole[:, :limits] > 0)
        dominant = part.reshape(count, part[0].size if count else 0).max(axis=1, initial=0.0)
        level = equal_dominant_shares(demand.reshape(count, whole.size), whole.ravel(), dominant)
        share = np.zeros((problem.job_count, len(problem.gpu_types)))
        share[jobs, kind] = level[users[jobs]]
        return ruled(problem, room.as_shares(share), objective=float(share.sum()))


def equal_dominant_shares(demand: Floats, capacity: Floats, dominant: Floats) -> Floats:
    """The part of its `demand` (U, K) that each user gets, (U,) in 0..1: dominant shares rise together.

    `dominant` (U,): the weighted dominant share of a user that gets all of its demand; 0 = it has none. A user stops
    at 1, or when a resource that it needs is used up.

    The paper's example: 9 CPUs and 18 GB; tasks of 1 CPU and 4 GB (100 of them), and of 3 CPUs and 1 GB:

    >>> x = equal_dominant_shares(
    ...     np.array([[100.0, 400.0], [300.0, 100.0]]), np.array([9.0, 18.0]), np.array([400 / 18, 300 / 9])
    ... )
    >>> (100 * x).round(6).tolist()
    [3.0, 2.0]
    """
    level, left = np.zeros(len(demand)), capacity.astype(np.float64)
    rising = dominant > 0
    while rising.any():
        speed = np.divide(1.0, dominant, out=np.zeros(len(dominant)), where=rising)
        use = speed @ demand
        until_used = np.divide(left, use, out=np.full(len(left), np.inf), where=use > 0)
        until_full = np.divide(1.0 - level, speed, out=np.full(len(level), np.inf), where=rising)
        step = min(float(until_used.min()), float(until_full.min()))
        level += speed * step
        left = np.where(until_used <= step * (1 + 1e-12), 0.0, np.maximum(left - use * step, 0.0))
        level = np.where(rising & (until_full <= step * (1 + 1e-12)), 1.0, level)
        rising &= (level < 1) & ~(demand[:, left <= 0] > 0).any(axis=1)
    return level


def check_by(by: str) -> None:
    """Raises InvalidInput for a name of no kind of user."""
    if by not in get_args(By):
        raise InvalidInput(f"by must be 'owner' or 'entity', got {by!r}")
