"""Input of the careless world: events that the core must refuse without a change, drains by force, shares of pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gavelpy.mechanism.commands import SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationSolved,
    DirectorySeen,
    Event,
    JobCancelled,
    LeaseEnded,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    Outcome,
    PriceChanged,
    PriorityChanged,
    ProgressReported,
    SchedulerRestarted,
    ThroughputEstimated,
    WakeupDue,
)
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import NodeId

NAN, FAR = np.array([float("nan")]), np.array([9999])
ONE, NONE = np.array([0]), np.array([], dtype=np.int64)
WRONG: list[Event] = [
    NodeLost(NodeId("nobody")),
    NodeUnreachable(NodeId("nobody")),
    NodeDraining(NodeId("nobody")),
    NodeUnhealthy(NodeId("nobody"), "its disk is full"),
    DirectorySeen(NodeId("nobody"), "d0", True),
    DirectorySeen(NodeId("n0"), "of n0", False),
    AgentRejoined(NodeId("nobody"), NONE, NONE, NONE),
    NodeJoined(NodeId("n0"), "v100", 0),
    JobCancelled(9999),
    PriorityChanged(np.array([9999]), ""),
    PriorityChanged(np.array([0]), "no such class"),
    JobCancelled(-1),
    PriceChanged("a100", 1.0),
    PriceChanged("v100", -1.0),
    LeaseEnded(FAR, ONE, np.array([1.0]), Outcome.STOPPED),
    ProgressReported(FAR, ONE, np.array([1.0])),
    AllocationSolved(1, FAR, ONE, np.array([1.0])),
    ProgressReported(ONE, ONE, NAN),
    ThroughputEstimated(FAR, np.array([[1.0]])),
    SchedulerRestarted(0),
    WakeupDue(np.array([0, 0])),
]


def forced_drain(node: NodeId) -> NodeDraining:
    """A drain that also ends running jobs."""
    return NodeDraining(node, force=True)


def pairs_of(data: st.DataObject, core: SchedulerCore, question: SolveAllocation) -> tuple[Ints, Ints, Floats]:
    """Co-locates each job for at most half of its time with another job of equal gang size."""
    order = data.draw(st.permutations(question.jobs.tolist()))
    members = np.array(order[: len(order) // 2 * 2], dtype=np.int64).reshape(-1, 2)
    members = members[core.jobs.gpus[members[:, 0]] == core.jobs.gpus[members[:, 1]]]
    members = members[~core.jobs.smallest[members].any(axis=1)]
    types = st.integers(0, len(question.problem.gpu_types) - 1)
    kinds = data.draw(st.lists(types, min_size=len(members), max_size=len(members)))
    shares = data.draw(st.lists(st.sampled_from([0.25, 0.5]), min_size=len(members), max_size=len(members)))
    return members, np.array(kinds, dtype=np.int64), np.array(shares)


def sizes_with(gpus: int) -> tuple[int, ...]:
    """No other sizes for two of three requests, then some: 2 with 1 and 4, and 5 with 3."""
    return {2: (1, 2, 4), 5: (3, 5)}.get(gpus, ())


def some_sizes(data: st.DataObject, core: SchedulerCore, jobs: Ints) -> Ints:
    """A size for each of these shares: one of those of its job."""
    found = [data.draw(st.sampled_from(core.jobs.specs[job].sizes or (0,))) for job in jobs.tolist()]
    return np.array(found, dtype=np.int64)
