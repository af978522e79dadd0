"""Events from outside a simulated scheduler, in order of time: nodes fail and return, prices change, users cancel.

Each process (the failures of a node, of a rack, of a GPU; spot preemption; a price) has its own stream of numbers and
its own next time. A node may be absent for several reasons at once: it is lost when the first one begins, and joins
again when the last one ends.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    Event,
    JobCancelled,
    JobsReleased,
    JobsRequeued,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    PriceChanged,
    ReservationAdded,
)
from gavelpy.model.cluster import Cluster, ClusterNode
from gavelpy.model.job import JobSpec, NodeId
from gavelpy.model.places import PLACE_NAMES
from gavelpy.simulator.conditions.causes import Maintenance
from gavelpy.simulator.conditions.draws import SECONDS_MAX, Duration, duration, exponential, normal, subject_of, uniform
from gavelpy.simulator.conditions.spec import Conditions
from gavelpy.simulator.conditions.trials import TrialPool

HOUR_S = 3600.0
GPU_FAILED = "a GPU failed"


@dataclass(frozen=True)
class GpuFailed:
    """A GPU of a node fails: the jobs on it fail, too."""

    node_id: NodeId
    number: int  # on its node, from 0


Step = Callable[[SchedulerCore, float], list[Event | GpuFailed]]


class ExogenousEvents:
    """Events that are given, and those of the conditions. `pop` returns those of `next_s`."""

    def __init__(
        self,
        conditions: Conditions,
        cluster: Cluster,
        seed: int,
        given: Iterable[tuple[float, Event]] = (),
        trials: TrialPool | None = None,
    ) -> None:
        self._conditions, self._cluster, self._seed = conditions, cluster, seed
        self._queue: list[tuple[float, int, Event | Step]] = []
        self._serial = 0
        self._single = 0  # events that were given, and cancellations
        self._absent: Counter[NodeId] = Counter()  # reasons for which each node is absent
        self._unhealthy: Counter[NodeId] = Counter()
        self.repairs = 0  # that are under way: until they are over, jobs that wait may be able to run
        self._trials = trials
        pool = trials.nodes if trials is not None else ()
        self._nodes = tuple(node for node in cluster.nodes if node not in pool)  # that fail
        self._cancelled_s: dict[int, float] = {}  # of jobs whose users are known to cancel them
        for moment_s, event in given:
            self.add(moment_s, event)
            if isinstance(event, JobCancelled):
                self._cancelled_s[event.job] = min(moment_s, self._cancelled_s.get(event.job, math.inf))
        if pool:
            names = tuple(str(node.node_id) for node in pool)
            self.add(0.0, ReservationAdded("trials", names, 0.0, SECONDS_MAX, "maintenance"))
        self._plan_failures()
        self._plan_spot()
        self._plan_prices()
        for k, window in enumerate(conditions.maintenance):
            self._plan_maintenance(k, window)

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite if there is none."""
        return self._queue[0][0] if self._queue else math.inf

    def add(self, moment_s: float, event: Event | Step) -> None:
        """Adds an event, or what returns the events when its time comes."""
        heapq.heappush(self._queue, (moment_s, self._serial, event))
        self._serial += 1
        self._single += not callable(event)

    def pop(self, core: SchedulerCore) -> list[Event | GpuFailed]:
        """The next events, which are due at the same time."""
        now_s, _, found = heapq.heappop(self._queue)
        if callable(found):
            return found(core, now_s)
        self._single -= 1
        if isinstance(found, JobCancelled) and core.jobs.are_over(np.array([found.job])).all():
            return []
        if isinstance(found, JobsReleased) and core.jobs.are_over(found.jobs).all():
            return []
        return [found]

    def changes_nothing(self, core: SchedulerCore) -> bool:
        """Whether no event can let a job start that waits now: all nodes are there, and events only take them away."""
        return not self._single and not self.repairs and not len(core.jobs.leased)

    def has_trial(self, job: JobSpec) -> bool:
        """Whether a job is held until its trial is over."""
        return self._trials is not None and self._trials.takes(job)

    def submitted(self, row: int, now_s: float, job: JobSpec) -> None:
        """A job arrives: its user may cancel it later, and its trial is planned."""
        chance, rows = self._conditions.cancellations, np.array([row])
        if chance.share and uniform(self._seed, "cancellation", rows).item() < chance.share:
            after_s = duration(chance.after).quantile_s(uniform(self._seed, "time of cancellation", rows)).item()
            self.add(now_s + after_s, JobCancelled(row))
            self._cancelled_s[row] = min(now_s + after_s, self._cancelled_s.get(row, math.inf))
        if self._trials is None or not self._trials.takes(job):
            return
        trial = self._trials.add(row, job, now_s, self._cancelled_s.get(row, math.inf))
        self.add(trial.end_s, JobCancelled(row) if trial.has_failed else JobsReleased(rows))

    # Nodes -------------------------------------------------------------------------------------------------------

    def _plan_failures(self) -> None:
        failures, nodes = self._conditions.nodes, self._nodes
        if failures.mtbf_h:
            for node in nodes:
                self._alternate("node failure", node.node_id, (node,), failures.mtbf_h, duration(failures.repair))
        if failures.rack_mtbf_h:
            for name, whole in racks(self._cluster.nodes, failures.nodes_per_rack).items():
                rack = tuple(node for node in whole if node in nodes)
                self._alternate("rack failure", name, rack, failures.rack_mtbf_h, duration(failures.rack_repair))
        if failures.gpu_mtbf_h:
            for node in nodes:
                for number in range(node.gpu_count):
                    self._fail_gpu(node, number, 0, 0.0)

    def _alternate(
        self,
        cause: str,
        name: str,
        nodes: tuple[ClusterNode, ...],
        mean_h: float,
        repair: Duration,
        notice_s: float = 0.0,
    ) -> None:
        """These nodes go together after exponential times, and return after a repair, again and again."""
        subject, count = np.array([subject_of(name)]), 0

        def plan(now_s: float) -> None:
            up_s = exponential(self._seed, cause, subject, count).item() * mean_h * HOUR_S
            if notice_s:
                self.add(now_s + max(up_s - notice_s, 0.0), lambda core, _: self._warn(core, nodes))
            self.add(now_s + up_s, down)

        def down(_: SchedulerCore, now_s: float) -> list[Event | GpuFailed]:
            away_s = repair.quantile_s(uniform(self._seed, f"{cause}: repair", subject, count)).item()
            self.add(now_s + away_s, up)
            return self._leave(nodes)

        def up(_: SchedulerCore, now_s: float) -> list[Event | GpuFailed]:
            nonlocal count
            count += 1
            plan(now_s)
            return self._return(nodes)

        plan(0.0)

    def _leave(self, nodes: tuple[ClusterNode, ...]) -> list[Event | GpuFailed]:
        self.repairs += 1
        fresh = [node for node in nodes if not self._absent[node.node_id]]
        self._absent.update(node.node_id for node in nodes)
        return [NodeLost(node.node_id) for node in fresh]

    def _return(self, nodes: tuple[ClusterNode, ...]) -> list[Event | GpuFailed]:
        self.repairs -= 1
        found: list[Event | GpuFailed] = []
        for node in nodes:
            self._absent[node.node_id] -= 1
            if not self._absent[node.node_id]:
                what = node.node_id, node.gpu_type, node.gpu_count
                place = {name: getattr(node, name) for name in PLACE_NAMES}
                found.append(NodeJoined(*what, cpus=node.cpus, memory_gib=node.memory_gib, **place))
                found.append(NodeUnhealthy(node.node_id, GPU_FAILED if self._unhealthy[node.node_id] else ""))
        return found

    def _warn(self, core: SchedulerCore, nodes: tuple[ClusterNode, ...]) -> list[Event | GpuFailed]:
        """Jobs on nodes that go soon are stopped, so that they save."""
        here = [node.node_id for node in nodes if not self._absent[node.node_id]]
        jobs = [core.pool.jobs_on(name) for name in here]
        rows = np.unique(np.concatenate(jobs)) if jobs else np.zeros(0, dtype=np.int64)
        return [*map(NodeDraining, here), *([JobsRequeued(core.jobs.ids.of_rows(rows))] if len(rows) else [])]

    def _fail_gpu(self, node: ClusterNode, number: int, count: int, now_s: float) -> None:
        failures, cause = self._conditions.nodes, "GPU failure"
        subject = np.array([subject_of(f"{node.node_id}/{number}")])
        up_s = exponential(self._seed, cause, subject, count).item() * failures.gpu_mtbf_h * HOUR_S
        repair = duration(failures.gpu_repair)
        away_s = repair.quantile_s(uniform(self._seed, f"{cause}: repair", subject, count)).item()

        def down(_: SchedulerCore, now_s: float) -> list[Event | GpuFailed]:
            self.repairs += 1
            self._unhealthy[node.node_id] += 1
            self.add(now_s + away_s, up)
            if self._absent[node.node_id]:
                return []
            is_first = self._unhealthy[node.node_id] == 1
            unhealthy = [NodeUnhealthy(node.node_id, GPU_FAILED)] if is_first else []
            return [*unhealthy, GpuFailed(node.node_id, number)]

        def up(_: SchedulerCore, now_s: float) -> list[Event | GpuFailed]:
            self.repairs -= 1
            self._unhealthy[node.node_id] -= 1
            self._fail_gpu(node, number, count + 1, now_s)
            is_well = not self._unhealthy[node.node_id] and not self._absent[node.node_id]
            return [NodeUnhealthy(node.node_id, "")] if is_well else []

        self.add(now_s + up_s, down)

    def _plan_spot(self) -> None:
        spot = self._conditions.spot
        for node in self._nodes if spot.share else ():
            subject = np.array([subject_of(node.node_id)])
            if spot.gpu_types and node.gpu_type not in spot.gpu_types:
                continue
            if uniform(self._seed, "spot node", subject).item() < spot.share:
                times = spot.every_h, duration(spot.away), spot.notice_s
                self._alternate("spot preemption", node.node_id, (node,), *times)

    # Prices and maintenance --------------------------------------------------------------------------------------

    def _plan_prices(self) -> None:
        if self._conditions.prices.every_s:
            for gpu_type, price in zip(self._cluster.gpu_types, self._cluster.prices.tolist(), strict=True):
                if any(node.gpu_type == gpu_type for node in self._cluster.nodes):
                    self._change_price(gpu_type, price, 0.0, 0)

    def _change_price(self, gpu_type: str, list_price: float, logarithm: float, count: int) -> None:
        changes = self._conditions.prices
        step = changes.sigma * normal(self._seed, "price", np.array([subject_of(gpu_type)]), count).item()
        following = (1 - changes.reversion_share) * logarithm + step

        def change(_: SchedulerCore, __: float) -> list[Event | GpuFailed]:
            self._change_price(gpu_type, list_price, following, count + 1)
            return [PriceChanged(gpu_type, list_price * math.exp(following))]

        self.add((count + 1) * changes.every_s, change)

    def _plan_maintenance(self, number: int, window: Maintenance, count: int = 0) -> None:
        begin_s = window.begin_s + count * window.every_s
        known = tuple(str(node.node_id) for node in self._nodes)
        names = tuple(name for name in window.nodes if name in known) if window.nodes else known
        if not names:
            return
        name = f"maintenance-{number + 1}"
        event = ReservationAdded(name, names, begin_s, begin_s + window.length_s, "maintenance")

        def begin(_: SchedulerCore, __: float) -> list[Event | GpuFailed]:
            self.repairs += 1
            self.add(event.end_s, end)
            return []

        def end(_: SchedulerCore, __: float) -> list[Event | GpuFailed]:
            self.repairs -= 1
            if window.every_s:
                self._plan_maintenance(number, window, count + 1)
            return []

        self.add(0.0 if count == 0 else begin_s - window.every_s + window.length_s, event)
        self.add(begin_s, begin)


def racks(nodes: Sequence[ClusterNode], nodes_per_rack: int) -> dict[str, tuple[ClusterNode, ...]]:
    """The nodes of each rack: as nodes state it, else so many in a row."""
    found: dict[str, list[ClusterNode]] = {}
    for k, node in enumerate(nodes):
        name = f"{node.zone}/{node.rack}" if node.rack else f"rack of {nodes[k - k % nodes_per_rack].node_id}"
        found.setdefault(name, []).append(node)
    return {name: tuple(rack) for name, rack in found.items()}
