"""Trials: each new job first runs on one GPU of a small pool, where user errors show cheaply.

The pool is outside the core: its nodes are reserved for the whole run, and jobs get its GPUs in order of arrival. A job
is held from its arrival to the end of its trial. It then starts from its first step in the main cluster, unless it
failed. A trial uses the same random numbers as the main cluster, so a job fails after the same work with a pool and
without one. Nodes of the pool do not fail.

Source: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads (ATC '19).
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.simulator.conditions.draws import duration, uniform
from gavelpy.simulator.conditions.job_costs import Costs

if TYPE_CHECKING:
    from gavelpy.model.cluster import Cluster, ClusterNode
    from gavelpy.model.job import JobSpec
    from gavelpy.simulator.conditions.spec import Conditions

FAILED = "failed in its trial"


class Trial(NamedTuple):
    """Of one job."""

    begin_s: float
    end_s: float
    has_failed: bool


class TrialPool:
    """The trials of one run; jobs are added in order of arrival."""

    def __init__(self, conditions: Conditions, base: Costs, cluster: Cluster, seed: int) -> None:
        self._conditions, self._base, self._seed = conditions, base, seed
        self.nodes = pool_nodes(conditions, cluster)
        self.gpu_type = self.nodes[0].gpu_type if self.nodes else ""
        self._free_s = [0.0] * sum(node.gpu_count for node in self.nodes)  # a heap: when each GPU is free
        self._times_s: list[tuple[float, float]] = []  # of each trial that began
        self.failed: set[int] = set()  # jobs that fail in their trials

    def takes(self, job: JobSpec) -> bool:
        """Whether a job has a trial: there is a pool, it may use its GPUs, and its owner does not hold it."""
        may_use = not job.gpu_types or self.gpu_type in job.gpu_types
        can_run = not job.rates_steps_per_s or job.rates_steps_per_s.get(self.gpu_type, 0.0) > 0
        return bool(self.nodes) and may_use and can_run and not job.hold

    def add(self, row: int, job: JobSpec, now_s: float, cancelled_s: float = math.inf) -> Trial:
        """The trial of a job that arrives now; it ends when its user cancels the job."""
        begin_s = max(self._free_s[0], now_s)
        if cancelled_s <= begin_s:
            return Trial(cancelled_s, cancelled_s, has_failed=False)
        section, rows = self._conditions.trials, np.array([row])
        start = self._conditions.costs.of(job.job_type, self._base).start
        start_s = start.quantile_s(uniform(self._seed, "start of a trial", rows)).item()
        rate = job.rates_steps_per_s.get(self.gpu_type, 0.0)
        error_s, work_s = early_error_s(self._conditions, self._seed, row), job.steps_total / rate if rate else math.inf
        end_s = begin_s + start_s + min(section.most_s, error_s, work_s)
        has_failed = error_s <= section.most_s and error_s < work_s and end_s < cancelled_s
        if has_failed:
            self.failed.add(row)
        end_s = min(end_s, cancelled_s)
        heapq.heapreplace(self._free_s, end_s)
        self._times_s.append((begin_s, end_s))
        return Trial(begin_s, end_s, has_failed)

    def gpu_s(self, now_s: float) -> float:
        """GPU time of trials up to now."""
        return math.fsum(min(end_s, now_s) - begin_s for begin_s, end_s in self._times_s if begin_s < now_s)


def early_error_s(conditions: Conditions, seed: int, row: int) -> float:
    """Work after which a job ends by a user error, infinite if it has none: as `DrawnConditions` draws it."""
    failing, rows = conditions.job_failures, np.array([row])
    if not uniform(seed, "class of failure", rows).item() < failing.early_share:
        return math.inf
    return duration(failing.early).quantile_s(uniform(seed, "early failure", rows)).item()


def pool_nodes(conditions: Conditions, cluster: Cluster) -> tuple[ClusterNode, ...]:
    """The nodes of the pool, whole; empty if there is none."""
    section = conditions.trials
    if not section.most_s:
        return ()
    by_name = {str(node.node_id): node for node in cluster.nodes}
    for name in section.nodes:
        if name not in by_name:
            raise InvalidInput(f"nodes of [trials] must be in the cluster, such as {min(by_name)!r}, got {name!r}")
    found = [by_name[name] for name in section.nodes]
    left = section.gpus
    for node in reversed(cluster.nodes):
        if left > 0 and node.gpu_type == section.gpu_type:
            found.append(node)
            left -= node.gpu_count
    if left > 0:
        raise InvalidInput(f"gpus of [trials] must be at most those of type {section.gpu_type!r}, got {section.gpus}")
    if len({node.gpu_type for node in found}) > 1:
        raise InvalidInput(f"nodes of [trials] must have one GPU type, got {', '.join(section.nodes)}")
    if len(found) == len(cluster.nodes):
        raise InvalidInput(f"[trials] must leave a node of the cluster to other jobs, got {len(found)} of {len(found)}")
    return tuple(found)
