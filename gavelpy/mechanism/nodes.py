"""Applies node events to leases and jobs: a node joins, drains, becomes unhealthy, unreachable or lost, or returns.

The leases of a *draining* node end with the round. An *unreachable* node may be down or only disconnected: its leases
are neither extended nor considered over, and their jobs wait until that is resolved. A *lost* node is down: its leases
are over, its jobs are requeued (they wait, and resume from their last checkpoint under a new lease), and the remaining
ranks of gangs that also use other nodes are killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import booking, eligibility, node_resources, non_preemptible, reports
from gavelpy.mechanism.commands import Command, KillLease, QueryAgent
from gavelpy.mechanism.events import (
    NO_INTS,
    AgentRejoined,
    DirectorySeen,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
)
from gavelpy.mechanism.gpus import CLUSTERS
from gavelpy.mechanism.jobs import DIRECTORY_COLUMNS, JobTable
from gavelpy.mechanism.leases import LeaseBook
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobFact, JobState, NodeState
from gavelpy.mechanism.reports import started
from gavelpy.mechanism.requests import ThroughputRequest
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.taking import NONE_CHOSEN
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import NodeId

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

NodeEvent = NodeJoined | NodeLost | NodeUnreachable | NodeDraining | NodeUnhealthy | AgentRejoined
Kills = list[tuple[int, int]]  # jobs and the leases of theirs to kill


@dataclass(frozen=True)
class Changed:
    """The consequences of a node event."""

    kills: Kills
    is_new_type: bool = False


def apply(core: SchedulerCore, event: NodeEvent) -> list[Command]:
    """Applies a node event and returns the commands for shells."""
    change = changed(core.leases, event, core.now_s, core.settings)
    if change.is_new_type:
        core.throughput.want(core.jobs.unmeasured.tolist())
    if core.jobs.any_gated:
        core.retry_due_s = eligibility.due_s(core.jobs, core.now_s)
    core.disturb()
    core.end_idle_round()
    commands: list[Command] = [KillLease(job, lease) for job, lease in change.kills]
    late = non_preemptible.behind(core.leases, core.exempt.jobs, core.round_end_s) if core.is_in_round else NO_INTS
    if len(late):
        core.leases.extend(late, core.round_end_s)
        commands.append(core.granted(NONE_CHOSEN, late, NO_INTS))
    return commands


def restarted(core: SchedulerCore, incarnation: int) -> list[Command]:
    """A new incarnation of the scheduler repeats the open requests; agents report which leases they run."""
    core.incarnation = incarnation
    core.awaiting &= not core.question.forget()
    core.throughput = ThroughputRequest()
    core.throughput.want(core.jobs.unmeasured.tolist())
    core.jobs.apps.prolong(core.now_s + core.settings.round_s)  # nodes report first what jobs did meanwhile
    core.disturb()
    return [QueryAgent(node) for node in core.pool.present_nodes]


def changed(leases: LeaseBook, event: NodeEvent, now_s: float, settings: MechanismSettings) -> Changed:
    """Applies a node event."""
    match event:
        case NodeJoined():
            return joined(leases, event, now_s)
        case NodeLost():
            return Changed(lost(leases, event.node_id, now_s, settings))
        case AgentRejoined():
            return Changed(rejoined(leases, event, now_s, settings))
        case NodeDraining():
            leases.pool.set_draining(event.node_id, event.force)
        case NodeUnhealthy():
            leases.pool.set_unhealthy(event.node_id, event.why)
        case NodeUnreachable():
            leases.pool.set_unreachable(event.node_id, True, (event.alive_to, event.dead_to))
    return Changed([])


def joined(leases: LeaseBook, event: NodeJoined, now_s: float) -> Changed:
    """Adds the GPUs of a node. Leases on GPUs that it no longer has are revoked and killed."""
    jobs, pool = leases.jobs, leases.pool
    displaced = pool.displaced(event.node_id, event.gpu_type, event.gpu_count)
    kills = _kill(leases, displaced, now_s) if len(displaced) else []
    is_new_type = pool.join(event.node_id, event.gpu_type, event.gpu_count, _directory(leases, event))
    if is_new_type:
        jobs.add_type(event.gpu_type)
    pool.set_lacks(event.node_id, tuple(event.lacks), event.agent)
    node_resources.set_amounts(pool, event.node_id, event.cpus, event.memory_gib)
    pool.node_place[pool.node_row[event.node_id]] = event.rack, event.zone, event.region
    pool.strained = node_resources.strained(jobs, pool)
    _relate(leases)
    return Changed(kills, is_new_type)


def _directory(leases: LeaseBook, event: NodeJoined) -> int:
    """The directory of a node that joins: as DirectorySeen named it, else the cluster's or one of its own."""
    pool = leases.pool
    row = pool.node_row.get(event.node_id, -1)
    known = pool.node_directory[row] if row >= 0 else CLUSTERS
    if not event.sees_checkpoints:
        return pool.own_directory(event.node_id) if known == CLUSTERS else known
    if pool.is_own(known):
        _merge(leases, known, CLUSTERS)
    return CLUSTERS


def directory_seen(leases: LeaseBook, event: DirectorySeen) -> bool:
    """Books the id of the directory that a node writes to; returns whether anything changed.

    Checkpoints in the node's directory without an id are in the directory that it reports first.
    """
    pool, row = leases.pool, leases.pool.node_row[event.node_id]
    names, before = pool.directories, pool.node_directory[row]
    here = names.index(event.directory) if event.directory in names else -1
    is_known_as_another = event.is_clusters and not names[CLUSTERS] and here >= 0
    if event.is_clusters and not names[CLUSTERS]:
        names[CLUSTERS] = event.directory
        if is_known_as_another:
            _merge(leases, here, CLUSTERS)
        here = CLUSTERS
    if pool.is_own(before) and here < 0:
        names[before], here = event.directory, before
    elif pool.is_own(before):
        _merge(leases, before, here)
    here = here if here >= 0 else pool.add_directory(event.directory)
    if here == before and not is_known_as_another:
        return False
    pool.set_directory(row, here)
    _relate(leases)
    return True


def _merge(leases: LeaseBook, one: int, other: int) -> None:
    """Merges row `one` of the directories into row `other`, as they are the same directory."""
    jobs, pool = leases.jobs, leases.pool
    for name in DIRECTORY_COLUMNS:
        column = getattr(jobs, name)[: jobs.count]
        column[column == one] = other
    pool.node_directory = [other if directory == one else directory for directory in pool.node_directory]
    pool.directories[one] = ""


def _relate(leases: LeaseBook) -> None:
    """Recomputes whether active jobs have checkpoints or leases in other directories than the cluster's."""
    jobs, pool = leases.jobs, leases.pool
    pool.is_scattered = len(pool.directories) > 1 and any(
        (getattr(jobs, name)[jobs.active] > CLUSTERS).any() for name in DIRECTORY_COLUMNS
    )
    pool.relate_directories()


def lost(leases: LeaseBook, node_id: NodeId, now_s: float, settings: MechanismSettings) -> Kills:
    """A node is lost: its jobs return to their last checkpoints. Returns the leases to kill.

    A gang that also uses other nodes is stopping until these report its end. Leases that were stopping here are over.
    """
    jobs, pool = leases.jobs, leases.pool
    pool.set_state(node_id, NodeState.LOST)
    here = pool.on(node_id)
    _narrow(jobs, jobs.stopping_on(here), here, settings)
    rows = pool.jobs_on(node_id)
    begun = rows[jobs.state[rows] == JobState.RUNNING]
    if settings.retry_s and settings.loss_nodes_max:
        eligibility.count_loss(jobs, begun, np.full(len(begun), pool.node_row[node_id]), settings, now_s)
    kills = _gone(leases, rows, here, now_s, settings)
    jobs.change(begun[jobs.failures[begun] > settings.failures_max], JobFact.GIVEN_UP)
    return kills


def rejoined(leases: LeaseBook, event: AgentRejoined, now_s: float, settings: MechanismSettings) -> Kills:
    """Compares the leases that a node reports with those it should run; returns the leases to kill.

    Expected and reported: continues. Reported but not expected: killed. Expected but not reported: it ended without a
    report, or the scheduler crashed before the node received the grant; its job waits again. A gang that no longer runs
    on this node is stopping until its other nodes report its end.
    """
    jobs, pool = leases.jobs, leases.pool
    pool.set_unreachable(event.node_id, False)
    here = pool.on(event.node_id)
    promised, stopping = pool.jobs_on(event.node_id), jobs.stopping_on(here)
    is_current = np.isin(event.jobs, promised)
    is_current[is_current] = jobs.lease[event.jobs[is_current]] == event.leases[is_current]
    is_stopping = np.isin(event.jobs, stopping)
    is_stopping[is_stopping] = jobs.stopping[event.jobs[is_stopping]] == event.leases[is_stopping]
    ours = is_current | is_stopping
    kills = list(zip(event.jobs[~ours].tolist(), event.leases[~ours].tolist(), strict=True))
    current, rows = np.unique(event.jobs[is_current]), event.jobs[ours]
    started(jobs, current[jobs.state[current] == JobState.GRANTED], now_s)
    reports.grow(jobs, rows, event.steps_done[ours])
    jobs.steps_done[rows] = np.clip(event.steps_done[ours], jobs.steps_saved[rows], jobs.steps_total[rows])
    _narrow(jobs, np.setdiff1d(stopping, event.jobs[is_stopping]), here, settings)
    return kills + _gone(leases, np.setdiff1d(promised, current), here, now_s, settings)


def _gone(leases: LeaseBook, rows: Ints, here: Bools, now_s: float, settings: MechanismSettings) -> Kills:
    """Ends the leases of these jobs on the GPUs `here` (G,); returns the leases to kill."""
    jobs = leases.jobs
    if settings.late_ends:
        reports.open_lost(jobs, rows, jobs.lease[rows])
    gangs = rows[jobs.gpus[rows] > 1].tolist()
    reaching = np.array([row for row in gangs if not here[jobs.gang_gpus[row]].all()], dtype=np.int64)
    ending = np.setdiff1d(rows, reaching)
    dead = list(zip(ending.tolist(), jobs.lease[ending].tolist(), strict=True))
    booking.credit(jobs, ending, now_s)
    leases.vacate(ending)
    jobs.steps_done[ending] = jobs.steps_saved[ending]
    jobs.change(ending, JobFact.STOPPED)
    begun = reaching[jobs.stopping[reaching] < 0]
    dead += _kill(leases, reaching, now_s)
    _narrow(jobs, begun, here, settings)
    return sorted(dead)


def _kill(leases: LeaseBook, rows: Ints, now_s: float) -> Kills:
    """Revokes the leases of these jobs; from now on only complete checkpoints count."""
    jobs = leases.jobs
    dead = list(zip(rows.tolist(), jobs.lease[rows].tolist(), strict=True))
    leases.revoke(rows, now_s)
    jobs.steps_done[rows] = jobs.steps_saved[rows]
    return dead


def _narrow(jobs: JobTable, rows: Ints, here: Bools, settings: MechanismSettings) -> None:
    """Removes the GPUs `here` (G,) from the stopping leases of these jobs; leases without GPUs are over."""
    if settings.late_ends:
        alive = rows[jobs.state[rows] <= LAST_ALIVE]
        reports.open_lost(jobs, alive, jobs.stopping[alive])
    over = []
    for row in rows.tolist():
        held = jobs.gpus_stopping(row)
        left = held[~here[held]]
        if not len(left):
            over.append(row)
        elif len(left) < len(held):
            jobs.stopping_first[row] = left[0]
            jobs.stopping_gangs[row] = left
    jobs.stopped(np.array(over, dtype=np.int64))


def peers_text(alive_to: int, dead_to: int) -> str:
    """What other agents found of an unreachable node, for people; empty = nothing."""
    count = alive_to or dead_to
    return f"{'alive' if alive_to else 'dead'} to {count} other {'agent' if count == 1 else 'agents'}" if count else ""
