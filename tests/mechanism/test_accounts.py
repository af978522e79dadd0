"""The reported time owed and received of a job equals what the core would book, at any moment, without booking it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.journal.codec import encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import CheckpointSaved, ConfigChanged, JobCancelled
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.original_gavel import PriorityRule
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.mechanism.view import account, standing
from gavelpy.model.arrays import Floats
from tests.mechanism.builders import answer, make_core, make_spec, running_core, start, tell, wake


def shared_core(rule: PriorityRule) -> SchedulerCore:
    """Job 0 has run since 10 s on n0, with a share of 0.7; job 1 waits with 0.3."""
    core = make_core(make_spec("a"), make_spec("b"), servers=[("v100", 1)], priority=rule)
    wake(core)
    answer(core, (0, 0, 0.7), (1, 0, 0.3))
    start(core, 0, now_s=10.0)
    return core


def booked(core: SchedulerCore) -> tuple[Floats, Floats]:
    """The times the core books now: a change of settings triggers the booking."""
    tell(core, ConfigChanged(core.settings))
    return core.jobs.owed_s[:2].copy(), core.jobs.received_s[:2].copy()


@pytest.mark.parametrize("rule", PriorityRule)
@pytest.mark.parametrize("now_s", [10.0, 130.0, 359.0])
def test_account_is_what_the_core_would_book(rule: PriorityRule, now_s: float) -> None:
    core = shared_core(rule)
    before = encode_state(snapshot(core))

    found = [account(core, job, now_s) for job in (0, 1)]
    unchanged = encode_state(snapshot(core)) == before
    core.now_s = now_s
    owed_s, received_s = booked(core)

    assert unchanged
    assert np.allclose([a.owed_s for a in found], owed_s, rtol=1e-12)
    assert np.allclose([a.received_s for a in found], received_s, rtol=1e-12)


@pytest.mark.parametrize("rule", PriorityRule)
def test_what_was_booked_before_fades_as_the_core_lets_it_fade(rule: PriorityRule) -> None:
    core = shared_core(rule)
    core.now_s = 100.0
    owed_s, received_s = booked(core)
    assert received_s[0, 0] > 0.0

    found = [account(core, job, 300.0) for job in (0, 1)]
    core.now_s = 300.0
    owed_s, received_s = booked(core)

    assert np.allclose([a.owed_s for a in found], owed_s, rtol=1e-12)
    assert np.allclose([a.received_s for a in found], received_s, rtol=1e-12)


def test_a_lease_that_began_at_time_zero_counts() -> None:
    core = running_core(make_spec("a"))

    assert account(core, 0, 60.0).received_s.tolist() == [60.0]


def test_account_names_lease_servers_and_checkpoint() -> None:
    core = running_core(make_spec("g", gpus=2), servers=[("v100", 1), ("v100", 1)])
    tell(core, CheckpointSaved(np.array([0]), np.array([0]), np.array([250.0])), 50.0)

    found = account(core, 0, 60.0)

    assert (found.state, found.lease, found.stopping_lease, found.saved_lease) == (JobState.RUNNING, 0, -1, 0)
    assert (found.gpus.tolist(), found.node_ids, found.until_s) == ([0, 1], ("n0", "n1"), 360.0)
    assert (found.steps_saved, found.steps_done) == (250.0, 250.0)
    assert (found.rate_steps_per_s.tolist(), found.share.tolist()) == ([10.0], [1.0])


def test_account_of_a_job_that_is_over_stands_still() -> None:
    core = shared_core(PriorityRule.LAG)
    tell(core, JobCancelled(0), 100.0)

    early, late = account(core, 0, 100.0), account(core, 0, 9000.0)

    assert early.received_s.tolist() == late.received_s.tolist()
    assert early.owed_s.tolist() == late.owed_s.tolist()
    assert late.share.tolist() == [0.0]
    assert (late.lease, late.stopping_lease, late.gpus.tolist(), late.node_ids) == (-1, 0, [], ())


def test_account_of_a_job_of_unknown_speed_says_so() -> None:
    core = make_core(make_spec("a", rates={}))

    assert math.isnan(account(core, 0, 5.0).rate_steps_per_s[0])


@pytest.mark.parametrize("rule", PriorityRule)
def test_the_standing_of_jobs_sums_their_accounts_and_orders_them(rule: PriorityRule) -> None:
    core = shared_core(rule)
    tell(core, JobCancelled(1), now_s=100.0)
    rows = np.array([1, 0])

    gpu_s, share, owed_s, received_s, urgency = standing(core, rows, 300.0)

    running = account(core, 0, 300.0)
    assert share.tolist() == [0.0, 0.7]
    assert owed_s.tolist() == pytest.approx([0.0, running.owed_s.sum()])
    assert received_s.tolist() == pytest.approx([0.0, running.received_s.sum()])
    assert gpu_s.tolist() == [0.0, 290.0]
    assert urgency[0] == 0.0 < urgency[1]
