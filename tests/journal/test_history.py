"""Histories of jobs: events that nodes report twice, late, or after the end of a job count once."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from gavelpy.journal.history import History, gpu_set
from gavelpy.mechanism.events import (
    AllocationSolved,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    Outcome,
    PriceChanged,
    WakeupDue,
)
from gavelpy.model.job import NodeId
from tests.mechanism.builders import make_spec

ONE = np.array([0])


def make_history(gpus: int = 1) -> History:
    """Job 0 arrived at 0; node n0 has two V100s, n1 two K80s."""
    history = History()
    history.apply(NodeJoined(NodeId("n0"), "v100", 2), 0.0)
    history.apply(NodeJoined(NodeId("n1"), "k80", 2), 0.0)
    history.apply(JobSubmitted(make_spec("a", gpus=gpus)), 0.0)
    return history


def started(lease: int, *gpus: int) -> LeaseStarted:
    return LeaseStarted(ONE, np.array([lease]), np.array([0, len(gpus)]), np.array(gpus))


def ended(lease: int, outcome: Outcome = Outcome.STOPPED) -> LeaseEnded:
    return LeaseEnded(ONE, np.array([lease]), np.array([5.0]), outcome)


def stays_of(history: History) -> list[tuple[int, float, float]]:
    """GPU type, start and end of each stay of job 0."""
    _, types, starts, ends = history.run_intervals()
    return list(zip(types.tolist(), starts.tolist(), ends.tolist(), strict=True))


def test_a_stay_lasts_from_its_start_to_its_end() -> None:
    history = make_history()

    history.apply(started(0, 2), 10.0)
    history.apply(ended(0), 40.0)

    assert stays_of(history) == [(1, 10.0, 40.0)]
    assert (history.gpu_s[0], history.first_start_s[0], history.preemptions[0]) == (30.0, 10.0, 1)


def test_a_stay_under_way_ends_now() -> None:
    history = make_history()
    history.apply(started(0, 0), 10.0)

    history.apply(WakeupDue(), 25.0)

    assert stays_of(history) == [(0, 10.0, 25.0)]


def test_a_start_told_twice_counts_from_the_first() -> None:
    history = make_history()

    history.apply(started(0, 0), 10.0)
    history.apply(started(0, 0), 30.0)
    history.apply(ended(0), 40.0)

    assert stays_of(history) == [(0, 10.0, 40.0)]
    assert history.migrations[0] == 0


def test_a_start_that_comes_after_its_end_is_ignored() -> None:
    history = make_history()
    history.apply(started(0, 0), 10.0)
    history.apply(ended(0), 40.0)

    history.apply(started(0, 0), 41.0)

    assert stays_of(history) == [(0, 10.0, 40.0)]


def test_an_old_end_does_not_end_the_new_lease() -> None:
    history = make_history()
    history.apply(started(0, 0), 10.0)
    history.apply(ended(0), 40.0)
    history.apply(started(1, 2), 50.0)

    history.apply(ended(0), 60.0)
    history.apply(ended(1), 90.0)

    assert stays_of(history) == [(0, 10.0, 40.0), (1, 50.0, 90.0)]
    assert (history.preemptions[0], history.migrations[0]) == (2, 1)


def test_a_lease_that_ends_before_it_starts_ends_nothing_else() -> None:
    history = make_history()
    history.apply(started(0, 0), 10.0)

    history.apply(ended(1), 30.0)
    history.apply(ended(0), 40.0)

    assert stays_of(history) == [(0, 10.0, 40.0)]
    assert history.preemptions[0] == 1


def test_a_stay_whose_end_nobody_heard_ends_with_the_next_start() -> None:
    history = make_history()
    history.apply(started(0, 0), 10.0)

    history.apply(started(1, 2), 50.0)
    history.apply(ended(1), 90.0)

    assert stays_of(history) == [(0, 10.0, 50.0), (1, 50.0, 90.0)]


def test_a_finish_told_twice_is_the_first_one() -> None:
    history = make_history()
    history.apply(started(0, 0), 10.0)

    history.apply(ended(0, Outcome.FINISHED), 40.0)
    history.apply(ended(0, Outcome.FINISHED), 70.0)

    assert history.finish_s[0] == 40.0
    assert history.preemptions[0] == 0


def test_a_finish_is_believed_though_the_start_was_never_told() -> None:
    history = make_history()

    history.apply(ended(0, Outcome.FINISHED), 40.0)

    assert history.finish_s[0] == 40.0


def test_a_cancelled_job_is_owed_nothing_more_and_does_not_finish() -> None:
    history = make_history()
    history.apply(AllocationSolved(1, ONE, ONE, np.array([0.5])), 0.0)
    history.apply(started(0, 0), 0.0)

    history.apply(JobCancelled(0), 100.0)
    history.apply(ended(0, Outcome.FINISHED), 101.0)
    history.apply(WakeupDue(), 500.0)

    assert history.owed()[0].tolist() == [50.0, 0.0]
    assert math.isnan(history.finish_s[0])
    assert history.gpu_s[0] == 101.0


def test_a_server_that_comes_back_is_not_counted_twice() -> None:
    history = make_history()

    history.apply(NodeJoined(NodeId("n0"), "v100", 2), 10.0)
    history.apply(NodeJoined(NodeId("n2"), "v100", 1), 20.0)
    history.apply(started(0, 4), 30.0)

    assert history.gpu_counts == [3, 2]
    assert stays_of(history) == [(0, 30.0, 30.0)]


def test_a_gang_moves_when_one_of_its_gpus_changes() -> None:
    history = make_history(gpus=2)
    history.apply(started(0, 0, 1), 0.0)
    history.apply(ended(0), 10.0)

    history.apply(started(1, 1, 0), 20.0)
    history.apply(ended(1), 30.0)
    same_set = int(history.migrations[0])
    history.apply(started(2, 0, 2), 40.0)

    assert (same_set, history.migrations[0]) == (0, 1)


def test_a_set_of_gpus_has_the_same_hash_alone_and_among_others() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 17, 200)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    gpus = np.concatenate([rng.choice(10_000, size, replace=False) for size in sizes.tolist()])

    together = gpu_set(gpus, offsets)
    alone = [gpu_set(gpus[a:b][::-1], np.array([0, b - a])) for a, b in pairwise(offsets.tolist())]

    assert together.tolist() == np.concatenate(alone).tolist()
    assert together.dtype == alone[0].dtype


def test_prices_solves_and_wakeups_are_counted() -> None:
    history = make_history()

    history.apply(PriceChanged("v100", 2.5), 0.0)
    history.apply(AllocationSolved(1, ONE, ONE, np.array([0.5])), 0.0)
    history.apply(WakeupDue(), 0.0)

    assert history.price_usd_per_gpu_h == {"v100": 2.5}
    assert (history.solves, history.wakeups) == (1, 1)
