"""What jobs reported of their metrics, and how far the apps are to which they belong: tables of the core.

A curve has at most `POINTS_MAX` points of each of at most `NAMES_MAX` metrics of a job, so memory and snapshots are
bounded: a full curve keeps every other point, and the newest one. A job that lost steps loses the points behind it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gavelpy.model.apps import LOSS, AppRole, Direction, Rung
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.loss_reports import losses_of

if TYPE_CHECKING:
    from gavelpy.mechanism.events import MetricsReported
    from gavelpy.mechanism.jobs import JobTable

NAMES_MAX = 8  # metrics of a job
POINTS_MAX = 64  # of a curve


class Curve(NamedTuple):
    """Values of one metric of a job."""

    steps: tuple[float, ...] = ()  # ascending, each once
    values: tuple[float, ...] = ()

    def with_point(self, step: float, value: float) -> Curve:
        """The curve with a newer point."""
        count = int(np.searchsorted(self.steps, step))
        steps, values = (*self.steps[:count], step), (*self.values[:count], value)
        if len(steps) > POINTS_MAX:
            steps, values = (*steps[:-1:2], steps[-1]), (*values[:-1:2], values[-1])
        return Curve(steps, values)

    def at(self, step: float) -> float:
        """The last value up to a step, else the first one after it; NaN without any."""
        if not self.steps:
            return math.nan
        return self.values[max(int(np.searchsorted(self.steps, step, side="right")) - 1, 0)]


NO_CURVE = Curve()


class AppTable:
    """By row of the table of jobs; the rung that comes next by bracket."""

    def __init__(self) -> None:
        self.curves: dict[int, dict[str, Curve]] = {}  # of jobs, active or over, by name; inner dicts never change
        self.members: dict[int, str] = {}  # bracket of each unfinished job of an app with rungs ahead; in order
        self.at_rung: dict[int, float] = {}  # jobs that wait at the next rung, with their values there; NaN = none
        self.rungs: dict[str, int] = {}  # number of the next rung, from 0, of brackets with members
        self.app_of: dict[int, str] = {}  # name and first serial of the app of each job that has one, active or over
        self.ended: dict[int, str] = {}  # jobs that their apps ended, and why
        self.living: Counter[str] = Counter()  # members of each bracket
        self.arrived: Counter[str] = Counter()  # of these, at the rung
        self.touched: dict[str, None] = {}  # brackets that this event may take further; in order
        self.due_s: dict[str, float] = {}  # when a rung is decided at the latest, of brackets with such a limit

    def joined(self, row: int, serial: int, text: str) -> None:
        """A job of an app was submitted."""
        role = AppRole.parse(text)
        self.app_of[row] = label(role, serial)
        if role.rungs:
            self.members[row] = key = f"{serial - role.at}/{role.bracket}"
            self.rungs.setdefault(key, 0)
            self.living[key] += 1
        if role.at == role.jobs - 1:  # the app is complete
            first = f"{serial - role.at}/"
            self.touched |= {key: None for key in self.rungs if key.startswith(first)}

    @property
    def next_due_s(self) -> float:
        """When the next rung must be decided; infinite if no job waits with a limit."""
        return min(self.due_s.values()) if self.due_s else math.inf

    def arrive(self, row: int, value: float, due_s: float = math.inf) -> None:
        """A member has come to the rung, with this value of its metric, and waits for the others up to `due_s`."""
        self.at_rung[row] = value
        self.arrived[key := self.members[row]] += 1
        if due_s < math.inf:
            self.due_s.setdefault(key, due_s)  # the member that came first sets the limit

    def depart(self, row: int) -> None:
        """A member continues from the rung, if it has come there."""
        self.arrived[self.members[row]] -= self.at_rung.pop(row, None) is not None

    def prolong(self, soonest_s: float) -> None:
        """Decides no rung without late jobs before `soonest_s`."""
        self.due_s = {key: max(due_s, soonest_s) for key, due_s in self.due_s.items()}

    def leave(self, row: int) -> None:
        """A job is over, or has no rung ahead."""
        key = self.members.pop(row, None)
        if key is None:
            return
        self.living[key] -= 1
        self.arrived[key] -= self.at_rung.pop(row, None) is not None
        self.touched[key] = None
        if not self.arrived[key]:
            self.due_s.pop(key, None)
        if not self.living[key]:
            for of_bracket in (self.rungs, self.living, self.arrived, self.touched):
                of_bracket.pop(key, None)

    def curve(self, row: int, name: str) -> Curve:
        """What a job reported of a metric."""
        return self.curves.get(row, {}).get(name, NO_CURVE)

    def next_rung(self, row: int, text: str) -> Rung | None:
        """The next rung of a job with this role; None if it has none, or is over."""
        key = self.members.get(row)
        return None if key is None else AppRole.parse(text).rungs[self.rungs[key]]

    def renumber(self, at: list[int]) -> None:
        """`at`: the new row of each old one, -1 = the job has left."""
        for name in ("app_of", "curves", "members", "at_rung", "ended"):
            setattr(self, name, {at[row]: value for row, value in getattr(self, name).items() if at[row] >= 0})

    def state(self) -> dict[str, Any]:
        """Plain values, which `restore` reads; empty = no job has a metric or an app with rungs."""
        if not (self.curves or self.members or self.rungs or self.ended):
            return {}
        return {
            "curves": {
                str(row): {name: [list(curve.steps), list(curve.values)] for name, curve in of.items()}
                for row, of in self.curves.items()
            },
            "members": {str(row): key for row, key in self.members.items()},
            "at_rung": {str(row): value for row, value in self.at_rung.items()},
            "rungs": dict(self.rungs),
            "ended": {str(row): text for row, text in self.ended.items()},
            **({"due_s": dict(self.due_s)} if self.due_s else {}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over the values of a snapshot."""
        self.curves = {
            int(row): {name: Curve(tuple(steps), tuple(values)) for name, (steps, values) in of.items()}
            for row, of in state.get("curves", {}).items()
        }
        self.members = {int(row): str(key) for row, key in state.get("members", {}).items()}
        self.at_rung = {int(row): float(value) for row, value in state.get("at_rung", {}).items()}
        self.rungs = {str(key): int(rung) for key, rung in state.get("rungs", {}).items()}
        self.ended = {int(row): str(text) for row, text in state.get("ended", {}).items()}
        self.due_s = {str(key): float(due_s) for key, due_s in state.get("due_s", {}).items()}
        self.living = Counter(self.members.values())
        self.arrived = Counter(self.members[row] for row in self.at_rung)


def book(jobs: JobTable, event: MetricsReported) -> None:
    """Adds what running jobs reported of their metrics to their curves; metrics beyond `NAMES_MAX` are ignored."""
    counts = (jobs.lease[event.jobs] == event.leases) | (jobs.stopping[event.jobs] == event.leases)
    for k in np.flatnonzero(counts).tolist():
        row, name = int(event.jobs[k]), event.names[int(event.metric[k])]
        known = jobs.apps.curves.get(row, {})
        if name in known or len(known) < NAMES_MAX:
            point = float(event.metric_steps[k]), float(event.values[k])
            jobs.apps.curves[row] = known | {name: known.get(name, NO_CURVE).with_point(*point)}


def label(role: AppRole, serial: int) -> str:
    """The app of the job with this role and serial: apps may have the same name, but not the same first job."""
    return f"{role.name}/{serial - role.at}"


def apps_of(jobs: JobTable, rows: Ints) -> tuple[Ints, tuple[str, ...]]:
    """The app of each of these jobs, -1 = none, (K,), and the labels of the apps in order of their first jobs."""
    found, places, of = np.full(len(rows), -1), dict[str, int](), jobs.apps.app_of
    for k in np.flatnonzero(np.isin(rows, list(of))).tolist() if of else ():
        found[k] = places.setdefault(of[int(rows[k])], len(places))
    return found, tuple(places)


def losses(jobs: JobTable, rows: Ints) -> Floats:
    """What these jobs reported of the metric of their app, or of `loss`, as `AllocationProblem.losses`, (K, n, 2)."""
    curves = jobs.apps.curves
    if not curves:
        return np.zeros((len(rows), 0, 2))
    return losses_of([_reports(jobs, row) if row in curves else () for row in rows.tolist()])


def _reports(jobs: JobTable, row: int) -> list[tuple[float, float]]:
    role = role_of(jobs, row) if jobs.specs[row].app else None
    curve = jobs.apps.curve(row, LOSS if role is None else role.metric)
    sign = -1.0 if role is not None and role.direction is Direction.MAX else 1.0
    return [(step, sign * value) for step, value in zip(curve.steps, curve.values, strict=True)]


def next_rung(jobs: JobTable, row: int) -> Rung | None:
    """The next rung of an unfinished job; None if it has none."""
    return jobs.apps.next_rung(row, jobs.specs[row].app)


def steps_max(jobs: JobTable, row: int) -> float:
    """The step at which a lease of this job ends by itself; 0 = no limit."""
    rung = next_rung(jobs, row)
    return rung.steps if rung is not None and rung.steps < jobs.steps_total[row] else 0.0


def role_of(jobs: JobTable, row: int) -> AppRole:
    """The role of a job, which has an app."""
    return AppRole.parse(jobs.specs[row].app)


def wait_in_words(jobs: JobTable, row: int) -> str:
    """Why a job waits at a rung."""
    table, rung = jobs.apps, next_rung(jobs, row)
    assert rung is not None, "a job waits at a rung that is ahead"
    key, role = table.members[row], role_of(jobs, row)
    left = table.living[key] - table.arrived[key]
    others = "1 other job" if left == 1 else f"{left} other jobs"
    until = f", until {table.due_s[key]:g} s at most" if key in table.due_s else ""
    return f"waits at {rung.steps:g} steps for {others} of app {role.name}, to be compared with them{until}"
