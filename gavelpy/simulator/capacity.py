"""GPU time of a run from its capacity down to useful work: `gpu_hours` of its metrics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.journal.history import History
from gavelpy.mechanism.events import Event, NodeDraining, NodeJoined, NodeLost
from gavelpy.model.arrays import Floats
from gavelpy.model.job import NodeId
from gavelpy.simulator.accounts import Use

if TYPE_CHECKING:
    from gavelpy.simulator.virtual_scheduler import VirtualScheduler

NONE = -1


class CapacityMeter:
    """Observer of the events of one run: GPU time that the cluster has, and that jobs cannot use.

    The state of the run between two events is the one before the second, in which observers receive it.
    """

    def __init__(self, run: VirtualScheduler) -> None:
        self._run = run
        self._gpus: dict[NodeId, int] = {}  # of each node that ever joined
        self._absent: dict[NodeId, float] = {}  # since when
        self._draining: set[NodeId] = set()
        self._since_s = 0.0  # of the last node that joined or was lost
        self._event_s = 0.0  # of the last event
        self._gpu_s = self._down_gpu_s = self._closed_gpu_s = 0.0  # up to `_since_s`

    def __call__(self, event: Event, now_s: float) -> None:
        """Counts an event."""
        self._count_closed(now_s)
        if isinstance(event, NodeJoined | NodeLost):
            self._settle(now_s)
        match event:
            case NodeJoined():
                self._gpus[event.node_id] = event.gpu_count
                self._absent.pop(event.node_id, None)
                self._draining.discard(event.node_id)
            case NodeLost() if event.node_id in self._gpus:
                self._absent[event.node_id] = now_s
                self._draining.discard(event.node_id)
            case NodeDraining():
                self._draining.add(event.node_id)
            case _:
                pass

    def until(self, now_s: float) -> tuple[float, float, float]:
        """GPU-seconds of all nodes since they joined, of these while their nodes were lost, and free but closed."""
        self._count_closed(now_s)
        self._settle(now_s)
        return self._gpu_s, self._down_gpu_s, self._closed_gpu_s

    def _settle(self, now_s: float) -> None:
        elapsed_s = now_s - self._since_s
        self._gpu_s += elapsed_s * sum(self._gpus.values())
        self._down_gpu_s += elapsed_s * sum(self._gpus[node] for node in self._absent)
        self._since_s = now_s

    def _count_closed(self, now_s: float) -> None:
        """Adds GPU time since the last event of free GPUs on nodes that are there and start no leases."""
        before_s, self._event_s = self._event_s, now_s
        pool, agents = self._run.core.pool, self._run.agents
        may_be = self._draining or pool.any_reserved or pool.any_unhealthy
        if not may_be or now_s == before_s or agents is None:
            return
        closed = pool.present & ~pool.usable & (pool.job == NONE)
        for node in self._absent:
            closed &= ~pool.on(node)
        since_s = np.maximum(agents.gpu_free_s[closed], before_s)  # leases that save hold their GPUs
        self._closed_gpu_s += float(np.maximum(now_s - since_s, 0.0).sum())


def gpu_hours(
    history: History, meter: CapacityMeter, used_gpu_s: Floats, trials_gpu_s: float | None = None
) -> dict[str, float]:
    """GPU-hours by use; all but `capacity` add up to `capacity`. `used_gpu_s` (U, T): see `LeaseAccounts.until`.

    `trials_gpu_s`: of trials, on nodes that are closed to leases; None = there is no pool for them.
    """
    capacity_gpu_s, down_gpu_s, closed_gpu_s = meter.until(history.now_s)
    _, gpus, _, starts, ends = history.leased_intervals()
    leased_gpu_s = math.fsum(((ends - starts) * gpus).tolist())
    shared, _, _, since_s, until_s = history.sharing.times(history.now_s)
    shared_gpu_s = math.fsum(((until_s - since_s) * history.gpus[shared]).tolist())
    by_use = np.asarray(used_gpu_s.sum(axis=1)).tolist()
    found = {use.name.lower(): gpu_s for use, gpu_s in zip(Use, by_use, strict=True)}
    found["slowdown"] -= shared_gpu_s  # a GPU that two leases share counts once
    found |= {
        "idle": capacity_gpu_s - down_gpu_s - closed_gpu_s - leased_gpu_s,
        **({} if trials_gpu_s is None else {"trials": trials_gpu_s}),
        "closed": closed_gpu_s - (trials_gpu_s or 0.0),
        "down": down_gpu_s,
        "capacity": capacity_gpu_s,
    }
    return {name: gpu_s / 3600.0 for name, gpu_s in found.items()}
