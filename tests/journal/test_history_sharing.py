"""Intervals of co-located jobs, from events alone."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.journal.history import History
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationSolved,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
)
from gavelpy.model.job import JobId, JobSpec, NodeId

NONE = np.zeros(0, dtype=np.int64)


def started(job: int, lease: int, *gpus: int) -> Event:
    return LeaseStarted(np.array([job]), np.array([lease]), np.array([0, len(gpus)]), np.array(gpus))


def ended(job: int, lease: int) -> Event:
    return LeaseEnded(np.array([job]), np.array([lease]), np.array([1.0]), Outcome.STOPPED)


def packed_history(gpus: int = 1) -> History:
    """Jobs 0, 1, 2 with one GPU, and 3 and 4 with two, under a policy that co-locates jobs."""
    history = History()
    history.apply(NodeJoined(NodeId("n0"), "v100", gpus), 0.0)
    for n in range(5):
        history.apply(JobSubmitted(JobSpec(JobId(f"j{n}"), 100.0, gpus=1 + n // 3)), 0.0)
    pair = np.array([[0, 1]]), np.array([0]), np.array([0.5])
    history.apply(AllocationSolved(1, NONE, NONE, np.zeros(0), 0.0, 0.0, "", *pair), 0.0)
    return history


def times(history: History) -> list[list[float]]:
    """Job, partner, type, start, end of each co-location."""
    return np.column_stack(history.sharing.times(history.now_s)).tolist()  # type: ignore[no-any-return]  # of numpy


def applied(history: History, *events: tuple[float, Event]) -> History:
    for now_s, event in events:
        history.apply(event, now_s)
    return history


def test_two_leases_on_a_gpu_are_a_time_of_sharing() -> None:
    history = applied(
        packed_history(), (1.0, started(0, 0, 0)), (3.0, started(1, 1, 0)), (7.0, ended(0, 0)), (9.0, ended(1, 1))
    )

    assert times(history) == [[0, 1, 0, 3.0, 7.0]]


@pytest.mark.parametrize("gone", [0, 1])
def test_whoever_stays_may_be_joined_again(gone: int) -> None:
    history = applied(
        packed_history(),
        (1.0, started(0, 0, 0)),
        (1.0, started(1, 1, 0)),
        (5.0, ended(gone, gone)),
        (6.0, started(2, 2, 0)),
        (8.0, ended(2, 2)),
    )

    assert times(history) == [[0, 1, 0, 1.0, 5.0], [1 - gone, 2, 0, 6.0, 8.0]]


def test_gangs_share_all_their_gpus() -> None:
    history = applied(packed_history(2), (0.0, started(3, 0, 0, 1)), (2.0, started(4, 1, 0, 1)), (6.0, ended(3, 0)))
    types, gpus, _, starts, ends = history.leased_intervals()

    assert times(history) == [[3, 4, 0, 2.0, 6.0]]
    assert ((ends - starts) * gpus).sum() == 2 * 6.0
    assert set(types.tolist()) == {0}


def test_a_lost_server_ends_the_time_of_both() -> None:
    history = applied(packed_history(), (0.0, started(0, 0, 0)), (2.0, started(1, 1, 0)), (5.0, NodeLost(NodeId("n0"))))

    assert times(history) == [[0, 1, 0, 2.0, 5.0]]
    assert history.type_now[:2].tolist() == [-1, -1]
    assert history.preemptions[:2].tolist() == [1, 1]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_server_that_comes_back_with_one_of_them_ends_the_sharing(kept: int) -> None:
    back = AgentRejoined(NodeId("n0"), np.array([kept]), np.array([kept]), np.array([1.0]))
    history = applied(
        packed_history(), (0.0, started(0, 0, 0)), (2.0, started(1, 1, 0)), (5.0, back), (6.0, ended(kept, kept))
    )

    assert times(history) == [[0, 1, 0, 2.0, 5.0]]
    assert history.gpu_s[kept] == 6.0 - 2.0 * kept


def test_shares_of_pairs_are_owed_to_both() -> None:
    history = applied(packed_history(), (10.0, ended(0, 0)))

    assert history.owed()[:3, 0].tolist() == [5.0, 5.0, 0.0]


def test_where_nobody_shares_a_newer_lease_on_a_gpu_is_no_sharing() -> None:
    history = History()
    applied(history, (0.0, NodeJoined(NodeId("n0"), "v100", 1)))
    applied(history, *((0.0, JobSubmitted(JobSpec(JobId(f"j{n}"), 100.0))) for n in range(2)))

    applied(history, (0.0, started(0, 0, 0)), (2.0, started(1, 1, 0)), (5.0, ended(1, 1)))

    assert times(history) == []
