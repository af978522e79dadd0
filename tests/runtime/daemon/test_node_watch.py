"""Silence of almost all nodes: it counts as a failure of the network or the scheduler, and is tolerated for a time."""

from __future__ import annotations

from gavelpy.runtime.daemon.nodes.watch import SilenceJudge

AFTER_S, EXTENSION_S = 10.0, 60.0


def judge(extension_s: float = EXTENSION_S) -> SilenceJudge:
    return SilenceJudge(AFTER_S, extension_s)


def test_one_of_many_that_stops_reporting_is_not_excused() -> None:
    found = judge()

    assert not found.look([10.0, *[0.5] * 9], 100.0)

    assert not found.is_excused(100.0)


def test_all_that_stop_reporting_at_once_are_excused_also_while_only_the_first_is_overdue() -> None:
    found = judge()

    assert found.look([10.0, 9.5, 9.2, 9.9, 0.1], 100.0)

    assert found.is_excused(100.0)


def test_silence_of_a_lone_node_is_its_own() -> None:
    found = judge()

    assert not found.look([10.0], 100.0)

    assert not found.is_excused(100.0)


def test_excuse_ends_when_it_has_lasted_long_enough() -> None:
    found = judge()

    for second in range(100, 170):
        found.look([second - 90.0] * 3, float(second))

    assert found.is_excused(159.0)
    assert not found.is_excused(160.0)


def test_others_have_a_while_to_return_once_the_first_are_back() -> None:
    found = judge()
    found.look([30.0] * 4, 120.0)

    found.look([0.1, 0.1, 30.5, 30.5], 120.5)

    assert found.is_excused(129.0)
    assert not found.is_excused(130.0)


def test_the_next_event_has_its_own_time() -> None:
    found = judge()
    found.look([10.0] * 3, 100.0)
    found.look([0.1] * 3, 105.0)

    assert found.look([10.0] * 3, 200.0)

    assert found.is_excused(209.0)


def test_without_an_extension_no_node_is_excused() -> None:
    found = judge(0.0)

    assert not found.look([10.0] * 3, 100.0)

    assert not found.is_excused(100.0)


def test_look_that_comes_late_excuses_a_lone_node() -> None:
    found = judge()
    found.look([0.1], 100.0)

    assert found.look([20.1], 120.0)

    assert found.is_excused(129.0)
    assert not found.is_excused(130.0)


def test_node_that_becomes_overdue_after_a_late_look_is_excused() -> None:
    found = judge()
    found.look([5.9], 100.0)

    assert not found.look([9.9], 104.0)
    assert not found.look([10.1], 104.2)

    assert found.is_excused(104.2)


def test_process_that_is_late_again_and_again_delays_no_longer_than_the_extension() -> None:
    found = judge()

    for second in range(100, 200, 5):
        found.look([second - 90.0], float(second))

    assert found.is_excused(164.0)
    assert not found.is_excused(165.0)
