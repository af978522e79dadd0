"""Metrics of running jobs: valid values from nodes' reports, and the event with those that are new."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.app_table import NAMES_MAX, AppTable
from gavelpy.mechanism.events import Event, MetricsReported
from gavelpy.model.apps import AppRole, is_metric
from gavelpy.runtime.lease_files import STEPS_MAX
from gavelpy.runtime.metric_files import MetricPoint

if TYPE_CHECKING:
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.runtime.daemon.leases.lease import Lease


def valid_points(points: Iterable[MetricPoint]) -> tuple[MetricPoint, ...]:
    """Those of these points that can be, each name once; a job can report anything, and harms no one by it."""
    found = {
        point.name: point
        for point in points
        if is_metric(point.name) and 0 <= point.step <= STEPS_MAX and math.isfinite(point.value)
    }
    return tuple(found.values())[:NAMES_MAX]


def is_news(lease: Lease) -> bool:
    """Takes over the last metrics of a lease; returns whether any is new. The first node that reports a name counts."""
    last: dict[str, MetricPoint] = {}
    for part in lease.parts.values():
        for point in part.report.metrics if part.report is not None else ():
            last.setdefault(point.name, point)
    if not last or last == lease.metrics:
        return False
    lease.metrics = last
    return True


def decides(lease: Lease, jobs: JobTable) -> bool:
    """Whether a metric of this lease has come to the next rung of its app. `jobs`: by serial."""
    text = jobs.specs[lease.job].app
    rung = jobs.apps.next_rung(jobs.ids.row(lease.job), text) if text else None
    if rung is None:
        return False
    point = lease.metrics.get(AppRole.parse(text).metric)
    return point is not None and point.step >= rung.steps


def last_metrics(table: AppTable, row: int, lease: Lease | None) -> tuple[MetricPoint, ...]:
    """The last values of a job, as its nodes reported last; the core receives them less often."""
    curves = table.curves.get(row)
    now = lease.metrics if lease is not None else {}
    if not curves:
        return tuple(now.values())
    known = {name: MetricPoint(name, curve.steps[-1], curve.values[-1]) for name, curve in curves.items()}
    return tuple((known | now).values())


def metrics_reported(leases: Sequence[Lease]) -> list[Event]:
    """The event with the metrics of these leases; empty if there are none."""
    rows = [(lease.job, lease.lease, point) for lease in leases for point in lease.metrics.values()]
    if not rows:
        return []
    names = sorted({point.name for _, _, point in rows})
    jobs, numbers, points = zip(*rows, strict=True)
    place = [names.index(point.name) for point in points]
    return [
        MetricsReported(
            np.array(jobs, dtype=np.int64),
            np.array(numbers, dtype=np.int64),
            np.array(place, dtype=np.int64),
            np.array([point.step for point in points], dtype=np.float64),
            np.array([point.value for point in points], dtype=np.float64),
            tuple(names),
        )
    ]
