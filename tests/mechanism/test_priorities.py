"""Time owed, time received and urgency: the formulas by hand, the half-life, and the time credited to leases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.mechanism import booking
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.original_gavel import DEFICIT, PriorityRule
from gavelpy.mechanism.settings import MechanismSettings
from tests.mechanism.builders import make_jobs, make_mechanism

LAG = MechanismSettings(round_s=360.0, lag_half_life_s=3600.0)
OSDI20 = make_mechanism(round_s=360.0, priority=PriorityRule.OSDI20)
TIMES = st.floats(0.0, 1e6)


def urgency(share: float, owed_s: float, received_s: float, settings: MechanismSettings) -> float:
    return float(settings.rules.urgency(np.array([share]), np.array([owed_s]), np.array([received_s]), settings)[0])


def settle(jobs: JobTable, settings: MechanismSettings, elapsed_s: float, now_s: float) -> None:
    booking.settle(jobs, elapsed_s, settings.rules.fade(settings, elapsed_s), now_s)


def running(jobs: JobTable, row: int, gpu_type: int, since_s: float) -> None:
    jobs.set_leases(np.array([row]), row)
    jobs.state[row], jobs.lease_type[row], jobs.since_s[row] = JobState.RUNNING, gpu_type, since_s


@pytest.mark.parametrize(
    ("share", "owed_s", "received_s", "expected"),
    [
        (0.5, 0.0, 0.0, 0.5),  # the urgency of a new job is its share
        (0.5, 180.0, 0.0, 1.5),  # (180 + 90) / 180
        (0.5, 180.0, 360.0, 0.5),  # (180 + 90) / 540
        (1.0, 720.0, 720.0, 1.0),
        (0.0, 500.0, 0.0, 0.0),  # time owed earlier does not count without a share
    ],
)
def test_lag_is_owed_over_received_with_half_a_round_on_both_sides(
    share: float, owed_s: float, received_s: float, expected: float
) -> None:
    assert urgency(share, owed_s, received_s, LAG) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("share", "received_s", "expected"),
    [(0.5, 180.0, 0.5 / 180.0), (0.5, 0.0, math.inf), (0.0, 0.0, 0.0), (0.0, 9.0, 0.0)],
)
def test_osdi20_is_share_over_received(share: float, received_s: float, expected: float) -> None:
    assert urgency(share, 123.0, received_s, OSDI20) == pytest.approx(expected)


def test_a_job_that_gets_what_it_is_owed_tends_to_one() -> None:
    assert urgency(0.25, 1e7, 1e7, LAG) == pytest.approx(1.0, abs=1e-4)


@given(share=st.floats(0.01, 1.0), owed_s=TIMES, received_s=TIMES, more_s=st.floats(1.0, 1e5))
def test_lag_rises_with_what_is_owed_and_falls_with_what_was_received(
    share: float, owed_s: float, received_s: float, more_s: float
) -> None:
    now = urgency(share, owed_s, received_s, LAG)

    assert urgency(share, owed_s + more_s, received_s, LAG) > now
    assert urgency(share, owed_s, received_s + more_s, LAG) < now


def test_owed_time_is_the_share_integrated() -> None:
    jobs = make_jobs([[1.0, 1.0]], target=[[0.5, 0.25]])

    settle(jobs, LAG, 100.0, now_s=100.0)

    assert jobs.owed_s[0].tolist() == [50.0, 25.0]


def test_after_a_half_life_old_time_counts_half() -> None:
    jobs = make_jobs([[1.0]], owed_s=[[800.0]], received_s=[[600.0]])

    settle(jobs, LAG, 3600.0, now_s=3600.0)

    assert (jobs.owed_s[0, 0], jobs.received_s[0, 0]) == (pytest.approx(400.0), pytest.approx(300.0))


def test_osdi20_forgets_nothing_between_allocations() -> None:
    jobs = make_jobs([[1.0]], owed_s=[[800.0]], received_s=[[600.0]], target=0.5)

    settle(jobs, OSDI20, 3600.0, now_s=3600.0)

    assert (jobs.owed_s[0, 0], jobs.received_s[0, 0]) == (2600.0, 600.0)


def test_no_time_passes_and_nothing_changes() -> None:
    jobs = make_jobs([[1.0]], owed_s=[[800.0]], received_s=[[600.0]], target=0.5)

    settle(jobs, LAG, 0.0, now_s=50.0)

    assert (jobs.owed_s[0, 0], jobs.received_s[0, 0]) == (800.0, 600.0)


def test_credit_books_the_time_of_running_leases_on_their_type_once() -> None:
    jobs = make_jobs([[1.0, 1.0], [1.0, 1.0]], gpus=[4, 1])
    running(jobs, 0, gpu_type=1, since_s=20.0)
    running(jobs, 1, gpu_type=0, since_s=-1.0)  # granted, not started

    booking.credit(jobs, np.array([0, 1]), 100.0)
    booking.credit(jobs, np.array([0, 1]), 100.0)

    assert jobs.received_s[:2].tolist() == [[0.0, 80.0], [0.0, 0.0]]
    assert jobs.attained_gpu_s[:2].tolist() == [320.0, 0.0]


def test_jobs_that_are_over_are_owed_nothing_more() -> None:
    jobs = make_jobs([[1.0]], target=1.0)
    jobs.state[0] = JobState.FINISHED

    settle(jobs, LAG, 100.0, now_s=100.0)

    assert jobs.owed_s[0, 0] == 0.0


def test_osdi20_starts_over_at_half_a_round_and_remembers_what_was_missed() -> None:
    jobs = make_jobs([[1.0]], owed_s=[[500.0]], received_s=[[480.0]])

    OSDI20.rules.allocation_arrived(jobs, OSDI20)

    assert (jobs.owed_s[0, 0], jobs.received_s[0, 0]) == (0.0, 180.0)
    assert jobs.rule_column(DEFICIT)[0, 0] == 500.0 - (480.0 - 180.0)


@pytest.mark.parametrize(("settings", "received_s"), [(LAG, 0.0), (OSDI20, 180.0)])
def test_newcomer_starts_with_what_its_rule_says(settings: MechanismSettings, received_s: float) -> None:
    assert settings.rules.newcomer_received_s(settings) == received_s
