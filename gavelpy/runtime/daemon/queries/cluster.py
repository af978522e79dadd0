"""The cluster: policy, round, jobs in numbers, GPUs by type, and each node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import NotFound
from gavelpy.mechanism.gpus import CLUSTERS, NONE
from gavelpy.mechanism.lifecycle import ALIVE, JobState, NodeState
from gavelpy.mechanism.node_resources import NO_NEEDS, RESOURCES
from gavelpy.mechanism.nodes import peers_text
from gavelpy.mechanism.priority_classes import PriorityClass, ranking
from gavelpy.mechanism.windows import divisions
from gavelpy.model.arrays import Ints
from gavelpy.model.configurations import THOUSANDTHS
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.queries.fields import shown
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.queries.teams import TeamStatus, team_statuses
from gavelpy.runtime.security.identity import Caller

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.nodes.registry import Node
    from gavelpy.runtime.daemon.queries.state import SchedulerState

_JOBS_SHOWN = 1_000
FREE, HIDDEN_JOB = -1, -2  # in place of the number of a job
_NODE_STATES = {NodeState.UP: "up", NodeState.DRAINING: "draining", NodeState.LOST: "lost"}


@dataclass(frozen=True)
class GpuTypeStatus:
    """The GPUs of one type on nodes that are up. `price`: shadow price of one more, NaN = unknown.

    `resource_prices`: of one more CPU core or GiB of their nodes, by resource; empty if no job declares any.
    """

    gpu_type: str
    gpus: int
    gpus_in_use: int
    price: float
    resource_prices: Mapping[str, float]


@dataclass(frozen=True)
class ReservationStatus:
    """A reservation of nodes; without users for maintenance. Times are Unix times."""

    name: str
    node_ids: Sequence[str]
    begin_at_s: float
    end_at_s: float
    reason: str
    in_force: bool
    users: Sequence[str]
    gpus: int  # on its nodes
    gpus_in_use: int  # by its jobs


@dataclass(frozen=True)
class ClusterStatus:
    """The cluster in numbers."""

    cluster_name: str
    policy: str
    policy_parameters: str  # JSON
    blind: bool
    round_s: float
    round: int
    round_ends_in_s: float
    objective: float  # of the allocation in force, with its gap and the path of the solver
    gap: float
    path: str
    types: Sequence[GpuTypeStatus]
    jobs_waiting: int
    jobs_running: int
    jobs_over: int
    uptime_s: float
    incarnation: int
    detail: str  # why the last request to the policy failed
    warning: str  # why the certificate of the allocation is weaker than promised
    priorities: Sequence[PriorityClass]  # the highest first
    teams: Sequence[TeamStatus]  # in the order of the configuration


@dataclass(frozen=True)
class NodeStatus:
    """A node. Ages are NaN if it has sent no message since the scheduler started."""

    node_id: str
    state: str  # up, draining, drained, silent or lost
    gpu_type: str
    gpu_count: int
    gpus_in_use: int
    address: str
    heartbeat_age_s: float
    sees_checkpoints: bool  # it writes to the cluster's checkpoint directory
    checkpoints: str  # state of its checkpoint directory
    checkpoints_age_s: float
    checkpoint_directory_id: str
    agent_version: str
    jobs: Sequence[int]  # those that the caller may see
    detail: str
    containment: str
    images: str
    gpu_sharing: str  # mps, or time-slicing and why; empty = time-slicing
    cpus: float  # CPU cores that jobs may use, 0 = not known
    cpus_in_use: float  # that jobs with leases declared
    memory_gib: float
    memory_gib_in_use: float
    rack: str  # where it is; empty = not known
    zone: str
    region: str


class ClusterQueries:
    """Reads nodes and totals from a scheduler."""

    def __init__(self, scheduler: SchedulerState, jobs: JobQueries) -> None:
        self._scheduler, self._jobs = scheduler, jobs

    def node(self, node_id: str, caller: Caller) -> NodeStatus:
        """A node by name; raises NotFound if there is none."""
        row = self._scheduler.core.pool.node_row.get(NodeId(node_id))
        if row is None:
            raise NotFound(f"node must be one that has joined, got {shown(node_id)}")
        return self.node_at(row, caller)

    def reservations(self) -> list[ReservationStatus]:
        """The reservations that are not over, by begin."""
        scheduler, pool = self._scheduler, self._scheduler.core.pool
        now_s = scheduler.now_s()
        windows = sorted(scheduler.core.windows.values(), key=lambda window: (window.begin_s, window.name))
        return [
            ReservationStatus(
                name=window.name,
                node_ids=window.node_ids,
                begin_at_s=scheduler.wall_s(window.begin_s),
                end_at_s=scheduler.wall_s(window.end_s),
                reason=window.reason,
                in_force=window.is_in_force(now_s),
                users=window.users,
                gpus=sum(int(pool.present[pool.on(NodeId(node))].sum()) for node in window.node_ids),
                gpus_in_use=self._gpus_used_within(window.name),
            )
            for window in windows
            if window.end_s > now_s
        ]

    def _gpus_used_within(self, name: str) -> int:
        """GPUs under leases of jobs of a reservation."""
        jobs, pool = self._scheduler.core.jobs, self._scheduler.core.pool
        rows = [row for row, booked in jobs.booked.items() if booked == name and jobs.lease[row] >= 0]
        return int(np.isin(pool.job, rows).sum())

    def cluster(self) -> ClusterStatus:
        """Policy, round, GPUs and jobs in numbers."""
        scheduler, core = self._scheduler, self._scheduler.core
        now_s, states = scheduler.now_s(), core.jobs.state[: core.jobs.count]
        counts = np.bincount(states, minlength=len(JobState))
        over = int(counts[ALIVE[-1] + 1 :].sum())
        archived = core.jobs.ids.next_serial - len(states)
        answer = scheduler.history.answer
        return ClusterStatus(
            cluster_name=scheduler.name,
            policy=scheduler.choice.name,
            policy_parameters=scheduler.choice.parameters,
            blind=bool(scheduler.choice.blind),
            round_s=core.settings.round_s,
            round=core.round,
            round_ends_in_s=max(core.round_end_s - now_s, 0.0) if math.isfinite(core.round_end_s) else 0.0,
            objective=answer.objective,
            gap=answer.gap,
            path=answer.path,
            types=self._types(),
            jobs_waiting=len(states) - over - int(counts[JobState.RUNNING]),
            jobs_running=int(counts[JobState.RUNNING]),
            jobs_over=over + archived,
            uptime_s=max(now_s - scheduler.began_s, 0.0),
            incarnation=scheduler.incarnation,
            detail=answer.failure,
            warning=answer.warning,
            priorities=ranking(core.settings.priorities).classes,
            teams=team_statuses(scheduler),
        )

    def _types(self) -> list[GpuTypeStatus]:
        pool, prices = self._scheduler.core.pool, self._scheduler.engine.shadow_prices
        held = np.bincount(pool.type_of[pool.job != NONE], minlength=len(pool.gpu_types)).tolist()
        others: dict[str, dict[str, float]] = {}
        for (gpu_type, resource), price in self._scheduler.engine.resource_prices.items():
            if resource not in RESOURCES:
                continue  # the row of a team
            others.setdefault(gpu_type, {})[resource] = price
        return [
            GpuTypeStatus(name, int(count), used, prices.get(name, math.nan), others.get(name, {}))
            for name, count, used in zip(pool.gpu_types, pool.counts.tolist(), held, strict=True)
        ]

    def node_at(self, row: int, caller: Caller) -> NodeStatus:
        """A node by its row in the core. Users see only the numbers of their own jobs."""
        scheduler, pool = self._scheduler, self._scheduler.core.pool
        node_id = pool.node_ids[row]
        node = scheduler.nodes.get(node_id)
        here, directory = self._gpus_of(row), pool.node_directory[row]
        held = pool.job[here]
        holders = scheduler.core.jobs.ids.of_rows(np.unique(held[held != NONE]))
        jobs = [job for job in holders.tolist() if self._jobs.may_see(caller, job)]
        in_use, problem = int((held != NONE).sum()), _detail(node, scheduler.follows)
        return NodeStatus(
            node_id=node_id,
            state=self._state(row, in_use),
            gpu_type=pool.gpu_types[pool.node_type[row]],
            gpu_count=int(pool.present[here].sum()),
            gpus_in_use=in_use,
            address=node.hello.address if node is not None else "",
            heartbeat_age_s=node.age_s(scheduler.now_s()) if node is not None else math.nan,
            sees_checkpoints=pool.node_directory[row] == CLUSTERS,
            checkpoints=str(node.reported_directory.state) if node is not None else "",
            checkpoints_age_s=node.reported_directory.age_s + node.age_s(scheduler.now_s())
            if node is not None
            else math.nan,
            checkpoint_directory_id="" if pool.is_own(directory) else pool.directories[directory],
            agent_version=node.hello.agent_version if node is not None else "",
            jobs=jobs[:_JOBS_SHOWN],
            detail="; ".join(
                filter(None, (self._unreachable(row), pool.node_reserved[row] or self._division(row), problem))
            ),
            containment=node.hello.containment if node is not None else "",
            images=node.hello.images if node is not None else "",
            gpu_sharing=node.gpu_sharing if node is not None else "",
            rack=pool.node_place[row][0],
            zone=pool.node_place[row][1],
            region=pool.node_place[row][2],
            **self._amounts(row, held, pool.beside[here]),
        )

    def _amounts(self, row: int, held: Ints, beside: Ints) -> dict[str, float]:
        """CPU cores and memory of the node in that row, whose GPUs these jobs hold; -1 = none."""
        core = self._scheduler.core
        needs = [core.jobs.needs.get(job, NO_NEEDS) for job in (*held.tolist(), *beside.tolist())]
        found = {}
        for r, name in enumerate(RESOURCES):
            found[name] = core.pool.node_amounts[row][r] / THOUSANDTHS
            found[f"{name}_in_use"] = sum(need[r] for need in needs) / THOUSANDTHS
        return found

    def gpu_jobs(self, row: int, caller: Caller) -> list[int]:
        """The job on each GPU of the node in that row: FREE, or HIDDEN_JOB if the caller may not see it."""
        pool, ids = self._scheduler.core.pool, self._scheduler.core.jobs.ids
        here = self._gpus_of(row)
        rows = pool.job[here[pool.present[here]]]
        shown = {FREE: FREE}
        for held in np.unique(rows[rows != NONE]).tolist():
            job = ids.serial(held)
            shown[held] = job if self._jobs.may_see(caller, job) else HIDDEN_JOB
        return [shown[held] for held in rows.tolist()]

    def _gpus_of(self, row: int) -> Ints:
        """GPUs of the node in that row, by binary search if GPUs are in order of their nodes."""
        pool = self._scheduler.core.pool
        if not pool.in_order:
            return np.flatnonzero(pool.node_of == row)
        first, end = np.searchsorted(pool.node_of, [row, row + 1]).tolist()
        return np.arange(first, end)

    def _division(self, row: int) -> str:
        """By which reservation for users a node is reserved; empty = by none."""
        core = self._scheduler.core
        part = core.pool.node_part[row]
        return divisions(core)[part - 1].text if part else ""

    def _unreachable(self, row: int) -> str:
        """What other agents found of a node that sends no heartbeats; empty = nothing, or it sends them."""
        found = peers_text(*self._scheduler.core.pool.node_peers[row])
        return f"unreachable from the scheduler, {found}" if found else ""

    def _state(self, row: int, in_use: int) -> str:
        pool = self._scheduler.core.pool
        state = pool.node_state[row]
        if state is NodeState.LOST:
            return "lost"
        if pool.node_unreachable[row]:
            return "silent"
        if state is NodeState.UP and (pool.node_reserved[row] or pool.node_part[row]):
            return "reserved"
        if state is NodeState.DRAINING and not in_use:
            return "drained"
        return _NODE_STATES[state]


def _detail(node: Node | None, follows: str) -> str:
    """Problem of a node as a sentence; empty = none. `follows`: the leader to which agents report, if not here."""
    if node is None and follows:
        return f"its agent reports to {follows}"
    if node is None:
        return "no message since the scheduler started"
    if node.unreached and not node.trouble:
        return f"cannot reach {node.unreached} other agents: its leases may end while the scheduler is away"
    return node.trouble
