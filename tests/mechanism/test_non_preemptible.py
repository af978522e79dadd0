"""Jobs that never saved a checkpoint: how plans, the policy and times owed treat the GPUs they occupy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism import non_preemptible
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationSolved,
    CheckpointSaved,
    ConfigChanged,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    NodeDraining,
    NodeLost,
    Outcome,
    SavingDeclared,
)
from gavelpy.mechanism.lifecycle import Resumes
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
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


def together(core: SchedulerCore, *pair: int, alone: float = 0.0) -> None:
    """Answers the open request: these two jobs share the only GPU; `alone`: share of the first without the other."""
    shared = {"pair_jobs": np.array([pair]), "pair_gpu_type": FIRST, "pair_share": np.array([1.0 - alone])}
    tell(core, AllocationSolved(core.question.open_epoch, np.array(pair[:1]), FIRST, np.array([alone]), **shared))


def test_the_policy_divides_what_jobs_that_never_saved_leave() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("k80", 2)], keep_unsaved=True)
    tell(core, JobSubmitted(make_spec("b", rates={"v100": 10.0, "k80": 1.0})))

    (question,) = questions(wake(core))

    assert question.jobs.tolist() == [1]
    assert question.problem.gpu_counts.tolist() == [0, 2]
    assert question.problem.member_rate_steps_per_s.tolist() == [[0.0, 1.0]]


def test_a_job_that_becomes_preemptible_is_owed_what_it_received() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1)], keep_unsaved=True)
    wake(core, 360.0)

    tell(core, CheckpointSaved(FIRST, FIRST, np.array([50.0])), 720.0)

    assert core.jobs.owed_s[0, 0] == core.jobs.received_s[0, 0] > 0
    assert [list(question.jobs) for question in questions(wake(core))] == [[0]]


def test_the_owner_of_a_job_may_declare_it_preemptible() -> None:
    core = running_core(make_spec("a", preemptible=True), servers=[("v100", 1)], keep_unsaved=True)
    tell(core, JobSubmitted(make_spec("b")))
    wake(core)
    answer(core, (1, 0, 1.0))

    (plan,) = plans(wake(core, 360.0))

    assert (plan.revoke_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [1])


def test_a_lease_that_cannot_have_begun_may_be_taken_back() -> None:
    """Job b waits for the end of a's older lease on its GPU."""
    core = running_core(make_spec("a", preemptible=True), servers=[("v100", 1)], keep_unsaved=True)
    tell(core, JobSubmitted(make_spec("b")))
    wake(core)
    answer(core, (1, 0, 1.0))
    wake(core, 360.0)
    assert core.exempt.jobs.tolist() == []

    tell(core, LeaseEnded(FIRST, FIRST, np.array([10.0]), Outcome.STOPPED), 361.0)

    assert core.exempt.jobs.tolist() == [1]


def test_a_pair_continues_together_if_one_of_it_cannot_resume() -> None:
    core = make_core(make_spec("a"), make_spec("b", preemptible=True), make_spec("c"), keep_unsaved=True, packing=True)
    wake(core)
    together(core, 0, 1)
    start(core, 0, 1)
    wake(core)

    (plan,) = plans(wake(core, 360.0))

    assert (plan.extend_jobs.tolist(), plan.revoke_jobs.tolist()) == ([0, 1], [])
    assert reasons(core)[2].kind is ReasonKind.BEHIND_UNSAVED


def test_the_end_of_one_of_a_pair_ends_no_lease_of_the_other_before_the_next_allocation() -> None:
    specs = [make_spec("a", preemptible=True), make_spec("b"), make_spec("c", preemptible=True)]
    core = make_core(*specs, keep_unsaved=True, packing=True, solve_interval_s=400.0)
    wake(core, 0.0)
    together(core, 0, 2, alone=0.4)
    start(core, 0, 2)
    core.question.renew()
    wake(core, 360.0)
    together(core, 1, 2)
    end(core, 0, 0, Outcome.STOPPED)
    start(core, 1)

    end(core, 1, 2, Outcome.FINISHED, now_s=715.0)
    (plan,) = plans(wake(core, 720.0))

    assert (plan.extend_jobs.tolist(), plan.revoke_jobs.tolist()) == ([2], [])


def test_cancelling_and_the_loss_of_the_node_end_a_lease_of_a_job_that_never_saved() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 1), ("v100", 1)], keep_unsaved=True)

    tell(core, JobCancelled(0))
    tell(core, NodeLost(NodeId("n1")))

    assert core.jobs.lease[:2].tolist() == [-1, -1]
    assert core.exempt.jobs.tolist() == []


def test_a_declaration_that_was_not_kept_is_void_until_a_checkpoint_is_saved() -> None:
    core = running_core(make_spec("a"), keep_unsaved=True)
    tell(core, SavingDeclared(FIRST, FIRST))
    assert core.exempt.jobs.tolist() == []

    tell(core, LeaseEnded(FIRST, FIRST, np.array([0.0]), Outcome.STOPPED), 10.0)

    assert core.jobs.resumes[0] == Resumes.VOID


def test_a_declaration_holds_where_the_stop_left_a_checkpoint() -> None:
    core = running_core(make_spec("a"), keep_unsaved=True)
    tell(core, SavingDeclared(FIRST, FIRST))

    tell(core, LeaseEnded(FIRST, FIRST, np.array([5.0]), Outcome.STOPPED), 10.0)

    assert core.jobs.resumes[0] == Resumes.DECLARED


def test_steps_counted_by_time_make_no_job_preemptible() -> None:
    core = running_core(make_spec("a"), keep_unsaved=True)

    tell(core, LeaseEnded(FIRST, FIRST, np.array([5.0]), Outcome.STOPPED, is_by_time=True), 10.0)
    wake(core, 10.0)
    answer(core, (0, 0, 1.0))
    start(core, 0)

    assert core.exempt.jobs.tolist() == [0]


def test_the_setting_may_be_changed_while_jobs_run() -> None:
    core = running_core(make_spec("a"))
    assert core.exempt.jobs.tolist() == []

    tell(core, ConfigChanged(replace(core.settings, keep_unsaved=True)))
    assert core.exempt.jobs.tolist() == [0]
    tell(core, ConfigChanged(replace(core.settings, keep_unsaved=False)))

    assert core.exempt.jobs.tolist() == []


def test_a_restored_core_keeps_the_same_jobs() -> None:
    core = running_core(make_spec("a"), make_spec("b", preemptible=True), servers=[("v100", 2)], keep_unsaved=True)

    copy = restore(decode_state(encode_state(snapshot(core))))

    assert copy.exempt.jobs.tolist() == core.exempt.jobs.tolist() == [0]
    assert encode_state(snapshot(copy)) == encode_state(snapshot(core))


def test_a_job_that_its_owner_submitted_as_not_preemptible_keeps_its_gpus_though_it_saves() -> None:
    core = running_core(make_spec("a", no_preempt=True), servers=[("v100", 1), ("k80", 2)])
    tell(core, CheckpointSaved(FIRST, FIRST, np.array([50.0])), 5.0)
    tell(core, JobSubmitted(make_spec("b", rates={"v100": 10.0, "k80": 1.0})), 5.0)

    (question,) = questions(wake(core, 5.0))
    answer(core, (1, 1, 1.0), now_s=5.0)
    (plan,) = plans(wake(core, 360.0))

    assert question.problem.gpu_counts.tolist() == [0, 2]
    assert (plan.extend_jobs.tolist(), plan.revoke_jobs.tolist()) == ([0, 1], [])
    assert not non_preemptible.in_words(core.jobs, core.settings, 0)[0]


def test_saving_does_not_make_a_job_preemptible_against_its_owner() -> None:
    core = running_core(make_spec("a", no_preempt=True), keep_unsaved=True)

    tell(core, SavingDeclared(FIRST, FIRST), 5.0)

    assert core.exempt.jobs.tolist() == [0]
    assert not non_preemptible.is_preemptible(core.jobs, FIRST).any()


def test_a_forced_drain_ends_a_job_that_is_not_preempted() -> None:
    core = running_core(make_spec("a", no_preempt=True))

    tell(core, NodeDraining(NodeId("n0"), force=True), 5.0)

    assert core.exempt.jobs.tolist() == []
