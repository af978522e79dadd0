"""Removes jobs that are over, and lost nodes, from the core's tables; rows are reused, serials of jobs are not.

The shell chooses the jobs (`JobsArchived`) and writes what is to be known of them to the archive, in one transaction
with the event. A job can leave when nothing can happen to it any more: it is over and no node may run a lease of it.
The jobs that stay keep their order, so decisions are the same as if no job had left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import eligibility, failures
from gavelpy.mechanism.jobs import (
    DERIVED_COLUMNS,
    FIRST_ROWS,
    FLOAT_COLUMNS,
    INT_COLUMNS,
    JOB_COLUMNS,
    WIDE_COLUMNS,
    JobTable,
)
from gavelpy.mechanism.lifecycle import LAST_ALIVE, NodeState
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import NodeId

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore


def can_leave(core: SchedulerCore, rows: Ints) -> Bools:
    """Whether each of these jobs is over and without a lease that may still run, (K,)."""
    jobs = core.jobs
    is_idle = (jobs.lease[rows] < 0) & (jobs.stopping[rows] < 0) & (jobs.stopping_first[rows] < 0)
    return np.asarray((jobs.state[rows] > LAST_ALIVE) & is_idle & (jobs.partner[rows] < 0))


def can_retire(core: SchedulerCore, node_id: str) -> bool:
    """Whether a node is lost, without leases that may still end there, and in no reservation."""
    jobs, pool = core.jobs, core.pool
    row = pool.node_row.get(NodeId(node_id))
    if row is None or pool.node_state[row] is not NodeState.LOST:
        return False
    here = pool.on(NodeId(node_id))
    late = (gpus for lost in jobs.lost_leases.values() for gpus in lost.values())
    is_held = len(pool.jobs_holding(here)) or len(jobs.stopping_on(here)) or any(here[gpus].any() for gpus in late)
    return not is_held and all(node_id not in window.node_ids for window in core.windows.values())


def retire(core: SchedulerCore, nodes: Iterable[str]) -> None:
    """Forgets lost nodes, which can retire."""
    jobs = core.jobs
    for node_id in nodes:
        row = core.pool.retire(NodeId(node_id))
        avoid = jobs.avoid[: jobs.count]
        avoid[avoid == row] = -1
        jobs.loss_nodes = {
            job: left for job, rows in jobs.loss_nodes.items() if (left := [one for one in rows if one != row])
        }


def remove(core: SchedulerCore, gone: Ints) -> None:
    """Removes the jobs in these rows, which can leave; the rows of the others move up."""
    if not len(gone):
        return
    jobs, pool = core.jobs, core.pool
    is_gone = jobs.marks(gone)
    rows = np.flatnonzero(~is_gone)
    new = np.full(jobs.count + 1, -1, dtype=np.int64)  # by old row; the last place is for -1, which stays so
    new[rows] = np.arange(len(rows))
    _keep(jobs, rows, new)
    for column in (pool.job, pool.beside):
        column[:] = new[column]
    core.exempt = core.exempt.renumbered(new)
    core.question.renumber(new)
    core.throughput.renumber(new)
    jobs.any_refused = any(spec.no_preempt for spec in jobs.specs)
    jobs.any_timed = any(spec.time_s > 0 for spec in jobs.specs)
    jobs.any_failed, jobs.any_gated = failures.any_failed(jobs), eligibility.any_gated(jobs)
    jobs.any_held = bool((jobs.held_type[: jobs.count] >= 0).any())


def _keep(jobs: JobTable, rows: Ints, new: Ints) -> None:
    """Keeps these rows (ascending) only; `new` is the new row of each old one, -1 = none, and of -1 in the end."""
    jobs.ids.keep(rows)
    before = {name: getattr(jobs, name) for name in (*INT_COLUMNS, *DERIVED_COLUMNS, *FLOAT_COLUMNS, *WIDE_COLUMNS)}
    rules, jobs.rule_columns = jobs.rule_columns, {}
    for name, column in before.items():
        fill = -1 if name in INT_COLUMNS else 0
        setattr(jobs, name, np.full((FIRST_ROWS, *column.shape[1:]), fill, dtype=column.dtype))
    jobs.count = len(rows)
    jobs.reserve(jobs.count)
    for name, column in before.items():
        getattr(jobs, name)[: jobs.count] = column[rows]
    for name, column in rules.items():
        jobs.rule_column(name)[: jobs.count] = column[rows]
    for name in JOB_COLUMNS:
        column = getattr(jobs, name)[: jobs.count]
        column[:] = new[column]
    jobs.specs = [jobs.specs[row] for row in rows.tolist()]
    at = new.tolist()
    jobs.serial_of = {job: at[row] for job, row in jobs.serial_of.items() if at[row] >= 0}
    for kept in (
        "gang_gpus",
        "stopping_gangs",
        "lost_leases",
        "loss_nodes",
        "limited",
        "featured",
        "needs",
        "booked",
        "valued",
    ):
        setattr(jobs, kept, {at[row]: value for row, value in getattr(jobs, kept).items()})
    jobs.sizes = {at[row]: value for row, value in jobs.sizes.items() if at[row] >= 0}
    jobs.apart = {at[row]: value for row, value in jobs.apart.items() if at[row] >= 0}
    jobs.moved = {at[row]: value for row, value in jobs.moved.items() if at[row] >= 0}
    jobs.measured_gib = {at[row]: gib for row, gib in jobs.measured_gib.items() if at[row] >= 0}
    jobs.apps.renumber(at)
    jobs.dependents = {at[row]: [at[after] for after in others] for row, others in jobs.dependents.items()}
    jobs.number_again()
    jobs.claims.renumber(new)
    jobs.listed_again()
