"""Offers as of Mesos: what is free is offered to one user after another, and each takes or declines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Guarantee, ProblemInput
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.room import FreeResources, Users
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class Mesos:
    """All that is free is offered to the user with the lowest  s_u,  then what that user leaves to the next one.

    s_u    dominant share of user u, by the jobs that hold GPUs, as in `drf`; ties: the earliest waiting job

    Mesos (Hindman et al., NSDI '11), sections 3.2 and 3.3, with the allocation module of DRF. A framework is an owner;
    a job without one is a framework of its own. Offered resources, a framework starts its waiting jobs in order of
    arrival, each on the fastest GPUs of the offer, and takes all that it can use. A job declines GPUs on which it has
    less than `accept` of its rate on its fastest type, as frameworks reject offers to wait for better ones; 0 = it
    takes any. Jobs keep their GPUs until they end: running tasks are not revoked. So a user with much work that comes
    first holds everything for a while, as with long tasks in Mesos (section 4.3), where `drf` shares in each round.

    >>> p = AllocationProblem.of(
    ...     "abc", ["v100"], [3], [[1.0]] * 3, owner=["ann", "ann", "bob"], gpu_type_held=[0, -1, -1], gpus=[1, 2, 2]
    ... )
    >>> Mesos().allocate(p).share[:, 0].tolist()
    [1.0, 0.0, 1.0]
    """

    accept: float = 0.0

    name: ClassVar[str] = "mesos"
    summary: ClassVar[str] = "Offer free resources to the user with the lowest dominant share first (Mesos)."
    fills_leftover: ClassVar[bool] = False
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.OWNER, ProblemInput.WEIGHT, ProblemInput.GPU_TYPE_HELD, ProblemInput.RESOURCES}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.accept <= 1:
            raise InvalidInput(f"accept must be in [0, 1], got {self.accept!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        refuse_unused(self, problem)
        room = FreeResources(problem)
        users, started, waiting = Users(problem, room, "owner"), list[int](), list[int]()
        for job in room.runnable:
            held = int(problem.gpu_type_held[job])
            if held >= 0 and room.fits(job)[held]:
                room.start(job, held)
                users.add(job, held)
                started.append(job)
            else:
                waiting.append(job)
        frameworks = dict.fromkeys(users.of[np.array(waiting, dtype=np.int64)].tolist())
        for framework in sorted(frameworks, key=users.dominant_share):
            for job in (each for each in waiting if users.of[each] == framework):
                gpu_type = room.fastest(job, least_rate=self.accept * float(room.rate[job].max()))
                if gpu_type >= 0:
                    room.start(job, gpu_type)
                    started.append(job)
        return room.answer(started, only_these=True)
