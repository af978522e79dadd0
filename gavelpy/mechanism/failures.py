"""Failure classes: which failed jobs are retried, how often, and when their failures stop counting.

Nodes classify a failed lease by evidence (exit code, last lines of output; see `runtime/shim/failures.py`):

- A *user error* (command not found, import or syntax error) fails in the same way wherever it runs: the job is given up
  at once. If the job has saved a checkpoint, the program has worked before, so this node lacks something: the job is
  retried like after any other failure, on another node.
- *Out of memory* once may be bad luck, as other processes use memory too. A second time, with no checkpoint beyond the
  step of the first, is a property of the job: it is given up.
- A *system error* (storage, driver, GPU, a lost peer of a gang) is not the job's fault. It is retried with back-off, on
  another node where possible, and does not count towards `failures_max`. More than `system_failures_max` of them give
  the job up: some bugs look like system errors. As with lost leases, such errors on `loss_nodes_max` different nodes in
  a row make the job the likely cause, and count as failures too.
- A *refusal* (the node runs no job of this owner, or no such image) is not a fault of the job. It is retried with
  back-off, on another node where possible, without limit: the job waits until a node runs it.
- *Unknown* failures count towards `failures_max`.
- A job that has reached its *time limit*, or has *stalled*, is ended as its owner chose, and not retried.

All counts return to zero when a checkpoint is saved beyond the step at which the job failed: what failed has been
passed. A checkpoint before that step changes nothing, so a job that fails at one step again and again is given up.

Source of the classes: M. Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads
(USENIX ATC '19), section 4.2, which finds that most failures of short jobs are user errors.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gavelpy.mechanism.events import FailureClass, LeaseEnded, Outcome
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Floats, Ints

NO_FAILURE: Final = -1
MEMORY_FAILURES_MAX: Final = 1
TIME_LEFT_S_MIN: Final = 1.0  # a job with less time left than this has reached its limit
FINAL: Final = (FailureClass.TIME_LIMIT, FailureClass.STALLED)
SYSTEM: Final = (FailureClass.SYSTEM, FailureClass.COMMUNICATION)


def class_of(event: LeaseEnded) -> FailureClass:
    """Class of a failed lease. A command that cannot be run is a user error, even without a class from its node."""
    return FailureClass.USER if event.outcome is Outcome.UNRUNNABLE else event.failure


def book(jobs: JobTable, rows: Ints, event: LeaseEnded, settings: MechanismSettings) -> Bools:
    """Counts the failed leases of these jobs; returns whether each job is given up, (K,).

    The steps of the jobs must still include those since the last checkpoint.
    """
    kind, jobs.any_failed = class_of(event), True
    jobs.failure[rows] = kind
    jobs.failed_at[rows] = np.maximum(jobs.failed_at[rows], jobs.steps_done[rows])
    if kind is FailureClass.REFUSED:
        return np.zeros(len(rows), dtype=np.bool_)
    if kind in SYSTEM:
        jobs.system_failures[rows] += 1
    else:
        jobs.failures[rows] += 1
    gives_up = (jobs.failures[rows] > settings.failures_max) | (
        jobs.system_failures[rows] > settings.system_failures_max
    )
    if kind is FailureClass.OUT_OF_MEMORY:
        jobs.memory_failures[rows] += 1
        gives_up |= jobs.memory_failures[rows] > MEMORY_FAILURES_MAX
    if kind is FailureClass.USER:
        gives_up |= jobs.steps_saved[rows] == 0
    return np.asarray(gives_up | (kind in FINAL))


def any_failed(jobs: JobTable) -> bool:
    """Whether failures of any job, active or over, count: see `JobTable.any_failed`."""
    n = jobs.count
    return bool(((jobs.failures[:n] > 0) | (jobs.system_failures[:n] > 0) | (jobs.memory_failures[:n] > 0)).any())


def time_is_over(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs have used up their running time, (K,); books that as the class of those that have."""
    limit_s = np.array([jobs.specs[row].time_s for row in rows.tolist()])
    is_over: Bools = (limit_s > 0) & (jobs.ran_s(rows, now_s) > limit_s - TIME_LEFT_S_MIN)
    jobs.failure[rows[is_over]] = FailureClass.TIME_LIMIT
    return is_over


def time_left_s(jobs: JobTable, row: int) -> float:
    """Running time that is left to a waiting job under its next lease; 0 = no limit."""
    limit_s = jobs.specs[row].time_s
    return max(limit_s - float(jobs.ran_s(np.array([row]), 0.0)[0]), TIME_LEFT_S_MIN) if limit_s else 0.0


def forgive(jobs: JobTable, rows: Ints, steps_saved: Floats) -> None:
    """Sets the counts of these jobs (K,) to zero if their new checkpoints are beyond the step at which they failed."""
    rows = rows[steps_saved > jobs.failed_at[rows]]
    jobs.failures[rows] = jobs.system_failures[rows] = jobs.memory_failures[rows] = 0


def in_words(jobs: JobTable, row: int, settings: MechanismSettings, *, is_given_up: bool) -> str:
    """The class of a job's last failure and what follows from it, for people; empty = it never failed."""
    if jobs.failure[row] == NO_FAILURE:
        return ""
    kind, step = FailureClass(int(jobs.failure[row])), f"step {jobs.failed_at[row]:.0f}"
    name = WORDS[kind]
    if kind in FINAL:
        limit_s = jobs.specs[row].time_s if kind is FailureClass.TIME_LIMIT else jobs.specs[row].stall_s
        return f"{name} ({limit_s:g} s); not retried"
    if is_given_up:
        again = f", again by {step} without a later checkpoint" if kind is FailureClass.OUT_OF_MEMORY else ""
        return f"{name}{again}; not retried"
    if kind is FailureClass.REFUSED:
        return f"{name}; retried, on another node if one is free"
    if kind in SYSTEM:
        return f"{name}; retried, {jobs.system_failures[row]} of at most {settings.system_failures_max} times"
    counted = f"failure {jobs.failures[row]} of at most {settings.failures_max}"
    if not jobs.failures[row]:
        return f"{name}; a later checkpoint is beyond it, so it does not count any more"
    if kind is FailureClass.OUT_OF_MEMORY:
        return f"{name}; retried until the second time by {step}, {counted}"
    return f"{name}; retried, {counted}"


WORDS: Final = {
    FailureClass.UNKNOWN: "unclassified failure",
    FailureClass.USER: "user error",
    FailureClass.OUT_OF_MEMORY: "out of memory",
    FailureClass.SYSTEM: "system error",
    FailureClass.COMMUNICATION: "communication error",
    FailureClass.REFUSED: "refused by the node",
    FailureClass.TIME_LIMIT: "time limit reached",
    FailureClass.STALLED: "stalled",
}
