"""The scheduler's time across restarts, date changes and reboots."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gavelpy.errors import JournalCorrupt
from gavelpy.runtime.daemon.recovery import CLOCK, SchedulerClock, started
from gavelpy.runtime.daemon.service import follow_date
from tests.runtime.daemon.harness import make_config, running

DAY_S = 86_400.0
KEPT = SchedulerClock(epoch_s=1_000_000.0, behind_s=500.0, boot="b1").text


def test_time_begins_with_the_cluster() -> None:
    clock = started("", 0.0, boot="b1", boot_s=500.0, date_s=1_000_000.0)

    assert (clock.behind_s, clock.wall_s(10.0), clock.slack_s) == (500.0, 1_000_010.0, 0.0)


@pytest.mark.parametrize("date_s", [1_000_000.0 - DAY_S, 1_000_100.0, 1_000_000.0 + DAY_S])
def test_within_a_boot_the_date_does_not_matter(date_s: float) -> None:
    clock = started(KEPT, 90.0, boot="b1", boot_s=600.0, date_s=date_s)

    assert (600.0 - clock.behind_s, clock.slack_s) == (100.0, 0.0)
    assert clock.wall_s(100.0) == date_s  # but dates of all times are those of the system


def test_over_a_boot_the_date_tells_how_long_it_took_but_is_not_trusted_about_leases() -> None:
    clock = started(KEPT, 90.0, boot="b2", boot_s=5.0, date_s=1_000_300.0)

    assert 5.0 - clock.behind_s == 300.0
    assert clock.slack_s == 210.0


def test_time_does_not_go_back_with_the_date() -> None:
    clock = started(KEPT, 90.0, boot="b2", boot_s=5.0, date_s=1_000_000.0 - DAY_S)

    assert 5.0 - clock.behind_s == 90.0
    assert clock.wall_s(90.0) == 1_000_000.0 - DAY_S


def test_small_corrections_of_the_date_leave_dates_as_they_were_reported() -> None:
    clock = SchedulerClock(epoch_s=1_000_000.0, behind_s=500.0, boot="b1")

    assert clock.dated(100.0, 1_000_104.0) is clock
    assert clock.dated(100.0, 1_000_100.0 + 7_200.0).wall_s(100.0) == 1_007_300.0


def test_dates_of_a_running_scheduler_follow_a_date_that_is_set(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            scheduler = cluster.scheduler
            before = scheduler.clock
            scheduler.clock = replace(before, epoch_s=before.epoch_s - 7_200.0)  # the date was two hours behind

            await follow_date(scheduler)

            kept = await scheduler.read_journal(lambda store: store.meta(CLOCK))
            assert scheduler.wall_s(0.0) == pytest.approx(before.epoch_s, abs=1.0)
            assert scheduler.clock.behind_s == before.behind_s  # leases and ages do not change
            assert kept == scheduler.clock.text

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["{", "[]", '{"epoch_s": 1}', '{"epoch_s": "x", "behind_s": 1, "boot": ""}'])
def test_a_clock_that_is_not_whole_is_said(text: str) -> None:
    with pytest.raises(JournalCorrupt, match="the clock stored in the journal is corrupt"):
        started(text, 0.0, boot="b", boot_s=0.0, date_s=0.0)
