"""Jobs that are held or begin later: they compete for GPUs when they are eligible, and are owed nothing before."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import (
    JobCancelled,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    JobSubmitted,
    LastStepReported,
    NodeLost,
    Outcome,
)
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import JobSpec, NodeId
from tests.mechanism.builders import (
    answer,
    end,
    make_core,
    make_spec,
    plans,
    questions,
    running_core,
    start,
    tell,
    wake,
)

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


def test_a_held_job_is_not_moved_and_keeps_its_lease_while_nobody_gets_its_gpus() -> None:
    core = make_core(make_spec("a"), servers=[("k80", 1), ("v100", 1)])
    wake(core)
    answer(core, (0, 0, 1.0))
    start(core, 0, 0)
    tell(core, JobsHeld(FIRST), 10.0)
    wake(core, 10.0)
    answer(core, (0, 1, 1.0), now_s=10.0)

    (plan,) = plans(wake(core, 360.0))

    assert (plan.extend_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [])
    check(core)


def test_a_held_job_that_a_plan_would_move_is_preempted_by_the_job_that_gets_its_gpus() -> None:
    core = make_core(make_spec("a"), servers=[("k80", 1), ("v100", 1)])
    wake(core)
    answer(core, (0, 0, 1.0))
    start(core, 0, 0)
    tell(core, JobSubmitted(make_spec("b", rates={"k80": 1.0})), 10.0)
    tell(core, JobsHeld(FIRST), 10.0)
    wake(core, 10.0)
    answer(core, (0, 1, 1.0), (1, 0, 1.0), now_s=10.0)

    (plan,) = plans(wake(core, 360.0))

    assert (plan.revoke_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [1])
    check(core)


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


def test_a_job_starts_when_the_one_before_it_has_finished() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobSubmitted(make_spec("b", after_ok=(0,))), 1.0)
    assert reasons(core)[1].kind is ReasonKind.COMES_AFTER
    assert "'a' (job 0)" in reasons(core)[1].text

    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=5.0)
    (question,) = questions(wake(core, 5.0))

    assert question.jobs.tolist() == [1]


def test_a_job_after_the_end_of_another_starts_when_that_one_failed() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobSubmitted(make_spec("b", after_any=(0,))), 1.0)

    tell(core, JobCancelled(0), 5.0)

    assert reasons(core)[1].kind is not ReasonKind.COMES_AFTER


def test_jobs_that_can_never_start_are_cancelled_along_the_chain() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobSubmitted(make_spec("b", after_ok=(0,))), 1.0)
    tell(core, JobSubmitted(make_spec("c", after_ok=(1,))), 1.0)
    tell(core, JobSubmitted(make_spec("d", after_any=(2,))), 1.0)

    tell(core, JobCancelled(0), 5.0)

    assert core.unmet_jobs == [(1, 0), (2, 1)]
    assert core.jobs.state[:4].tolist() == [JobState.CANCELLED] * 3 + [JobState.WAITING]
    assert reasons(core)[3].kind is not ReasonKind.COMES_AFTER


def test_a_job_after_one_that_failed_before_is_cancelled_as_it_arrives() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobCancelled(0), 5.0)

    tell(core, JobSubmitted(make_spec("b", after_ok=(0,))), 6.0)

    assert core.unmet_jobs == [(1, 0)]
    assert core.jobs.state[1] == JobState.CANCELLED


def test_a_job_cannot_come_after_itself_or_a_later_one() -> None:
    core = make_core(make_spec("a"))

    with pytest.raises(InvalidInput, match=r"after must be in \[0, 1\), got 1"):
        tell(core, JobSubmitted(make_spec("b", after_ok=(1,))))


def test_a_snapshot_keeps_what_jobs_wait_for() -> None:
    core = make_core(make_spec("a"), make_spec("b", after_ok=(0,)), make_spec("c", after_any=(0, 1)))

    again = restore(snapshot(core))
    tell(again, JobCancelled(0))

    assert again.unmet_jobs == [(1, 0)]
    assert again.jobs.state[:3].tolist() == [JobState.CANCELLED, JobState.CANCELLED, JobState.WAITING]
    assert again.jobs.unmet[2] == 0


def make_array(size: int, limit: int) -> list[JobSpec]:
    return [make_spec(f"j{k}", array_size=size, array_position=k, array_limit=limit) for k in range(size)]


def test_no_more_jobs_of_an_array_compete_than_its_limit() -> None:
    core = make_core(*make_array(4, limit=2), make_spec("other"), servers=[("v100", 8)])

    (question,) = questions(wake(core))

    assert question.jobs.tolist() == [0, 1, 4]
    assert reasons(core)[2].kind is ReasonKind.ARRAY_LIMIT


def test_the_next_job_of_an_array_follows_when_one_is_over() -> None:
    core = make_core(*make_array(4, limit=2), servers=[("v100", 8)])
    wake(core)
    answer(core, (0, 0, 1.0), (1, 0, 1.0))
    start(core, 0, 1)

    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=5.0)
    (question,) = questions(wake(core, 5.0))

    assert question.jobs.tolist() == [1, 2]


def test_a_held_job_leaves_its_place_in_the_array_to_the_next() -> None:
    core = make_core(*make_array(3, limit=1), servers=[("v100", 8)])

    tell(core, JobsHeld(FIRST))
    (question,) = questions(wake(core))

    assert question.jobs.tolist() == [1]


def test_a_preempted_job_of_an_array_comes_before_those_that_never_ran() -> None:
    core = make_core(*make_array(3, limit=1), servers=[("v100", 8)])
    tell(core, JobsHeld(FIRST))
    wake(core)
    answer(core, (1, 0, 1.0))
    start(core, 1, now_s=1.0)
    tell(core, JobsReleased(FIRST), 2.0)
    wake(core, 2.0)
    answer(core, (1, 0, 1.0), now_s=2.0)

    end(core, 1, 0, Outcome.STOPPED, steps=10.0, now_s=50.0)

    assert core.runnable(np.arange(3)).tolist() == [False, True, False]


def test_a_requeued_job_stops_in_order_and_competes_again() -> None:
    core = running_core(make_spec("a"))

    (plan,) = plans(tell(core, JobsRequeued(FIRST), 10.0))
    (question,) = questions(wake(core, 10.0))

    assert (plan.revoke_jobs.tolist(), plan.revoke_leases.tolist()) == ([0], [0])
    assert question.jobs.tolist() == [0]
    assert core.jobs.stopping[0] == 0


def test_a_held_job_that_is_requeued_waits_for_its_release() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 2)])

    tell(core, JobsHeld(FIRST), 9.0)
    tell(core, JobsRequeued(FIRST), 10.0)
    wake(core, 10.0)
    answer(core, (1, 0, 1.0), now_s=10.0)

    assert core.jobs.lease[:2].tolist() == [-1, 1]
    assert reasons(core)[0].kind is ReasonKind.HELD
    assert not tell(core, JobsRequeued(FIRST), 11.0)


def test_a_job_that_did_its_last_step_is_not_requeued() -> None:
    core = running_core(make_spec("a"))
    tell(core, LastStepReported(FIRST, FIRST), 9.0)

    assert not tell(core, JobsRequeued(FIRST), 10.0)

    assert core.jobs.lease[0] == 0
