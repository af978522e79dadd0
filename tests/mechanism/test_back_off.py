"""Back-off: a job that fails waits before its next start, longer each time up to a limit, with a reason."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.commands import RoundPlan
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import CheckpointSaved, ConfigChanged, NodeLost, Outcome
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from tests.mechanism.builders import answer, end, make_core, make_spec, plans, start, tell, wake

ONE, TWO = [("v100", 1)], [("v100", 1), ("v100", 1)]


def make_failing(*, servers: list[tuple[str, int]] = ONE, **settings: float) -> SchedulerCore:
    """A single job with its first lease, not started."""
    core = make_core(make_spec("a"), servers=servers, **{"retry_s": 10.0, **settings})
    wake(core, 0.0)
    answer(core, (0, 0, 1.0))
    return core


def fail_after(core: SchedulerCore, seconds: float, outcome: Outcome = Outcome.FAILED) -> None:
    """The job's lease starts now and ends after this time."""
    start(core, 0)
    end(core, 0, int(core.jobs.lease[0]), outcome, now_s=core.now_s + seconds)


def lose(core: SchedulerCore) -> None:
    """The job's lease is lost before it starts."""
    end(core, 0, int(core.jobs.lease[0]), Outcome.LOST)


def again(core: SchedulerCore) -> None:
    """The back-off ends, and the job gets another lease."""
    wake(core)
    wake(core, core.wakeup_s)
    assert len(plans(answer(core, (0, 0, 1.0)))) == 1


def failed(times: int, **settings: float) -> SchedulerCore:
    """The job has failed this often, each time 1 s after its start, and was retried as early as possible."""
    core = make_failing(**settings)
    fail_after(core, 1.0)
    for _ in range(times - 1):
        again(core)
        fail_after(core, 1.0)
    return core


@pytest.mark.parametrize(("times", "pause_s"), [(1, 10.0), (2, 20.0), (3, 40.0), (5, 160.0)])
def test_the_pause_doubles(times: int, pause_s: float) -> None:
    core = failed(times)

    assert core.jobs.retry_at_s[0] == core.now_s + pause_s


def test_the_pause_has_a_limit() -> None:
    core = failed(4, retry_max_s=30.0)

    assert core.jobs.retry_at_s[0] == core.now_s + 30.0


def test_nothing_is_granted_before_the_pause_is_over() -> None:
    core = failed(1)
    wake(core)

    assert wake(core, core.now_s + 9.0) == []
    assert core.wakeup_s == core.now_s + 1.0
    again(core)


def test_without_the_setting_a_job_is_tried_again_at_once() -> None:
    core = make_failing(retry_s=0.0)
    fail_after(core, 1.0)

    assert len(plans(wake(core, core.wakeup_s))) == 1
    assert core.now_s == 1.0


def test_a_lease_lost_before_it_began_counts_and_does_not_use_up_failures() -> None:
    core = make_failing(failures_max=0)

    lose(core)

    assert core.jobs.retry_at_s[0] == 10.0
    assert core.jobs.failures[0] == 0


def test_the_first_start_that_a_server_loses_costs_no_pause_and_more_of_them_do() -> None:
    core = make_failing(servers=TWO, losses_free=1)
    first = int(core.jobs.gpu_first[0])

    lose(core)
    assert len(plans(wake(core))) == 1
    assert core.jobs.gpu_first[0] != first
    lose(core)

    assert (core.jobs.misses[0], core.jobs.retry_at_s[0]) == (1, core.now_s + 10.0)
    again(core)
    lose(core)
    assert core.jobs.retry_at_s[0] == core.now_s + 20.0


def test_a_loss_that_was_forgiven_is_no_failure_of_the_job() -> None:
    core = make_failing(losses_free=1)

    lose(core)
    wake(core)
    fail_after(core, 1.0)

    assert (core.jobs.misses[0], core.jobs.retry_at_s[0]) == (1, core.now_s + 10.0)


@pytest.mark.parametrize(("outcome", "ran_s"), [(Outcome.STOPPED, 20.0), (Outcome.FAILED, 300.0)])
def test_what_clears_the_count_forgives_the_next_loss_too(outcome: Outcome, ran_s: float) -> None:
    core = make_failing(losses_free=1)
    lose(core)
    wake(core)

    fail_after(core, ran_s, outcome)

    assert core.jobs.losses[0] == 0


def test_a_server_that_can_start_nothing_gets_few_leases_of_many_jobs() -> None:
    core = make_core(*(make_spec(f"j{k}") for k in range(20)), retry_s=10.0, losses_free=1, solve_interval_s=1e6)
    wake(core, 1.0)
    answer(core, *((job, 0, 0.05) for job in range(20)))

    granted = sum(lose_and_wake(core) for _ in range(100))

    assert granted <= 2 * 20
    assert core.now_s == 1.0


def lose_and_wake(core: SchedulerCore) -> int:
    """Loses the lease on the only GPU before it starts; returns how many leases are granted immediately."""
    job = int(core.pool.job[0])
    return 0 if job < 0 else len(_lost(core, job))


def _lost(core: SchedulerCore, job: int) -> list[RoundPlan]:
    end(core, job, int(core.jobs.lease[job]), Outcome.LOST)
    return plans(wake(core))


def test_a_lease_lost_after_it_began_is_no_fault_of_its_start() -> None:
    core = make_failing()

    fail_after(core, 1.0, Outcome.LOST)

    assert (core.jobs.misses[0], core.jobs.retry_at_s[0]) == (0, 0.0)


THREE = [("v100", 1)] * 3


def lose_after(core: SchedulerCore, seconds: float) -> None:
    """The job's lease starts now and is lost after this time, without a checkpoint."""
    fail_after(core, seconds, Outcome.LOST)


def test_a_lease_lost_soon_after_it_began_makes_its_job_wait() -> None:
    core = make_failing(loss_nodes_max=3)

    lose_after(core, 1.0)

    assert (core.jobs.misses[0], core.jobs.retry_at_s[0], core.jobs.failures[0]) == (1, core.now_s + 10.0, 0)
    again(core)
    lose_after(core, 1.0)
    assert core.jobs.retry_at_s[0] == core.now_s + 20.0


def test_a_job_that_kills_its_shim_is_started_few_times() -> None:
    core = make_failing(loss_nodes_max=3, losses_free=1)
    starts = 1

    while core.now_s < 125.0:
        lose_after(core, 0.5)
        starts += 1
        if not plans(wake(core)):
            again(core)

    assert starts <= 7  # back-off of 0, 10, 20, 40 and 80 s


@pytest.mark.parametrize("progress", ["saved", "long"])
def test_a_lease_lost_after_progress_costs_no_pause_and_clears_the_count(progress: str) -> None:
    core = make_failing(loss_nodes_max=3)
    lose_after(core, 1.0)
    again(core)
    start(core, 0)
    if progress == "saved":
        tell(core, CheckpointSaved(np.array([0]), core.jobs.lease[:1].copy(), np.array([5.0])))

    end(core, 0, int(core.jobs.lease[0]), Outcome.LOST, now_s=core.now_s + (1.0 if progress == "saved" else 300.0))

    assert (core.jobs.misses[0], core.jobs.losses[0], core.jobs.loss_nodes) == (0, 0, {})
    assert core.jobs.retry_at_s[0] <= core.now_s


def test_a_job_lost_on_three_nodes_in_a_row_is_the_cause() -> None:
    core = make_failing(servers=THREE, loss_nodes_max=3, failures_max=0)

    for _ in range(2):
        lose_after(core, 1.0)
        assert (core.jobs.state[0], core.jobs.failures[0]) == (JobState.WAITING, 0)
        again(core)
    lose_after(core, 1.0)

    assert (core.jobs.state[0], core.jobs.failures[0]) == (JobState.FAILED, 1)
    assert core.jobs.loss_nodes == {}


def test_a_job_that_takes_three_nodes_down_is_given_up() -> None:
    core = make_failing(servers=THREE, loss_nodes_max=3, failures_max=0, losses_free=3)

    for _ in range(3):
        start(core, 0)
        node = core.pool.node_ids[int(core.pool.node_of[core.jobs.gpu_first[0]])]
        tell(core, NodeLost(node), core.now_s + 1.0)
        if core.jobs.state[0] == JobState.WAITING:
            wake(core, core.wakeup_s)
            answer(core, (0, 0, 1.0))

    assert core.jobs.state[0] == JobState.FAILED


def test_losses_on_one_node_are_the_nodes_fault_however_many() -> None:
    core = make_failing(loss_nodes_max=2, failures_max=0)

    for _ in range(5):
        lose_after(core, 1.0)
        again(core)

    assert core.jobs.failures[0] == 0


def test_losses_survive_a_snapshot() -> None:
    core = make_failing(servers=THREE, loss_nodes_max=3)
    lose_after(core, 1.0)

    copy = restore(decode_state(encode_state(snapshot(core))))

    assert copy.jobs.loss_nodes == core.jobs.loss_nodes != {}


def test_after_a_lost_start_another_server_comes_first() -> None:
    core = make_failing(servers=TWO)
    before = int(core.jobs.gpu_first[0])

    lose(core)
    again(core)

    assert core.jobs.gpu_first[0] != before


def test_a_lease_that_ran_for_a_while_clears_the_count() -> None:
    core = failed(3)
    again(core)

    fail_after(core, 300.0)

    assert (core.jobs.misses[0], core.jobs.failures[0]) == (1, 4)
    assert core.jobs.retry_at_s[0] == core.now_s + 10.0


def test_a_lease_stopped_in_good_order_clears_the_count() -> None:
    core = failed(3)
    again(core)

    fail_after(core, 20.0, Outcome.STOPPED)

    assert core.jobs.misses[0] == 0


def test_the_reason_says_how_often_and_until_when() -> None:
    core = failed(3)

    reason = reasons(core)[0]

    assert (reason.kind, reason.text) == (ReasonKind.BACKING_OFF, "failed 3 times, tried again at 73 s")


def test_its_share_goes_to_others_meanwhile() -> None:
    core = make_core(make_spec("a"), make_spec("b"), servers=TWO, retry_s=10.0)
    wake(core, 0.0)
    answer(core, (0, 0, 1.0), (1, 0, 1.0))
    start(core, 1)

    fail_after(core, 1.0)
    wake(core, core.wakeup_s)

    assert core.question.asked_jobs.tolist() == [1]


def test_shorter_pauses_shorten_those_that_are_under_way() -> None:
    core = failed(5)

    tell(core, ConfigChanged(MechanismSettings(retry_s=1.0, retry_max_s=5.0)))

    assert core.retry_due_s == core.now_s + 5.0


def test_a_pause_outlives_a_restart() -> None:
    core = failed(2)

    copy = restore(decode_state(encode_state(snapshot(core))))

    assert copy.wakeup_s == core.wakeup_s
    assert np.array_equal(copy.jobs.retry_at_s[:1], core.jobs.retry_at_s[:1])
