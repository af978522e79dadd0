"""Jobs that are held or begin later: they compete for GPUs when they are eligible, and are owed nothing before."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import JobsHeld, JobsReleased, JobSubmitted, NodeLost, Outcome
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_core, make_spec, plans, questions, running_core, tell, wake

FIRST = np.array([0])


def test_a_held_job_is_in_no_problem_and_in_no_plan() -> None:
    core = make_core(make_spec("a", hold=True), make_spec("b"), servers=[("v100", 2)])

    (question,) = questions(wake(core))
    (plan,) = plans(answer(core, (1, 0, 1.0)))

    assert (question.jobs.tolist(), plan.grant_jobs.tolist()) == ([1], [1])
    assert reasons(core)[0].kind is ReasonKind.HELD


def test_a_released_job_starts_at_once() -> None:
    core = make_core(make_spec("a", hold=True))
    assert not questions(wake(core))

    tell(core, JobsReleased(FIRST), 7.0)

    assert core.wakeup_s == 7.0
    wake(core, 7.0)
    assert [plan.grant_jobs.tolist() for plan in plans(answer(core, (0, 0, 1.0)))] == [[0]]


def test_a_hold_of_an_admin_outlasts_the_release_of_its_owner() -> None:
    core = make_core(make_spec("a", hold=True))
    tell(core, JobsHeld(FIRST, by_admin=True))

    tell(core, JobsReleased(FIRST))
    assert "admin" in reasons(core)[0].text
    tell(core, JobsReleased(FIRST, by_admin=True))

    assert reasons(core)[0].kind is not ReasonKind.HELD


def test_a_running_job_that_is_held_runs_on_until_it_loses_its_lease() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobsHeld(FIRST), 10.0)
    wake(core, 10.0)
    answer(core, (0, 0, 1.0), now_s=10.0)

    (plan,) = plans(wake(core, 360.0))
    end(core, 0, 0, Outcome.FAILED, steps=5.0, now_s=400.0)
    wake(core, 400.0)

    assert plan.extend_jobs.tolist() == [0]
    assert core.jobs.lease[0] == -1
    assert reasons(core)[0].kind is ReasonKind.HELD


def test_a_waiting_job_is_owed_nothing_while_it_is_held() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobSubmitted(make_spec("b")), 1.0)
    wake(core, 1.0)
    answer(core, (0, 0, 0.5), (1, 0, 0.5), now_s=1.0)

    tell(core, JobsHeld(np.array([1])), 101.0)
    wake(core, 101.0)
    owed_s = core.jobs.owed_s[1, 0]
    answer(core, (0, 0, 1.0), now_s=101.0)
    wake(core, 360.0)

    assert 0 < core.jobs.owed_s[1, 0] <= owed_s
    check(core)


def test_a_job_that_is_held_when_no_job_can_run_has_no_share_left() -> None:
    core = running_core(make_spec("a"))
    tell(core, NodeLost(NodeId("n0")), 5.0)
    assert core.jobs.target[0, 0] == 1.0

    tell(core, JobsHeld(FIRST), 10.0)
    assert not questions(wake(core, 10.0))

    assert core.jobs.target[0, 0] == 0.0


def test_a_job_begins_at_its_time_and_not_before() -> None:
    core = make_core(make_spec("a", begin_s=50.0))

    assert not questions(wake(core))
    assert (reasons(core)[0].kind, core.wakeup_s) == (ReasonKind.BEGINS_LATER, 50.0)
    (question,) = questions(wake(core, 50.0))

    assert question.jobs.tolist() == [0]
    assert question.problem.age_s.tolist() == [0.0]


def test_a_held_job_does_not_begin() -> None:
    core = make_core(make_spec("a", begin_s=50.0, hold=True))

    assert not questions(wake(core, 50.0))
    assert reasons(core)[0].kind is ReasonKind.HELD


def test_a_snapshot_keeps_holds_and_begins() -> None:
    core = make_core(make_spec("a", begin_s=50.0), make_spec("b", hold=True))

    again = restore(snapshot(core))

    assert {row: reason.kind for row, reason in reasons(again).items()} == {
        0: ReasonKind.BEGINS_LATER, 1: ReasonKind.HELD,
    }  # fmt: skip
    assert again.wakeup_s == core.wakeup_s


def test_orders_on_unknown_jobs_are_refused_and_on_jobs_that_are_over_ignored() -> None:
    core = running_core(make_spec("a"))
    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=5.0)

    tell(core, JobsHeld(FIRST), 6.0)

    assert core.jobs.hold[0] == -1
    with pytest.raises(InvalidInput, match="jobs must be in"):
        tell(core, JobsHeld(np.array([1])), 6.0)
