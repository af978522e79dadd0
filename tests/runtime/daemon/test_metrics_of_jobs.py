"""Metrics of jobs, as the lease table reports them to the core: which values, when, and how many."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gavelpy.mechanism.app_table import NAMES_MAX
from gavelpy.mechanism.events import Event, MetricsReported, Outcome
from gavelpy.model.apps import AppRole, HalvingSchedule, Rung
from gavelpy.runtime.daemon.leases.metrics import valid_points
from gavelpy.runtime.metric_files import MetricPoint
from tests.runtime.daemon.table_builders import Bench, ended, names, part

ROLE = AppRole("tune", 0, 1, schedule=HalvingSchedule.SUCCESSIVE_HALVING, rungs=(Rung(100, 1),)).text


def running(**options: object) -> Bench:
    bench = Bench(("n0", 1))
    bench.submit("a", **options)
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    return bench


def loss(step: float, value: float) -> tuple[MetricPoint, ...]:
    return (MetricPoint("loss", step, value),)


def values(events: Sequence[Event]) -> list[tuple[float, float]]:
    (event,) = [one for one in events if isinstance(one, MetricsReported)]
    return list(zip(event.metric_steps.tolist(), event.values.tolist(), strict=True))


def test_metrics_wait_for_the_next_report_of_progress_and_only_the_last_value_counts() -> None:
    bench = running()

    at_once = [bench.say("n0", part(0, 0, metrics=loss(step, 1 / step))) for step in (1.0, 2.0, 4.0)]
    later = bench.table.progress()

    assert at_once == [[], [], []]
    assert values(later) == [(4.0, 0.25)]
    assert bench.table.progress() == []


def test_a_metric_at_a_rung_is_reported_at_once_and_one_before_it_is_not() -> None:
    bench = running(app=ROLE)

    before = bench.say("n0", part(0, 0, metrics=loss(99, 0.5)))
    there = bench.say("n0", part(0, 0, metrics=loss(100, 0.4)))

    assert before == []
    assert values(there) == [(100, 0.4)]


def test_the_last_value_of_a_lease_comes_before_its_end() -> None:
    bench = running()

    events = bench.say("n0", ended(0, 0, Outcome.FINISHED, steps_done=7.0, metrics=loss(7, 0.1)))

    assert names(events)[-2:] == ["MetricsReported", "LeaseEnded"]


def test_a_lease_of_a_member_ends_at_the_next_rung() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a", app=ROLE)
    bench.wake()

    (order,) = bench.table.orders("n0")

    assert order.start is not None
    assert order.start.steps_max == 100


def test_values_that_cannot_be_are_left_out() -> None:
    points = [
        MetricPoint("loss", 1.0, math.nan),
        MetricPoint("loss", -1.0, 0.5),
        MetricPoint("a b", 1.0, 0.5),
        MetricPoint("x" * 1000, 1.0, 0.5),
        MetricPoint("inf", math.inf, 0.5),
        MetricPoint("good", 1.0, 0.5),
    ]

    assert valid_points(points) == (MetricPoint("good", 1.0, 0.5),)
    assert len(valid_points(MetricPoint(f"m{n}", 1.0, 0.5) for n in range(1000))) == NAMES_MAX
