"""States of jobs, leases and nodes, and the transitions of a job.

A job:
    WAITING ──granted──▶ GRANTED ──started──▶ RUNNING
       ▲                    │                    │
       └────── stopped ─────┴───── stopped ──────┘      (revoked, expired, failed, node lost)
    any of the three ──finished──▶ FINISHED, ──cancelled──▶ CANCELLED, ──given up──▶ FAILED

A lease: GRANTED ──started──▶ RUNNING ──revoked──▶ STOPPING ──ended──▶ (gone). A job has at most one lease that is
granted or running, and at most one that is stopping; a new lease of the job starts when the stopping one has ended.
A WAITING job can finish, by the last report of its stopping lease.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from gavelpy.model.arrays import Ints


class JobState(IntEnum):
    """State of a job."""

    WAITING = 0
    GRANTED = 1
    RUNNING = 2
    FINISHED = 3
    CANCELLED = 4
    FAILED = 5


class JobFact(IntEnum):
    """Transition of a job."""

    GRANTED = 0
    STARTED = 1
    STOPPED = 2
    FINISHED = 3
    CANCELLED = 4
    GIVEN_UP = 5


class NodeState(IntEnum):
    """State of a node; its GPUs may be leased only if it is UP."""

    UP = 0
    DRAINING = 1
    LOST = 2


class Resumes(IntEnum):
    """Evidence other than a checkpoint that a job resumes after a stop."""

    REFUSED = -2  # its owner submitted it as not preemptible, whatever it saves
    UNKNOWN = -1
    VOID = 0  # its program declared it, but a stopped lease left no checkpoint
    DECLARED = 1  # by its program: a LeaseIterator with a `save` function
    BY_OWNER = 2  # when it was submitted


ALIVE = (JobState.WAITING, JobState.GRANTED, JobState.RUNNING)
LEASED = (JobState.GRANTED, JobState.RUNNING)
LAST_ALIVE = int(JobState.RUNNING)  # numpy compares arrays with plain integers five times faster than with IntEnum
IS_GRANTED, IS_RUNNING = int(JobState.GRANTED), int(JobState.RUNNING)

JOB_TRANSITIONS: dict[tuple[JobState, JobFact], JobState] = {
    (JobState.WAITING, JobFact.GRANTED): JobState.GRANTED,
    (JobState.GRANTED, JobFact.STARTED): JobState.RUNNING,
    (JobState.GRANTED, JobFact.STOPPED): JobState.WAITING,
    (JobState.RUNNING, JobFact.STOPPED): JobState.WAITING,
    **{(state, JobFact.FINISHED): JobState.FINISHED for state in ALIVE},
    **{(state, JobFact.CANCELLED): JobState.CANCELLED for state in ALIVE},
    **{(state, JobFact.GIVEN_UP): JobState.FAILED for state in ALIVE},
}

_NEXT: Ints = np.full((len(JobState), len(JobFact)), -1, dtype=np.int64)
for (_state, _fact), _next_state in JOB_TRANSITIONS.items():
    _NEXT[_state, _fact] = _next_state


def states_after(states: Ints, fact: JobFact) -> Ints:
    """The state of each job after a transition, (K,); asserts that it is in the table."""
    following: Ints = _NEXT[:, int(fact)][states]
    is_known = not np.count_nonzero(following < 0)
    assert is_known, f"no transition for {fact.name} from {[JobState(s).name for s in states]}"
    return following
