"""How late recorded timers were, by their due times."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event, NodeLost, SchedulerRestarted, WakeupDue
from gavelpy.model.job import NodeId
from gavelpy.simulator.past.timers import SAME_S, Timers

OTHER = NodeLost(NodeId("n0"))
WOKEN = WakeupDue()


def seen(*events: tuple[float, Event, float]) -> Timers:
    """Timers after events with their times, and the time at which the core is to be woken after each."""
    timers = Timers()
    for now_s, event, wakeup_s in events:
        timers.see(core_that_wakes(wakeup_s), event, now_s)
    return timers


def core_that_wakes(wakeup_s: float) -> SchedulerCore:
    return cast("SchedulerCore", cast(Any, SimpleNamespace(wakeup_s=wakeup_s)))  # Any: a core with this field only


def test_a_timer_is_late_from_its_due_time_although_events_come_meanwhile() -> None:
    timers = seen((1.0, OTHER, 5.0), (5.2, OTHER, 5.2), (5.3, OTHER, 5.3), (5.4, WOKEN, 10.0))

    assert timers.late_s(5.0) == pytest.approx(0.4)
    assert timers.late_s(5.0 + 2 * SAME_S) is None
    assert timers.due_s == 10.0


def test_a_timer_that_moves_before_it_is_due_is_late_from_its_last_due_time() -> None:
    timers = seen((1.0, OTHER, 5.0), (2.0, OTHER, 8.0), (8.1, WOKEN, math.inf))

    assert timers.late_s(5.0) is None
    assert timers.late_s(8.0) == pytest.approx(0.1)


def test_a_timer_that_is_not_needed_any_more_counts_for_nothing() -> None:
    timers = seen((1.0, OTHER, 5.0), (6.0, OTHER, 9.0), (9.5, WOKEN, math.inf))

    assert timers.late_s(5.0) is None
    assert timers.usual_s == pytest.approx(0.5)


def test_a_pause_of_the_scheduler_is_no_lateness() -> None:
    timers = seen((1.0, OTHER, 5.0), (500.0, SchedulerRestarted(2), 5.0), (500.1, WOKEN, math.inf))

    assert timers.usual_s == pytest.approx(0.1)
    assert timers.late_s(5.0) is None


def test_the_nearest_of_two_timers_counts_and_the_median_is_usual() -> None:
    events = [(1.0, OTHER, 2.0), (2.0, WOKEN, 2.03), (2.23, WOKEN, 7.0), (7.1, WOKEN, math.inf)]

    timers = seen(*events)

    assert (timers.late_s(2.01), timers.late_s(2.02)) == (0.0, pytest.approx(0.2))
    assert timers.usual_s == pytest.approx(0.1)


def test_without_timers_none_is_late() -> None:
    assert (Timers().usual_s, Timers().late_s(0.0)) == (0.0, None)
