"""The scheduler's time across restarts, date changes and reboots."""

from __future__ import annotations

import pytest

from gavelpy.errors import JournalCorrupt
from gavelpy.runtime.daemon.recovery import SchedulerClock, started

DAY_S = 86_400.0
KEPT = SchedulerClock(epoch_s=1_000_000.0, behind_s=500.0, boot="b1").text


def test_time_begins_with_the_cluster() -> None:
    clock = started("", 0.0, boot="b1", boot_s=500.0, date_s=1_000_000.0)

    assert (clock.behind_s, clock.wall_s(10.0), clock.slack_s) == (500.0, 1_000_010.0, 0.0)


@pytest.mark.parametrize("date_s", [1_000_000.0 - DAY_S, 1_000_100.0, 1_000_000.0 + DAY_S])
def test_within_a_boot_the_date_does_not_matter(date_s: float) -> None:
    clock = started(KEPT, 90.0, boot="b1", boot_s=600.0, date_s=date_s)

    assert (600.0 - clock.behind_s, clock.slack_s) == (100.0, 0.0)


def test_over_a_boot_the_date_tells_how_long_it_took_but_is_not_trusted_about_leases() -> None:
    clock = started(KEPT, 90.0, boot="b2", boot_s=5.0, date_s=1_000_300.0)

    assert 5.0 - clock.behind_s == 300.0
    assert clock.slack_s == 210.0


def test_time_does_not_go_back_with_the_date() -> None:
    clock = started(KEPT, 90.0, boot="b2", boot_s=5.0, date_s=1_000_000.0 - DAY_S)

    assert 5.0 - clock.behind_s == 90.0


@pytest.mark.parametrize("text", ["{", "[]", '{"epoch_s": 1}', '{"epoch_s": "x", "behind_s": 1, "boot": ""}'])
def test_a_clock_that_is_not_whole_is_said(text: str) -> None:
    with pytest.raises(JournalCorrupt, match="the clock stored in the journal is corrupt"):
        started(text, 0.0, boot="b", boot_s=0.0, date_s=0.0)
