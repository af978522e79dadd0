"""Failed jobs are retried by the class of their failure, and failures stop counting once a job is beyond them."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism import failures
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import CheckpointSaved, FailureClass, LeaseEnded, Outcome, ProgressReported
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.snapshot import restore, snapshot
from tests.mechanism.builders import answer, make_core, make_spec, start, tell, wake

MEMORY, SYSTEM, USER, UNKNOWN = (
    FailureClass.OUT_OF_MEMORY,
    FailureClass.SYSTEM,
    FailureClass.USER,
    FailureClass.UNKNOWN,
)


def make_core_of_one(nodes: int = 1, **settings: float) -> SchedulerCore:
    """A job that has not started, on nodes with a GPU each."""
    return make_core(make_spec("a"), servers=[("v100", 1)] * nodes, **{"retry_s": 10.0, **settings})


def run(core: SchedulerCore) -> None:
    """The job gets its next lease, as soon as it may, and starts."""
    while core.jobs.lease[0] < 0:
        wake(core, core.wakeup_s)
        if core.question.open_epoch >= 0:
            answer(core, (0, 0, 1.0))
    start(core, 0)


def fail(core: SchedulerCore, kind: FailureClass, *, at_step: float = 0.0, saved: float = 0.0) -> None:
    """The job runs under a lease, saves these steps, reaches a step and fails."""
    run(core)
    job, lease = np.array([0]), core.jobs.lease[:1].copy()
    if saved:
        tell(core, CheckpointSaved(job, lease, np.array([saved])), core.now_s + 1.0)
    tell(core, ProgressReported(job, lease, np.array([at_step])))
    tell(core, LeaseEnded(job, lease, np.array([saved]), Outcome.FAILED, failure=kind), core.now_s + 1.0)


def is_given_up(core: SchedulerCore) -> bool:
    return bool(core.jobs.state[0] == JobState.FAILED)


def test_user_error_is_not_retried() -> None:
    core = make_core_of_one()

    fail(core, USER)

    assert is_given_up(core)
    assert failures.in_words(core.jobs, 0, core.settings, is_given_up=True) == "user error; not retried"


def test_user_error_of_a_job_that_has_worked_before_is_retried_on_another_node() -> None:
    core = make_core_of_one(nodes=2)
    fail(core, UNKNOWN, at_step=60.0, saved=50.0)
    run(core)
    first = core.pool.node_of[core.jobs.gpu_first[0]]
    tell(core, LeaseEnded(np.array([0]), core.jobs.lease[:1].copy(), np.zeros(1), Outcome.UNRUNNABLE))

    run(core)

    assert not is_given_up(core)
    assert core.pool.node_of[core.jobs.gpu_first[0]] != first


def test_out_of_memory_at_the_same_step_twice_is_given_up() -> None:
    core = make_core_of_one()
    fail(core, MEMORY, at_step=70.0, saved=50.0)
    once = failures.in_words(core.jobs, 0, core.settings, is_given_up=False)
    survives = not is_given_up(core)

    fail(core, MEMORY, at_step=70.0, saved=60.0)

    assert survives
    assert is_given_up(core)
    assert once == "out of memory; retried until the second time by step 70, failure 1 of at most 5"
    words = failures.in_words(core.jobs, 0, core.settings, is_given_up=True)
    assert words == "out of memory, again by step 70 without a later checkpoint; not retried"


def test_out_of_memory_later_on_is_another_first_time() -> None:
    core = make_core_of_one()
    fail(core, MEMORY, at_step=70.0, saved=50.0)

    fail(core, MEMORY, at_step=90.0, saved=80.0)

    assert not is_given_up(core)


@pytest.mark.parametrize("kind", [SYSTEM, FailureClass.COMMUNICATION])
def test_system_errors_do_not_use_up_the_failures_of_a_job_and_have_a_bound_of_their_own(kind: FailureClass) -> None:
    core = make_core_of_one(failures_max=0, system_failures_max=3)
    for _ in range(3):
        fail(core, kind)
    survives = not is_given_up(core)

    fail(core, kind)

    assert survives
    assert is_given_up(core)


def test_system_errors_are_retried_with_longer_and_longer_pauses() -> None:
    core = make_core_of_one()

    fail(core, SYSTEM)
    first_s = core.jobs.retry_at_s[0] - core.now_s
    fail(core, SYSTEM)

    assert (first_s, core.jobs.retry_at_s[0] - core.now_s) == (10.0, 20.0)


def test_system_error_is_retried_on_another_node() -> None:
    core = make_core_of_one(nodes=3)
    fail(core, SYSTEM)
    first = core.jobs.avoid[0]

    run(core)

    assert core.pool.node_of[core.jobs.gpu_first[0]] != first


def test_system_errors_on_many_nodes_in_a_row_count_as_failures_of_the_job() -> None:
    core = make_core_of_one(nodes=3, loss_nodes_max=3, failures_max=0)
    for _ in range(2):
        fail(core, SYSTEM)
    survives = not is_given_up(core)

    fail(core, SYSTEM)

    assert survives
    assert is_given_up(core)


def test_failures_stop_counting_once_a_checkpoint_is_beyond_them() -> None:
    core = make_core_of_one(failures_max=1)
    for step in (100.0, 200.0, 300.0, 400.0):
        fail(core, UNKNOWN, at_step=step + 10.0, saved=step + 5.0)

    assert not is_given_up(core)
    assert core.jobs.failures[0] == 1


def test_failing_at_the_same_step_again_is_not_forgiven_by_checkpoints_before_it() -> None:
    core = make_core_of_one(failures_max=2)

    for saved in (100.0, 200.0, 300.0):
        fail(core, UNKNOWN, at_step=500.0, saved=saved)

    assert is_given_up(core)


def test_failure_that_is_passed_is_said_to_be() -> None:
    core = make_core_of_one()
    fail(core, UNKNOWN, at_step=10.0)
    run(core)
    tell(core, CheckpointSaved(np.array([0]), core.jobs.lease[:1].copy(), np.array([20.0])))

    words = failures.in_words(core.jobs, 0, core.settings, is_given_up=False)

    assert words == "unclassified failure; a later checkpoint is beyond it, so it does not count any more"


def test_a_job_without_failures_has_no_words_on_them() -> None:
    assert failures.in_words(make_core_of_one().jobs, 0, make_core_of_one().settings, is_given_up=False) == ""


def test_counts_survive_a_restart() -> None:
    core = make_core_of_one()
    fail(core, MEMORY, at_step=70.0, saved=50.0)
    again = restore(decode_state(encode_state(snapshot(core))))

    fail(again, MEMORY, at_step=70.0, saved=50.0)

    assert is_given_up(again)


def test_refusal_of_a_node_counts_against_nothing_and_leads_to_another_node() -> None:
    core = make_core_of_one(nodes=2, failures_max=0, system_failures_max=0, loss_nodes_max=1)
    run(core)
    first = core.pool.node_of[core.jobs.gpu_first[0]]
    for _ in range(3):
        fail(core, FailureClass.REFUSED)
        assert core.jobs.retry_at_s[0] > core.now_s

    assert not is_given_up(core)
    assert core.jobs.failures[0] == core.jobs.system_failures[0] == 0
    assert {int(node) for node in core.jobs.loss_nodes[0]} == {0, 1}
    assert first in core.jobs.loss_nodes[0]
    words = failures.in_words(core.jobs, 0, core.settings, is_given_up=False)
    assert words == "refused by the node; retried, on another node if one is free"


@pytest.mark.parametrize("kind", [FailureClass.TIME_LIMIT, FailureClass.STALLED])
def test_a_limit_of_the_owner_ends_a_job_for_good(kind: FailureClass) -> None:
    core = make_core_of_one()

    fail(core, kind, saved=50.0)

    assert is_given_up(core)
    assert core.jobs.steps_saved[0] == 50.0


def test_time_left_counts_the_running_time_of_all_leases_and_no_waiting() -> None:
    core = make_core(make_spec("a", time_s=100.0, gpus=2), servers=[("v100", 2)], retry_s=10.0)
    left_s = [failures.time_left_s(core.jobs, 0)]
    for _ in range(2):
        run(core)
        tell(core, LeaseEnded(np.array([0]), core.jobs.lease[:1].copy(), np.zeros(1), Outcome.STOPPED), core.now_s + 30)
        left_s.append(failures.time_left_s(core.jobs, 0))
        wake(core, core.now_s + 1_000.0)

    assert left_s == [100.0, 70.0, 40.0]
    assert core.jobs.state[0] == JobState.WAITING or core.jobs.lease[0] >= 0


def test_a_job_that_never_started_has_no_running_time() -> None:
    core = make_core(make_spec("a", time_s=100.0), make_spec("b", time_s=100.0))
    run(core)

    assert core.jobs.ran_s(np.array([0, 1]), core.now_s + 30.0).tolist() == [30.0, 0.0]


def test_job_that_is_preempted_when_its_time_is_over_gets_no_other_lease() -> None:
    core = make_core(make_spec("a", time_s=100.0))
    run(core)

    tell(core, LeaseEnded(np.array([0]), core.jobs.lease[:1].copy(), np.zeros(1), Outcome.STOPPED), core.now_s + 99.5)

    assert is_given_up(core)
    words = failures.in_words(core.jobs, 0, core.settings, is_given_up=True)
    assert words == "time limit reached (100 s); not retried"


def test_job_without_a_limit_runs_on() -> None:
    core = make_core(make_spec("a"))
    run(core)

    tell(core, LeaseEnded(np.array([0]), core.jobs.lease[:1].copy(), np.zeros(1), Outcome.STOPPED), core.now_s + 1e6)

    assert not is_given_up(core)
    assert failures.time_left_s(core.jobs, 0) == 0.0
