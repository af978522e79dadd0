"""Unhealthy nodes, which cannot start leases: they get no new lease, and every plan leaves their running jobs alone."""

from __future__ import annotations

import numpy as np

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.events import (
    JobSubmitted,
    LeaseEnded,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    Outcome,
)
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, make_core, make_spec, plans, questions, running_core, tell, wake

N0, N1 = NodeId("n0"), NodeId("n1")
FULL = "its disk is full"


def test_a_gang_that_reaches_a_hindered_server_goes_on_and_the_rest_is_planned_around_it() -> None:
    core = running_core(make_spec("gang", gpus=3), servers=[("v100", 2), ("v100", 2)], round_s=60.0)
    tell(core, NodeUnhealthy(N0, FULL))
    tell(core, JobSubmitted(make_spec("a")))
    tell(core, JobSubmitted(make_spec("b")))
    wake(core)
    answer(core, (0, 0, 0.1), (1, 0, 1.0), (2, 0, 0.9))

    (plan,) = plans(wake(core, 60.0))

    assert plan.extend_jobs.tolist() == [0, 1]
    assert core.pool.job.tolist() == [0, 0, 0, 1]
    assert (plan.grant_jobs.tolist(), core.jobs.lease[2]) == ([], -1)


def test_a_lease_that_has_not_begun_leaves_a_hindered_server_with_the_round() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 1)], keep_unsaved=False)
    wake(core)
    answer(core, (0, 0, 1.0))
    tell(core, NodeUnhealthy(N0, FULL))
    tell(core, NodeJoined(N1, "v100", 1))
    wake(core)
    answer(core, (0, 0, 1.0))

    (plan,) = plans(wake(core, 360.0))

    assert (plan.revoke_jobs.tolist(), plan.grant_gpus.tolist()) == ([0], [1])


def test_no_plan_revokes_a_lease_that_may_have_started_on_an_unhealthy_node() -> None:
    """The report of the start may be on its way; if there was none, the node ends the lease that is withdrawn."""
    core = make_core(make_spec("a"), servers=[("v100", 1)], keep_unsaved=True)
    wake(core)
    answer(core, (0, 0, 1.0))
    tell(core, NodeUnhealthy(N0, FULL))
    tell(core, NodeJoined(N1, "v100", 1))
    wake(core)
    answer(core, (0, 0, 1.0))

    (plan,) = plans(wake(core, 360.0))
    withdrawn = LeaseEnded(np.array([0]), np.array([0]), np.array([0.0]), Outcome.STOPPED)
    found = tell(core, withdrawn, 370.0) + wake(core, 370.0)
    moved = plans(found + answer(core, (0, 0, 1.0), now_s=371.0))

    assert (plan.extend_jobs.tolist(), plan.revoke_jobs.tolist()) == ([0], [])
    assert moved[-1].grant_gpus.tolist() == [1]


def test_a_server_that_is_drained_or_lost_gives_up_its_leases_though_it_is_hindered() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 1), ("v100", 1)])
    tell(core, NodeUnhealthy(N0, FULL))
    tell(core, NodeUnhealthy(N1, FULL))
    tell(core, NodeDraining(N0))
    tell(core, NodeLost(N1))

    wake(core, 360.0)

    assert core.jobs.lease[:2].tolist() == [-1, -1]
    assert core.pool.node_unhealthy == [FULL, ""]


def test_a_hindrance_outlives_a_restart_and_ends_when_the_server_says_so() -> None:
    core = make_core(make_spec("a"))
    tell(core, NodeUnhealthy(N0, FULL))
    copy = restore(decode_state(encode_state(snapshot(core))))

    assert wake(copy) == wake(core) == []
    tell(copy, NodeUnhealthy(N0, ""))

    assert len(questions(wake(copy))) == 1


def test_a_job_behind_others_is_told_of_servers_that_can_begin_nothing() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("v100", 1)])
    tell(core, NodeUnhealthy(N1, FULL))
    tell(core, JobSubmitted(make_spec("b")))
    wake(core)
    answer(core, (0, 0, 0.5), (1, 0, 0.5))

    reason = reasons(core)[1]

    assert reason.kind is ReasonKind.BEHIND_OTHERS
    assert reason.text.endswith("until the round ends at 360 s; no job can start on n1 (its disk is full)")
