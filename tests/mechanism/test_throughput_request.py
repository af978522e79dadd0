"""Requests for unknown rates: one is pending at a time; a job runs only on types where its rate is known."""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism.commands import Command, EstimateThroughput
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    JobSubmitted,
    NodeJoined,
    PolicyChanged,
    SchedulerRestarted,
    ThroughputEstimated,
)
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, make_core, make_spec, questions, tell, wake

NAN = math.nan


def asked(commands: list[Command]) -> list[list[int]]:
    return [command.jobs.tolist() for command in commands if isinstance(command, EstimateThroughput)]


def estimated(core: SchedulerCore, job: int, *rates: float) -> list[Command]:
    return tell(core, ThroughputEstimated(np.array([job]), np.array([rates])))


def unknown_core(count: int = 1, servers: tuple[tuple[str, int], ...] = (("v100", 1), ("k80", 1))) -> SchedulerCore:
    return make_core(*(make_spec(f"j{k}", rates={}, job_type="mystery") for k in range(count)), servers=servers)


def test_a_second_question_waits_for_the_answer_to_the_first() -> None:
    core = unknown_core()
    first = asked(wake(core))
    tell(core, JobSubmitted(make_spec("late", rates={})))
    meanwhile = asked(wake(core))

    estimated(core, 0, 1.0, 2.0)

    assert (first, meanwhile) == ([[0]], [])
    assert core.wakeup_s == core.now_s
    assert asked(wake(core)) == [[1]]


def test_an_answer_about_some_leaves_the_question_open_for_the_others() -> None:
    core = unknown_core(2)
    wake(core)

    estimated(core, 0, 1.0, 2.0)

    assert core.throughput.asked.tolist() == [1]


def test_an_open_question_survives_a_snapshot_and_is_asked_again_after_a_restart() -> None:
    core = unknown_core()
    wake(core)

    core = restore(snapshot(core))
    before_restart = asked(wake(core))
    tell(core, SchedulerRestarted(1))

    assert before_restart == []
    assert asked(wake(core)) == [[0]]


def test_a_question_that_nobody_can_answer_is_not_asked_for_ever() -> None:
    core = unknown_core()
    wake(core)

    estimated(core, 0, NAN, NAN)

    assert asked(wake(core)) == []
    assert reasons(core)[0].kind == ReasonKind.UNKNOWN_THROUGHPUT


def test_another_policy_may_know_more() -> None:
    core = unknown_core()
    wake(core)
    estimated(core, 0, NAN, NAN)

    tell(core, PolicyChanged("max_min_fairness", "{}"))

    assert asked(wake(core)) == [[0]]


def test_a_type_that_joins_later_is_asked_about() -> None:
    core = unknown_core()
    wake(core)
    estimated(core, 0, 1.0, 2.0)

    tell(core, NodeJoined(NodeId("n9"), "a100", 1))

    assert asked(wake(core)) == [[0]]


def test_a_job_runs_on_the_types_where_it_is_known_and_on_no_others() -> None:
    core = unknown_core()
    wake(core)

    estimated(core, 0, NAN, 2.0)
    [question] = questions(wake(core))

    assert question.problem.member_rate_steps_per_s.tolist() == [[0.0, 2.0]]
    answer(core, (0, 1, 1.0))
    assert core.jobs.lease_type[0] == 1


def test_what_is_known_is_not_forgotten_by_an_answer_that_knows_less() -> None:
    core = unknown_core()
    wake(core)
    estimated(core, 0, 1.0, NAN)

    estimated(core, 0, NAN, 2.0)

    assert core.jobs.rate[0].tolist() == [1.0, 2.0]


def test_a_job_that_is_unknown_where_it_would_fit_says_so() -> None:
    core = make_core(make_spec("g", rates={}, job_type="mystery", gpus=2), servers=[("v100", 1), ("k80", 2)])
    wake(core)
    estimated(core, 0, 5.0, NAN)

    reason = reasons(core)[0]

    assert reason.kind == ReasonKind.GANG_TOO_LARGE
    assert reason.text == (
        "needs 2 GPUs of one type; the maximum is 1 v100; the throughput of 'mystery' on 2 GPUs of k80 is unknown"
    )


def test_a_job_that_is_slow_nowhere_it_is_known_is_unknown_elsewhere() -> None:
    core = unknown_core()
    wake(core)
    estimated(core, 0, 0.0, NAN)

    assert reasons(core)[0].text == "the throughput of 'mystery' on 1 GPU of k80 is unknown"
