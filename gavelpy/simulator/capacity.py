"""GPU time of a run from its capacity down to useful work: `gpu_hours` of its metrics."""

from __future__ import annotations

import math

import numpy as np

from gavelpy.journal.history import History
from gavelpy.mechanism.events import Event, NodeJoined, NodeLost
from gavelpy.model.arrays import Floats
from gavelpy.model.job import NodeId
from gavelpy.simulator.accounts import Use


class CapacityMeter:
    """Observer of the events of one run: GPU time that the cluster has, and that lost nodes have not."""

    def __init__(self) -> None:
        self._gpus: dict[NodeId, int] = {}  # of each node that ever joined
        self._absent: dict[NodeId, float] = {}  # since when
        self._since_s = 0.0
        self._gpu_s = self._down_gpu_s = 0.0  # up to `_since_s`

    def __call__(self, event: Event, now_s: float) -> None:
        """Counts an event."""
        if isinstance(event, NodeJoined):
            self._settle(now_s)
            self._gpus[event.node_id] = event.gpu_count
            self._absent.pop(event.node_id, None)
        elif isinstance(event, NodeLost) and event.node_id in self._gpus:
            self._settle(now_s)
            self._absent[event.node_id] = now_s

    def until(self, now_s: float) -> tuple[float, float]:
        """GPU-seconds of all nodes since they joined, and of these while their nodes were lost."""
        self._settle(now_s)
        return self._gpu_s, self._down_gpu_s

    def _settle(self, now_s: float) -> None:
        elapsed_s = now_s - self._since_s
        self._gpu_s += elapsed_s * sum(self._gpus.values())
        self._down_gpu_s += elapsed_s * sum(self._gpus[node] for node in self._absent)
        self._since_s = now_s


def gpu_hours(history: History, meter: CapacityMeter, used_gpu_s: Floats) -> dict[str, float]:
    """GPU-hours by use; all but `capacity` add up to `capacity`. `used_gpu_s` (U, T): see `LeaseAccounts.until`."""
    capacity_gpu_s, down_gpu_s = meter.until(history.now_s)
    _, gpus, _, starts, ends = history.leased_intervals()
    leased_gpu_s = math.fsum(((ends - starts) * gpus).tolist())
    shared, _, _, since_s, until_s = history.sharing.times(history.now_s)
    shared_gpu_s = math.fsum(((until_s - since_s) * history.gpus[shared]).tolist())
    by_use = np.asarray(used_gpu_s.sum(axis=1)).tolist()
    found = {use.name.lower(): gpu_s for use, gpu_s in zip(Use, by_use, strict=True)}
    found["slowdown"] -= shared_gpu_s  # a GPU that two leases share counts once
    found |= {
        "idle": capacity_gpu_s - down_gpu_s - leased_gpu_s,
        "down": down_gpu_s,
        "capacity": capacity_gpu_s,
    }
    return {name: gpu_s / 3600.0 for name, gpu_s in found.items()}
