"""The core's timer: it never goes back, is never in the past, always advances, and is set while work is pending."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.mechanism.commands import EstimateThroughput, QueryAgent, Report
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationSolved,
    ConfigChanged,
    JobCancelled,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    Outcome,
    PriceChanged,
    SchedulerRestarted,
    ThroughputEstimated,
    WakeupDue,
)
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.original_gavel import PriorityRule, QueueRule
from gavelpy.mechanism.requests import NONE_OPEN
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.job import NodeId
from tests.mechanism.builders import (
    answer,
    end,
    fail,
    make_core,
    make_mechanism,
    make_spec,
    plans,
    questions,
    running_core,
    start,
    tell,
    wake,
)

INSTANT_WAKEUPS_MAX = 6
TYPES = ("v100", "k80")
SETTINGS = st.builds(
    make_mechanism,
    solve_interval_s=st.sampled_from([0.0, 100.0, 1920.0]),
    solve_within_round=st.booleans(),
    fill_within_round=st.booleans(),
    fill_leftover=st.booleans(),
    whole_steps=st.booleans(),
    solve_patience_s=st.sampled_from([0.0, 10.0]),
    priority=st.sampled_from(PriorityRule),
    queue=st.sampled_from(QueueRule),
)


def test_time_may_not_go_back() -> None:
    core = make_core(make_spec("a"))
    wake(core, 100.0)

    with pytest.raises(AssertionError, match=r"time went back from 100.0 to 99.0"):
        core.handle(WakeupDue(), 99.0)


def test_a_core_without_jobs_needs_no_wakeup() -> None:
    core = make_core()

    wake(core, 0.0)

    assert core.wakeup_s == math.inf


def test_a_thousand_arrivals_of_one_instant_make_one_question() -> None:
    core = make_core(*(make_spec(f"j{i}") for i in range(1000)))

    asked = questions(wake(core))

    assert [len(question.jobs) for question in asked] == [1000]


def test_wakeup_is_never_in_the_past() -> None:
    """The answer arrives after the time limit for it; b has arrived in between."""
    core = make_core(make_spec("a"))
    wake(core, 0.0)
    wake(core, 10.0)
    tell(core, JobSubmitted(make_spec("b")), 12.0)

    answer(core, (0, 0, 1.0), now_s=15.0)

    assert core.wakeup_s == 15.0


def test_a_policy_that_fails_is_not_asked_again_at_the_same_instant() -> None:
    core = make_core(make_spec("a"))
    wake(core, 0.0)

    commands = fail(core)

    assert [type(command) for command in commands[:1]] == [Report]
    assert core.wakeup_s == 360.0


def test_a_policy_that_keeps_failing_is_asked_less_and_less_often() -> None:
    core = make_core(make_spec("a"), solve_patience_s=0.0)
    asked_s = []
    for _ in range(40):
        asked_s += [core.now_s for _ in questions(wake(core, core.wakeup_s))]
        if core.question.open_epoch != NONE_OPEN:
            fail(core)

    assert asked_s == [0.0, 360.0, 1080.0, 2520.0, 5400.0, 11160.0]


def test_a_policy_that_failed_is_asked_at_once_when_the_world_has_changed() -> None:
    core = make_core(make_spec("a"))
    wake(core, 0.0)
    fail(core)

    tell(core, JobSubmitted(make_spec("b")), 20.0)

    assert core.wakeup_s == 20.0
    assert questions(wake(core))[0].jobs.tolist() == [0, 1]


def test_a_world_that_changed_while_the_policy_failed_is_asked_about_at_once() -> None:
    core = make_core(make_spec("a"))
    wake(core, 0.0)
    tell(core, JobSubmitted(make_spec("b")), 5.0)

    fail(core, 8.0)

    assert len(questions(wake(core, core.wakeup_s))) == 1
    assert core.now_s == 8.0


def test_an_answer_ends_the_waiting_after_failures() -> None:
    core = make_core(make_spec("a"))
    wake(core, 0.0)
    fail(core)
    wake(core, 360.0)
    answer(core, (0, 0, 1.0))
    tell(core, PriceChanged("v100", 2.0), 400.0)
    wake(core, 400.0)

    fail(core)

    assert core.question.allowed_s(0.0) == 760.0


def test_a_failing_policy_without_leftovers_is_asked_again_though_nobody_runs() -> None:
    core = make_core(make_spec("a"), fill_leftover=False)
    wake(core, 0.0)
    fail(core)

    commands = wake(core, core.wakeup_s)

    assert core.now_s == 360.0
    assert len(questions(commands)) == 1


def test_a_failing_policy_is_given_up_in_the_end_when_nothing_ever_changes() -> None:
    core = make_core(make_spec("a"), fill_leftover=False)
    asked = 0
    while core.wakeup_s < math.inf:
        asked += len(questions(wake(core, core.wakeup_s)))
        fail(core)

    assert 10 < asked < 100


def test_a_job_that_arrives_within_the_interval_on_an_idle_cluster_is_asked_about_when_it_is_over() -> None:
    """Without leftovers no job runs until the request, so no round ends that could wake the core."""
    core = running_core(
        make_spec("a"), now_s=1.0, fill_leftover=False, solve_interval_s=1920.0, solve_within_round=False
    )
    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=361.0)
    wake(core, 361.0)
    tell(core, JobSubmitted(make_spec("b")), 400.0)

    wake(core, 400.0)

    assert core.wakeup_s == 1921.0
    assert questions(wake(core, 1921.0))[0].jobs.tolist() == [1]


def test_an_answer_that_leaves_nobody_running_does_not_put_a_changed_world_to_sleep() -> None:
    core = make_core(make_spec("a"), fill_leftover=False)
    wake(core, 0.0)
    tell(core, JobSubmitted(make_spec("b")), 1.0)
    wake(core, 10.0)

    answer(core, now_s=15.0)

    assert core.wakeup_s == 15.0


def test_an_old_answer_changes_nothing() -> None:
    core = make_core(make_spec("a"))
    wake(core)
    answer(core, (0, 0, 0.5))

    commands = tell(core, AllocationSolved(1, np.array([0]), np.array([0]), np.array([0.9])))

    assert commands == []
    assert core.jobs.target[0].tolist() == [0.5]


def test_an_answer_counts_for_those_who_still_live() -> None:
    core = make_core(make_spec("a"), make_spec("b"))
    wake(core)
    tell(core, JobCancelled(0), 1.0)

    plan = plans(answer(core, (0, 0, 0.9), (1, 0, 0.1), now_s=2.0))[0]

    assert plan.grant_jobs.tolist() == [1]


def test_config_change_books_the_time_before_it_by_the_old_rules() -> None:
    core = make_core(make_spec("a"), lag_half_life_s=3600.0)
    wake(core, 0.0)
    answer(core, (0, 0, 0.5))

    tell(core, ConfigChanged(MechanismSettings(lag_half_life_s=1.0)), 100.0)

    assert core.jobs.owed_s[0].tolist() == pytest.approx([50.0])
    assert core.settled_s == 100.0


def test_restart_asks_again_for_throughputs_whose_answer_was_on_its_way() -> None:
    core = make_core(make_spec("a", rates={}, job_type="mystery"))
    wake(core)

    commands = tell(core, SchedulerRestarted(1), 50.0)
    asked = wake(core, core.wakeup_s)

    assert [type(command) for command in commands] == [QueryAgent]
    assert [command.jobs.tolist() for command in asked if isinstance(command, EstimateThroughput)] == [[0]]


def test_restart_asks_the_open_question_again() -> None:
    core = make_core(make_spec("a"))
    wake(core, 0.0)
    tell(core, SchedulerRestarted(1), 5.0)

    asked = questions(wake(core, core.wakeup_s))

    assert [question.epoch for question in asked] == [2]


def test_rates_that_were_asked_for_before_a_type_joined_leave_the_new_type_unknown() -> None:
    core = make_core(make_spec("a", rates={}, job_type="mystery"))
    wake(core)
    tell(core, NodeJoined(NodeId("n9"), "k80", 1), 1.0)

    tell(core, ThroughputEstimated(np.array([0]), np.array([[7.0]])), 2.0)
    asked = wake(core)

    assert core.jobs.rate[0, 0] == 7.0
    assert math.isnan(core.jobs.rate[0, 1])
    assert [command.gpu_types for command in asked if isinstance(command, EstimateThroughput)] == [("v100", "k80")]


def test_round_without_costs_ends_when_its_last_job_finishes() -> None:
    core = running_core(make_spec("a"), fill_within_round=False)

    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=100.0)

    assert core.wakeup_s == 100.0
    assert wake(core) == []
    assert core.wakeup_s == math.inf


@pytest.mark.parametrize(
    ("rate", "steps_left", "length_s"),
    [
        (0.5, 1e6, 360.0),
        (1.0, 100.0, 100.0),
        (0.005, 1e6, 200.0),  # one step fits
        (0.002, 1e6, 500.0),  # none fits: the round waits for it, or the job would repeat its first step forever
    ],
)
def test_rounds_of_whole_steps_end_with_a_step(rate: float, steps_left: float, length_s: float) -> None:
    core = running_core(make_spec("a", steps=steps_left, rates={"v100": rate}), whole_steps=True)

    assert core.round_end_s == pytest.approx(length_s)


@given(data=st.data(), settings=SETTINGS)
def test_wakeups_that_change_nothing_move_forward(data: st.DataObject, settings: MechanismSettings) -> None:
    """After any history, a core that is woken and answered, and gets no other event, soon sets a later timer."""
    core = SchedulerCore(settings)
    for _ in range(data.draw(st.integers(0, 12))):
        _something_happens(core, data, ["solved", "nothing", "failed"])

    moments = _woken(core, data.draw(st.sampled_from(["solved", "nothing", "failed"])))

    assert (np.diff(moments) >= 0).all()
    assert max(moments.count(moment) for moment in moments) <= INSTANT_WAKEUPS_MAX


@given(data=st.data(), settings=SETTINGS)
def test_a_job_with_a_share_and_room_is_not_left_waiting(data: st.DataObject, settings: MechanismSettings) -> None:
    """After any history of shares and failures, an answer of the policy makes a job run if any can."""
    core = SchedulerCore(settings)
    for _ in range(data.draw(st.integers(0, 12))):
        _something_happens(core, data, ["solved", "failed"])

    _woken(core, "solved")

    active = core.jobs.active
    assert len(core.jobs.leased) or not core.runnable(active).any()


def _woken(core: SchedulerCore, reply: str, times: int = 30) -> list[float]:
    """The core's wake-up times while the policy answers immediately and jobs keep running."""
    moments: list[float] = []
    if core.question.open_epoch != NONE_OPEN:
        _reply(core, reply)
    while core.wakeup_s < math.inf and len(moments) < times:
        moments.append(core.wakeup_s)
        wake(core, core.wakeup_s)
        if core.question.open_epoch != NONE_OPEN:
            _reply(core, reply)
    return moments or [0.0]


def _reply(core: SchedulerCore, reply: str) -> None:
    rows, T = core.question.asked_jobs.tolist(), len(core.pool.gpu_types)
    if reply == "failed":
        fail(core)
    else:
        answer(core, *((row, k, 1 / T) for row in rows for k in range(T) if reply == "solved"))


def _something_happens(core: SchedulerCore, data: st.DataObject, replies: list[str]) -> None:
    core.now_s += data.draw(st.sampled_from([0.0, 1.0, 50.0, 400.0]))
    jobs: Any = st.integers(0, core.jobs.count - 1) if core.jobs.count else st.nothing()
    nodes: Any = st.sampled_from(core.pool.node_ids) if core.pool.node_ids else st.nothing()
    happening = st.one_of(
        st.builds(NodeJoined, st.sampled_from([NodeId("n0"), NodeId("n1")]), st.sampled_from(TYPES), st.integers(1, 3)),
        st.builds(NodeLost, nodes),
        st.builds(NodeDraining, nodes),
        st.builds(JobCancelled, jobs),
        st.just(WakeupDue()),
        st.sampled_from([1, 2]).map(lambda n: _submission(core, n)),
        st.sampled_from(replies),
        jobs,
    )
    event = data.draw(happening)
    match event:
        case str():
            if core.question.open_epoch != NONE_OPEN:
                _reply(core, event)
        case int():
            if core.jobs.lease[event] >= 0:
                start(core, event)
                lease = int(core.jobs.lease[event])
                end(core, event, lease, data.draw(st.sampled_from([*Outcome])), steps=100.0)
        case _:
            tell(core, event)
    check(core)


def _submission(core: SchedulerCore, gpus: int) -> JobSubmitted:
    return JobSubmitted(make_spec(f"j{core.jobs.count}", gpus=gpus, rates={"v100": 10.0, "k80": 2.0}))
