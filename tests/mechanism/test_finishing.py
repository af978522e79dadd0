"""A job that has reported its last step is not preempted until it exits or its grace period is over."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import LastStepReported, NodeDraining, NodeLost, Outcome, ProgressReported
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_core, make_spec, plans, start, tell, wake

FIRST = np.array([0])
ALL_STEPS = np.array([1e6])


def contested_core(**settings: float) -> SchedulerCore:
    """Job 0 runs on the only GPU, and the policy now gives the whole share to job 1."""
    core = make_core(make_spec("a"), make_spec("b"), round_s=100.0, **{"finish_grace_s": 600.0, **settings})
    wake(core, 0.0)
    answer(core, (0, 0, 1.0))
    start(core, 0)
    core.jobs.target[0], core.jobs.target[1] = 0.0, 1.0
    core.jobs.lists.reset()
    core.question.stale = False
    return core


def finishing_core(**settings: float) -> SchedulerCore:
    """The same, and job 0 has reported its last step at 95 s."""
    core = contested_core(**settings)
    tell(core, LastStepReported(FIRST, FIRST), 95.0)
    return core


def revoked(core: SchedulerCore, now_s: float) -> list[int]:
    """Leases that the plan at a round's end revokes."""
    if core.question.open_epoch >= 0:
        answer(core, (1, 0, 1.0))
    commands = wake(core, now_s)
    if core.awaiting:
        commands = answer(core, (1, 0, 1.0))
    return [lease for plan in plans(commands) for lease in plan.revoke_leases.tolist()]


def test_a_job_that_did_its_last_step_is_not_stopped_for_another() -> None:
    unprotected, finishing = contested_core(), finishing_core()

    assert revoked(unprotected, 100.0) == [0]
    assert revoked(finishing, 100.0) == []
    assert finishing.jobs.until_s[0] == 200.0


def test_a_drain_leaves_it_alone_as_well() -> None:
    core = finishing_core()

    tell(core, NodeDraining(NodeId("n0")), 96.0)

    assert revoked(core, 100.0) == []


def test_an_estimate_that_reaches_all_steps_is_no_report() -> None:
    core = contested_core()

    tell(core, ProgressReported(FIRST, FIRST, ALL_STEPS), 95.0)

    assert revoked(core, 100.0) == [0]


def test_after_the_grace_its_lease_ends_with_the_round_and_the_job_has_finished() -> None:
    core = finishing_core(finish_grace_s=50.0)
    before = revoked(core, 100.0)

    after = revoked(core, 200.0)
    end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert (before, after) == ([], [0])
    assert core.jobs.state[0] == JobState.FINISHED


def test_a_job_that_is_being_ended_after_its_last_step_gets_no_other_lease() -> None:
    core = finishing_core(finish_grace_s=50.0)
    revoked(core, 100.0)

    revoked(core, 200.0)

    assert not core.runnable(FIRST)[0]
    end(core, 0, 0, Outcome.FAILED)
    assert core.runnable(FIRST)[0]


def test_a_report_that_is_repeated_does_not_begin_the_grace_again() -> None:
    core = finishing_core(finish_grace_s=100.0)
    revoked(core, 100.0)

    tell(core, LastStepReported(FIRST, FIRST), 190.0)

    assert revoked(core, 200.0) == [0]


@pytest.mark.parametrize("lose", ["the lease", "the node"])
def test_a_job_that_is_lost_while_it_finishes_resumes(lose: str) -> None:
    core = finishing_core()

    end(core, 0, 0, Outcome.LOST) if lose == "the lease" else tell(core, NodeLost(NodeId("n0")))

    assert core.jobs.state[0] == JobState.WAITING
    assert not len(core.exempt.jobs)


def test_that_a_job_is_finishing_outlives_a_restart() -> None:
    core = restore(decode_state(encode_state(snapshot(finishing_core()))))

    assert revoked(core, 100.0) == []
