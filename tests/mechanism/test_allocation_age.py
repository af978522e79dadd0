"""An allocation that depends on time is requested again after a while, even if no job or GPU has changed."""

from __future__ import annotations

import pytest

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ConfigChanged
from gavelpy.mechanism.settings import MechanismSettings
from tests.mechanism.builders import answer, fail, make_spec, plans, questions, running_core, tell, wake

ROUNDS = 20


def quiet_times(core: SchedulerCore, until_s: float) -> list[float]:
    """Times at which the core requests an allocation while nothing happens; the answers stay the same."""
    asked_s = []
    while core.wakeup_s <= until_s:
        if questions(wake(core, core.wakeup_s)):
            asked_s.append(core.now_s)
            answer(core, (0, 0, 1.0), (1, 0, 1.0))
    return asked_s


def two_running(**settings: object) -> SchedulerCore:
    return running_core(make_spec("a"), make_spec("b"), servers=[("v100", 2)], round_s=100.0, **settings)


def test_quiet_hours_ask_the_policy_as_often_as_the_settings_say() -> None:
    core = two_running(solve_at_least_every_s=450.0)

    assert quiet_times(core, ROUNDS * 100.0) == [500.0, 1000.0, 1500.0, 2000.0]


def test_without_the_setting_they_ask_it_never() -> None:
    assert quiet_times(two_running(), ROUNDS * 100.0) == []


@pytest.mark.parametrize(("most", "ends_s"), [(1_000_000, 500.0), (3, 300.0)])
def test_a_settled_round_ends_when_its_answer_is_too_old(most: int, ends_s: float) -> None:
    core = two_running(solve_at_least_every_s=450.0, settled_rounds_max=most)

    assert core.round_end_s == ends_s


def test_settled_rounds_ask_as_often_as_others() -> None:
    core = two_running(solve_at_least_every_s=450.0, settled_rounds_max=1_000_000)

    assert quiet_times(core, ROUNDS * 100.0) == [500.0, 1000.0, 1500.0, 2000.0]


def test_the_question_waits_for_its_least_interval_and_after_failures_all_the_same() -> None:
    core = two_running(solve_at_least_every_s=100.0, solve_interval_s=350.0)
    wake(core, 100.0)
    answer(core, (0, 0, 1.0), (1, 0, 1.0))

    asked = [len(questions(wake(core, now_s))) for now_s in (200.0, 300.0, 400.0, 450.0)]
    fail(core)

    assert asked == [0, 0, 0, 1]
    assert not questions(wake(core, 500.0))


def test_a_setting_that_comes_later_counts_from_the_last_answer() -> None:
    core = two_running(settled_rounds_max=1_000_000)

    tell(core, ConfigChanged(MechanismSettings(round_s=100.0, solve_at_least_every_s=450.0)), 50.0)
    wake(core)
    answer(core, (0, 0, 1.0), (1, 0, 1.0))

    assert quiet_times(core, 1100.0) == [500.0, 1000.0]


def test_a_plan_follows_the_answer_of_the_same_instant() -> None:
    core = two_running(solve_at_least_every_s=100.0)

    commands = wake(core, 100.0)

    assert len(questions(commands)) == 1
    assert not plans(commands)
    assert len(plans(answer(core, (0, 0, 1.0), (1, 0, 1.0)))) == 1
