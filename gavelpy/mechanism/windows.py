"""Reservations of nodes for maintenance: while one is in force, its nodes run no jobs.

Theory of operation. A reservation has a begin and an end. Rounds end at the next begin or end, so leases on the nodes
end when the reservation begins, also those of jobs that are otherwise not preempted: the nodes will be switched off. In
force, a reserved node is like a draining one for plans, the policy's capacity and reasons; at the end it is usable
again. All of this is in the core's timer, so forecasts, which run a copy of the core, include it.

A job that is not preemptible would lose its work at the begin. It starts on a node with a coming reservation only if it
ends before: by its time limit, or by the steps that are left at its slowest rate there. Otherwise the node is not in
the job's set (see `node_sets`). Preemptible jobs use the nodes up to the begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism import failures, non_preemptible
from gavelpy.mechanism.events import ReservationAdded, ReservationRemoved
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.node_sets import node_sets
from gavelpy.model.arrays import Bools

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

NEVER_S = math.inf


@dataclass(frozen=True)
class Window:
    """A reservation. Times are those of the core."""

    name: str
    node_ids: tuple[str, ...]
    begin_s: float
    end_s: float
    reason: str = ""

    @property
    def text(self) -> str:
        """For people, without times."""
        return f"reserved by {self.name!r}{': ' if self.reason else ''}{self.reason}"

    def is_in_force(self, now_s: float) -> bool:
        """Whether its nodes run no jobs now."""
        return self.begin_s <= now_s < self.end_s


class Closing(NamedTuple):
    """GPUs on nodes that a coming reservation closes, and the jobs that would lose work there."""

    gpus: Bools  # (G,)
    barred: Bools  # (N,) not preemptible, and not expected to end before


def change(core: SchedulerCore, event: ReservationAdded | ReservationRemoved) -> None:
    """Adds, replaces or removes a reservation."""
    core.windows = {name: window for name, window in core.windows.items() if name != event.name}
    if isinstance(event, ReservationAdded):
        core.windows[event.name] = Window(event.name, event.node_ids, event.begin_s, event.end_s, event.reason)
    enter(core)


def enter(core: SchedulerCore) -> None:
    """Reserves and reopens nodes for the time that has come. A round ends if leases must end."""
    now_s, pool = core.now_s, core.pool
    core.windows = {name: window for name, window in core.windows.items() if window.end_s > now_s}
    in_force = {
        node: window for window in core.windows.values() if window.is_in_force(now_s) for node in window.node_ids
    }
    for row, node in enumerate(pool.node_ids):
        window = in_force.get(node)
        pool.set_reserved(row, window.text if window is not None else "")
    core.window_due_s = due_s(core.windows, now_s)
    if core.is_in_round and must_leave(pool):
        core.round_end_s = now_s
    core.disturb()


def must_leave(pool: GpuPool) -> bool:
    """Whether a lease is in force on a reserved node, so that a plan must end it now."""
    return pool.any_reserved and len(pool.jobs_holding(pool.reserved)) > 0


def due_s(windows: dict[str, Window], now_s: float) -> float:
    """The next begin or end of a reservation; infinite if there is none."""
    moments = [moment for window in windows.values() for moment in (window.begin_s, window.end_s)]
    return min((moment for moment in moments if moment > now_s), default=NEVER_S)


def closing(core: SchedulerCore) -> Closing | None:
    """What coming reservations close; None without any, or if all jobs can be preempted."""
    coming = [window for window in core.windows.values() if window.begin_s > core.now_s]
    if not coming or not core.settings.keep_unsaved:
        return None
    jobs, pool = core.jobs, core.pool
    nodes = {node for window in coming for node in window.node_ids}
    is_closing = np.array([node in nodes for node in pool.node_ids], dtype=np.bool_)[pool.node_of]
    lead_s = min(window.begin_s for window in coming) - core.now_s
    barred = np.zeros(jobs.count, dtype=np.bool_)
    rows = jobs.active[~non_preemptible.is_preemptible(jobs, jobs.active)]
    barred[rows] = [_left_s(jobs, row) > lead_s for row in rows.tolist()]
    return Closing(is_closing, barred) if barred.any() else None


def _left_s(jobs: JobTable, row: int) -> float:
    """Running time that a job needs at most: by its time limit, or by its steps at its slowest rate."""
    rates = jobs.rate[row][jobs.rate[row] > 0]
    by_steps_s = float((jobs.steps_total[row] - jobs.steps_done[row]) / rates.min()) if len(rates) else math.inf
    return min(failures.time_left_s(jobs, row) or math.inf, by_steps_s)


def in_words(core: SchedulerCore, row: int, closing: Closing, free: Bools) -> str:
    """That a coming reservation keeps a waiting job from free GPUs; empty = it does not."""
    jobs, pool = core.jobs, core.pool
    if not closing.barred[row]:
        return ""
    if (sets := node_sets(jobs, pool)) is not None:
        free = free & sets.of(row)
    runs = jobs.rate[row, pool.domain_type] > 0
    fits = [runs & (pool.domain_counts(which) >= jobs.gpus[row]) for which in (free, free & ~closing.gpus)]
    if not fits[0].any() or fits[1].any():
        return ""
    coming = [window.name for window in core.windows.values() if window.begin_s > core.now_s]
    names = " and ".join(repr(name) for name in coming)
    return f"would not end before the reservation {names} of free nodes, and cannot be preempted"
