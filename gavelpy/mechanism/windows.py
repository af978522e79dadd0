"""Reservations of nodes: for maintenance, when their nodes run no jobs, and for users, whose jobs alone run there.

Theory of operation. A reservation has a begin and an end. Rounds end at the next begin or end, so leases on the nodes
end when it begins. All of this is in the core's timer, so forecasts, which run a copy of the core, include it.

*For maintenance*, a reserved node is like a draining one for plans, the policy's capacity and reasons. Leases end, also
those of jobs that are otherwise not preempted: the nodes will be switched off.

*For users*, a reservation in force divides the cluster. Each such reservation is a *part*, and part 0 is all other
nodes. A job that names a reservation of its owner is in that part while it is in force, and in none (-1) at other
times; all other jobs are in part 0. The policy divides each part among the jobs of that part (see `requests`), and each
part has plans of its own (see `class_planning`), so neither does an idle reservation hold back other jobs, nor do many
waiting jobs outside hold back those inside. A lease on GPUs of another part ends at once, except of jobs that no plan
may preempt: they run on to their end, and their GPUs belong to the reservation afterwards. When a reservation is over,
its jobs lose their leases in the same way and are held; a job that is released then runs in part 0.

A job that is not preemptible would lose its work at a begin, or would take GPUs from the reservation. It starts on a
node with a coming reservation that is not its own only if it ends before: by its time limit, or by the steps that are
left at its slowest rate there. Otherwise the node is not in the job's set (see `node_sets`). Preemptible jobs use the
nodes up to the begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism import eligibility, failures, non_preemptible
from gavelpy.mechanism.eligibility import Hold
from gavelpy.mechanism.events import NO_INTS, ReservationAdded, ReservationRemoved
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import Resumes
from gavelpy.mechanism.node_sets import NodeSets, node_sets
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import JobSpec

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

NEVER_S = math.inf
OUTSIDE = 0  # the part of nodes that are in no reservation for users
NOWHERE = -1  # the part of jobs that may run on no node now


@dataclass(frozen=True)
class Window:
    """A reservation. Times are those of the core."""

    name: str
    node_ids: tuple[str, ...]
    begin_s: float
    end_s: float
    reason: str = ""
    users: tuple[str, ...] = ()  # owners of the jobs that may use it; empty = for maintenance

    @property
    def text(self) -> str:
        """For people, without times."""
        users = f" for {', '.join(self.users)}" if self.users else ""
        return f"reserved{users} by {self.name!r}{': ' if self.reason else ''}{self.reason}"

    def is_in_force(self, now_s: float) -> bool:
        """Whether its time has come."""
        return self.begin_s <= now_s < self.end_s

    def overlaps(self, begin_s: float, end_s: float, node_ids: Iterable[str]) -> list[str]:
        """The nodes among these that it has at any time between these two."""
        return sorted(set(self.node_ids) & set(node_ids)) if self.begin_s < end_s and begin_s < self.end_s else []


class Closing(NamedTuple):
    """GPUs on nodes of coming reservations, and the jobs that may not start there."""

    windows: tuple[Window, ...]  # W
    gpus: Bools  # (W, G)
    barred: Bools  # (W, N) not preemptible, not of this reservation, and not expected to end before

    @property
    def any_barred(self) -> Bools:
        """Whether each job may not start on some node, (N,)."""
        return np.asarray(self.barred.any(axis=0))

    def narrowed(self, sets: NodeSets) -> NodeSets:
        """These sets without the GPUs on which jobs may not start."""
        for gpus, barred in zip(self.gpus, self.barred, strict=True):
            sets = sets.without(barred, gpus)
        return sets


# Begins and ends ------------------------------------------------------------------------------------------------------


def change(core: SchedulerCore, event: ReservationAdded | ReservationRemoved) -> None:
    """Adds, replaces or removes a reservation."""
    core.windows = {name: window for name, window in core.windows.items() if name != event.name}
    if isinstance(event, ReservationAdded):
        times = (event.begin_s, event.end_s)
        core.windows[event.name] = Window(event.name, event.node_ids, *times, event.reason, event.users)
    enter(core)


def enter(core: SchedulerCore) -> None:
    """Reserves and reopens nodes for the time that has come. A round ends if leases must end."""
    now_s, pool = core.now_s, core.pool
    core.windows = {name: window for name, window in core.windows.items() if window.end_s > now_s}
    core.window_due_s = due_s(core.windows, now_s)
    closed = {node: window for window in in_force(core) if not window.users for node in window.node_ids}
    for row, node in enumerate(pool.node_ids):
        window = closed.get(node)
        pool.set_reserved(row, window.text if window is not None else "")
    part_of = {node: part for part, window in enumerate(divisions(core), 1) for node in window.node_ids}
    pool.node_part = [part_of.get(node, OUTSIDE) for node in pool.node_ids]
    for row in core.jobs.booked:
        assign(core, row)
    core.disturb()
    end_round(core)


def in_force(core: SchedulerCore) -> list[Window]:
    """The reservations that have begun, as of the last begin or end that the core has applied."""
    return [window for window in core.windows.values() if window.begin_s < core.window_due_s]


def divisions(core: SchedulerCore) -> list[Window]:
    """The reservations for users in force; the first is part 1."""
    return sorted((window for window in in_force(core) if window.users), key=lambda one: (one.begin_s, one.name))


def check_reservations(specs: Iterable[JobSpec], core: SchedulerCore, owner: str) -> None:
    """Raises InvalidInput for a job that names a reservation that is not there, is over, or is not this owner's."""
    for name in sorted({spec.reservation for spec in specs} - {""}):
        window = core.windows.get(name)
        theirs = [one.name for one in core.windows.values() if owner in one.users and one.end_s > core.now_s]
        allowed = f"one for {owner!r} ({', '.join(theirs) or 'there is none'})"
        if window is None or window.end_s <= core.now_s:
            raise InvalidInput(f"reservation must be {allowed}, got {name!r}, which does not exist or is over")
        if not window.users:
            raise InvalidInput(f"reservation must be {allowed}, got {name!r}, which is for maintenance")
        if name not in theirs:
            raise InvalidInput(f"reservation must be {allowed}, got {name!r}, which is for others")


def assign(core: SchedulerCore, row: int) -> None:
    """Sets the part of a job that runs within a reservation only; holds it if there is none such for its owner."""
    jobs = core.jobs
    window = own(core, row)
    if window is None:
        eligibility.hold(jobs, np.array([row]), Hold.OWNER)
    names = [one.name for one in divisions(core)]
    jobs.part[row] = names.index(window.name) + 1 if window is not None and window.name in names else NOWHERE


def own(core: SchedulerCore, row: int) -> Window | None:
    """The reservation that a job runs within; None if there is none such for its owner."""
    window = core.windows.get(core.jobs.booked.get(row, ""))
    return window if window is not None and core.jobs.specs[row].owner in window.users else None


def released(core: SchedulerCore, rows: Ints) -> None:
    """Lets released jobs whose reservations are over run in part 0."""
    for row in rows.tolist():
        if row in core.jobs.booked and own(core, row) is None:
            del core.jobs.booked[row]
            core.jobs.part[row] = OUTSIDE


def keep(core: SchedulerCore) -> None:
    """Recomputes which jobs no plan may preempt, and ends the round if a lease must end now."""
    non_preemptible.keep(core)
    end_round(core)


def end_round(core: SchedulerCore) -> None:
    """Ends the round, and the wait for an answer, if a lease must end now."""
    if core.is_in_round and must_leave(core):
        core.awaiting = False
        core.round_end_s = core.attention_s = core.now_s


def must_leave(core: SchedulerCore) -> bool:
    """Whether a lease is in force on a node that is reserved from its job, so that a plan must end it now."""
    pool = core.pool
    if not (pool.any_reserved or pool.is_divided or core.jobs.booked):
        return False
    if pool.any_reserved and len(pool.jobs_holding(pool.reserved)):
        return True
    outside = outsiders(core)
    return len(outside) > 0 and len(np.setdiff1d(outside, np.union1d(core.exempt.jobs, core.leases.pinned))) > 0


def outsiders(core: SchedulerCore) -> Ints:
    """Jobs with leases on GPUs outside of their part; serials, ascending."""
    jobs, pool = core.jobs, core.pool
    if not jobs.booked and not pool.is_divided:
        return NO_INTS
    gpus, holders = pool.holdings(np.ones(len(pool.job), dtype=np.bool_))
    return np.unique(holders[jobs.part[holders] != pool.part_of[gpus]])


def due_s(windows: dict[str, Window], now_s: float) -> float:
    """The next begin or end of a reservation; infinite if there is none."""
    moments = [moment for window in windows.values() for moment in (window.begin_s, window.end_s)]
    return min((moment for moment in moments if moment > now_s), default=NEVER_S)


# Coming reservations --------------------------------------------------------------------------------------------------


def closing(core: SchedulerCore) -> Closing | None:
    """What coming reservations close; None without any, or if they keep no job from starting."""
    if not core.windows:
        return None
    coming = sorted((one for one in core.windows.values() if one not in in_force(core)), key=lambda one: one.begin_s)
    if not coming:
        return None
    jobs, pool = core.jobs, core.pool
    rows = _never_preempted(jobs, jobs.active, core.settings)
    left_s = _left_s(jobs, rows, core.now_s)
    gpus = np.zeros((len(coming), len(pool.job)), dtype=np.bool_)
    barred = np.zeros((len(coming), jobs.count), dtype=np.bool_)
    for k, window in enumerate(coming):
        gpus[k] = _on(pool, window.node_ids)
        barred[k, rows] = (left_s > window.begin_s - core.now_s) & ~_of_window(core, rows, window)
    return Closing(tuple(coming), gpus, barred) if barred.any() else None


def in_the_way(core: SchedulerCore, window: Window) -> Ints:
    """Jobs of others that run on the nodes of a reservation for users and would still when it begins; ascending.

    They are not preempted, so the reservation gets their GPUs when they end.
    """
    jobs, pool = core.jobs, core.pool
    rows = np.intersect1d(pool.jobs_holding(_on(pool, window.node_ids)), core.exempt.jobs)
    rows = rows[~non_preemptible.is_finishing(jobs, rows) & ~_of_window(core, rows, window)]
    return np.asarray(rows[_left_s(jobs, rows, core.now_s) > window.begin_s - core.now_s])


def _on(pool: GpuPool, node_ids: Iterable[str]) -> Bools:
    """Whether each GPU is on one of these nodes, (G,)."""
    named = frozenset(node_ids)
    return np.array([node in named for node in pool.node_ids], dtype=np.bool_)[pool.node_of]


def _of_window(core: SchedulerCore, rows: Ints, window: Window) -> Bools:
    """Whether these jobs run within this reservation, (K,)."""
    jobs = core.jobs
    is_own = [jobs.booked.get(row) == window.name and jobs.specs[row].owner in window.users for row in rows.tolist()]
    return np.array(is_own, dtype=np.bool_)


def _never_preempted(jobs: JobTable, rows: Ints, settings: MechanismSettings) -> Ints:
    """Those of these jobs that no plan preempts once they run."""
    if settings.keep_unsaved:
        return np.asarray(rows[~non_preemptible.is_preemptible(jobs, rows)])
    return np.asarray(rows[jobs.resumes[rows] == Resumes.REFUSED])


def _left_s(jobs: JobTable, rows: Ints, now_s: float) -> Floats:
    """Running time that these jobs need at most: by time limits, or by steps at the slowest rates, (K,)."""
    limit_s = np.array([jobs.specs[row].time_s or math.inf for row in rows.tolist()])
    by_limit_s = np.maximum(limit_s - jobs.ran_s(rows, now_s), failures.TIME_LEFT_S_MIN)
    rate = jobs.rate[rows]
    slowest = np.where(rate > 0, rate, math.inf).min(axis=1, initial=math.inf)
    left = np.maximum(jobs.steps_total[rows] - jobs.steps_done[rows], 0.0)
    by_steps_s = np.where(np.isfinite(slowest), left / slowest, math.inf)
    return np.asarray(np.minimum(by_limit_s, by_steps_s))


# In words -------------------------------------------------------------------------------------------------------------


def in_words(core: SchedulerCore, row: int, closing: Closing, free: Bools) -> str:
    """That coming reservations keep a waiting job from free GPUs; empty = they do not."""
    jobs, pool = core.jobs, core.pool
    bars = np.flatnonzero(closing.barred[:, row])
    if not len(bars):
        return ""
    if (sets := node_sets(jobs, pool)) is not None:
        free = free & sets.of(row)
    runs = jobs.rate[row, pool.domain_type] > 0
    closed = closing.gpus[bars].any(axis=0)
    fits = [runs & (pool.domain_counts(which) >= jobs.gpus[row]) for which in (free, free & ~closed)]
    if not fits[0].any() or fits[1].any():
        return ""
    coming = [closing.windows[k] for k in bars.tolist() if (closing.gpus[k] & free).any()]
    names = " and ".join(repr(window.name) for window in coming)
    begins = f"which begins at {coming[0].begin_s:g} s" if len(coming) == 1 else "which are coming"
    return f"would not end before the reservation {names} of free nodes, {begins}, and cannot be preempted"


def own_in_words(core: SchedulerCore, row: int) -> str:
    """That a job waits for the begin of its reservation, or that this is over; empty = neither."""
    if row not in core.jobs.booked or core.jobs.part[row] != NOWHERE:
        return ""
    window = own(core, row)
    if window is None:
        name = core.jobs.booked[row]
        return f"its reservation {name!r} is over, so it is held; once released, it runs outside of reservations"
    return f"its reservation {window.name!r} begins at {window.begin_s:g} s"


def division_in_words(core: SchedulerCore, usable: Bools) -> str:
    """Which nodes with these GPUs (G,) are reserved for users, for whom, and until when; empty = none."""
    pool = core.pool
    clauses = []
    for part, window in enumerate(divisions(core), 1):
        nodes = [pool.node_ids[row] for row in np.unique(pool.node_of[usable & (pool.part_of == part)]).tolist()]
        if nodes:
            clauses.append(f"{', '.join(nodes)} {window.text} until {window.end_s:g} s")
    return "; ".join(clauses)
