"""Gauges of the scheduler's state for Prometheus: jobs, GPUs, users, entities, nodes, waiting time and lag.

They are computed from the core's arrays at each scrape, and written as text here: the library's objects for each sample
take ten times as long. The number of series is bounded: jobs are no labels, and of users, entities and nodes only the
largest have a label of their own; the rest is summed under `other`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.gpus import NONE, GpuPool
from gavelpy.mechanism.lifecycle import ALIVE, JobState, NodeState
from gavelpy.mechanism.view import lag_s
from gavelpy.model.arrays import Ints

USERS_MAX = 20  # users, and entities, with a label of their own
NODES_MAX = 500
OTHER = "other"
NO_ENTITY = "none"


@dataclass(frozen=True, eq=False)
class MetricFamily:
    """Samples of one metric: with a label, one for each of its values, else one."""

    name: str
    text: str
    values: Sequence[float]
    label: str = ""
    label_values: Sequence[str] = ("",)
    kind: str = "gauge"

    @property
    def lines(self) -> str:
        """In Prometheus' text format."""
        head = f"# HELP {self.name} {self.text}\n# TYPE {self.name} {self.kind}\n"
        if not self.label:
            return f"{head}{self.name} {float(self.values[0])!r}\n"
        pairs = zip(self.label_values, self.values, strict=True)
        return head + "".join(f'{self.name}{{{self.label}="{_escaped(key)}"}} {float(n)!r}\n' for key, n in pairs)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(frozen=True, eq=False)
class ScrapeReading:
    """The state at one scrape."""

    core: SchedulerCore
    now_s: float  # the scheduler's time
    leases: int
    engine_restarts: int
    incarnation: int
    is_ready: bool
    started_at_s: float  # Unix time of this incarnation
    report_age_s: float  # since the last report of the node that was silent longest and is not lost; 0 = no node


class StateMetrics:
    """Reads gauges from a `ScrapeReading`."""

    def families(self, reading: ScrapeReading) -> Iterator[MetricFamily]:
        """All metrics of the state. Of jobs that are over, only their number matters."""
        core = reading.core
        yield from _process(reading)
        yield from _jobs(core, reading.now_s)
        yield from _gpu_types(core.pool)
        yield from _nodes(core.pool)
        active = core.jobs.active
        yield from _by_holder("user", "owner", core, core.jobs.owner[active], list(core.jobs.owners))
        entity = core.jobs.entity[active] + 1
        yield from _by_holder("entity", "entity", core, entity, (NO_ENTITY, *core.jobs.entities))


def _gauge(name: str, text: str, value: float) -> MetricFamily:
    return MetricFamily(f"gavel_{name}", text, [value])


def _labelled(name: str, text: str, label: str, names: Sequence[str], values: Sequence[float]) -> MetricFamily:
    return MetricFamily(f"gavel_{name}", text, values, label, names)


def _process(reading: ScrapeReading) -> Iterator[MetricFamily]:
    yield _gauge("leases", "Leases without an end in the journal.", reading.leases)
    yield _gauge("round", "Number of the round.", reading.core.round)
    yield _gauge("scheduler_incarnation", "Starts of the scheduler on this journal.", reading.incarnation)
    yield _gauge("scheduler_ready", "Whether the journal is read and submissions are accepted.", reading.is_ready)
    yield _gauge("scheduler_start_time_seconds", "Unix time at which this scheduler began.", reading.started_at_s)
    yield _gauge("node_report_age_seconds", "Time since the last report of the node that was silent longest.",
                 reading.report_age_s)  # fmt: skip
    yield MetricFamily("gavel_engine_restarts_total", "Times the policy's process was started again.",
                       [reading.engine_restarts], kind="counter")  # fmt: skip


def _jobs(core: SchedulerCore, now_s: float) -> Iterator[MetricFamily]:
    jobs = core.jobs
    states = np.bincount(jobs.state[: jobs.count], minlength=len(JobState)).tolist()
    yield _labelled("jobs", "Jobs by state.", "state", [state.name.lower() for state in JobState], states)
    active = jobs.active
    waiting = active[jobs.state[active] == JobState.WAITING]
    unstarted = waiting[jobs.attained_gpu_s[waiting] == 0]
    longest_s = now_s - float(jobs.submitted_s[unstarted].min()) if len(unstarted) else 0.0
    yield _gauge("longest_wait_seconds", "Longest time that a job has waited for its first GPU, as of now.", longest_s)
    lag = lag_s(core, active, now_s)
    yield _gauge("lag_worst_seconds", "Largest lag of a job: time owed by the policy less time received.",
                 max(lag.max(initial=0.0), 0.0))  # fmt: skip
    yield _gauge("lag_seconds", "Sum of the lags of all jobs that received less than they are owed.",
                 lag.clip(min=0.0).sum())  # fmt: skip


def _gpu_types(pool: GpuPool) -> Iterator[MetricFamily]:
    in_use = np.bincount(pool.type_of[pool.job != NONE], minlength=len(pool.gpu_types)).tolist()
    counts = pool.counts.tolist()
    yield _labelled("gpus", "GPUs on nodes that can start leases, by type.", "gpu_type", pool.gpu_types, counts)
    yield _labelled("gpus_in_use", "GPUs under lease, by type.", "gpu_type", pool.gpu_types, in_use)


def _nodes(pool: GpuPool) -> Iterator[MetricFamily]:
    states = [state.name.lower() for state in NodeState]
    of_known = [pool.node_state[row] for row in pool.node_row.values()]
    counts = [of_known.count(state) for state in NodeState]
    silent, unhealthy = sum(pool.node_unreachable), sum(map(bool, pool.node_unhealthy))
    names = [*states, "silent", "unhealthy"]
    yield _labelled("nodes", "Nodes by state; silent and unhealthy ones also count as up or draining.", "state", names,
                    [*counts, silent, unhealthy])  # fmt: skip
    rows = len(pool.node_ids)
    present = np.bincount(pool.node_of[pool.present], minlength=rows)
    in_use = np.bincount(pool.node_of[pool.job != NONE], minlength=rows)
    usable = np.bincount(pool.node_of[pool.usable], minlength=rows) > 0
    is_lost = np.array([state is NodeState.LOST for state in pool.node_state], dtype=np.bool_)
    known = np.array(sorted(pool.node_row.values()), dtype=np.int64)
    ordered = known[np.argsort(is_lost[known], kind="stable")]  # lost nodes last
    order, rest = ordered[:NODES_MAX], ordered[NODES_MAX:]
    labels = [str(pool.node_ids[row]) for row in order.tolist()] + [OTHER] * bool(len(rest))
    columns = (
        ("node_gpus", "GPUs of a node.", present),
        ("node_gpus_in_use", "GPUs of a node that are under lease.", in_use),
        ("node_usable", "Whether a node is up, reachable and healthy; of `other`: how many are.", usable),
    )
    for name, text, column in columns:
        values = column[order].tolist() + [float(column[rest].sum())] * bool(len(rest))
        yield _labelled(name, text, "node", labels, values)


def _by_holder(
    prefix: str, label: str, core: SchedulerCore, holder: Ints, names: Sequence[str]
) -> Iterator[MetricFamily]:
    """Waiting jobs, running jobs and GPUs of each holder of active jobs; `holder`: row of `names` of each, (A,)."""
    jobs, active = core.jobs, core.jobs.active
    state = jobs.state[active]
    is_leased = state != JobState.WAITING
    assert (state <= ALIVE[-1]).all(), "active jobs are not over"
    waiting = np.bincount(holder[~is_leased], minlength=len(names))
    running = np.bincount(holder[is_leased], minlength=len(names))
    gpus = np.bincount(holder[is_leased], weights=jobs.gpus[active][is_leased], minlength=len(names))
    by_size = np.lexsort((-waiting, -gpus))
    shown = [row for row in by_size[: USERS_MAX + 1].tolist() if waiting[row] + running[row] and names[row] != OTHER]
    shown = shown[:USERS_MAX]
    is_rest = np.ones(len(names), dtype=np.bool_)
    is_rest[shown] = False
    labels = [names[row] or NO_ENTITY for row in shown] + [OTHER]
    columns = (("waiting_jobs", "Waiting jobs", waiting), ("running_jobs", "Jobs with a lease", running),
               ("gpus_in_use", "GPUs under lease", gpus))  # fmt: skip
    for name, text, column in columns:
        values = [*column[shown].tolist(), float(column[is_rest].sum())]
        about = f"{text} by {label}: the {USERS_MAX} with most GPUs, and {OTHER}."
        yield _labelled(f"{prefix}_{name}", about, prefix, labels, values)
