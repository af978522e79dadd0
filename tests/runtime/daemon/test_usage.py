"""Accounts of GPU time: equal to a second computation, exact over restarts, and private."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobSubmitted, LeaseEnded, LeaseStarted, NodeJoined, Outcome
from gavelpy.model.job import JobId, JobSpec, NodeId
from gavelpy.runtime.daemon.queries.usage import UsageRow, usage
from gavelpy.runtime.daemon.usage import DAY_S, HOUR_S, HOURLY_S, Holder, UsageBook
from gavelpy.runtime.security.identity import Caller
from gavelpy.runtime.security.tokens import Role
from tests.conftest import first_fast
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

OWNERS = ("alice", "bob", "carol")
ALICE = Holder("alice", "", "v100")


def make_core(jobs: int = 6) -> SchedulerCore:
    """Four V100 and four K80; jobs of three owners in two entities."""
    core = SchedulerCore()
    core.handle(NodeJoined(NodeId("n0"), "v100", 4), 0.0)
    core.handle(NodeJoined(NodeId("n1"), "k80", 4), 0.0)
    for job in range(jobs):
        core.handle(
            JobSubmitted(
                JobSpec(JobId(f"j{job}"), 1e6, rates_steps_per_s={"v100": 1.0}, owner=OWNERS[job % 3],
                        entity="team" if job % 2 else "")
            ), 0.0,
        )  # fmt: skip
    return core


def start(job: int, lease: int, *gpus: int) -> LeaseStarted:
    return LeaseStarted(np.array([job]), np.array([lease]), np.array([0, len(gpus)]), np.array(gpus))


def end(job: int, lease: int) -> LeaseEnded:
    return LeaseEnded(np.array([job]), np.array([lease]), np.zeros(1), Outcome.STOPPED)


def test_a_lease_counts_its_gpus_for_the_time_it_ran() -> None:
    book, core = UsageBook(), make_core()

    book.started(start(0, 7, 0, 1), core, 100.0)
    book.ended(end(0, 7), 400.0)

    assert book.since(0.0, 5_000.0) == (0.0, {ALICE: 600.0})


def test_a_lease_that_runs_counts_up_to_now() -> None:
    book, core = UsageBook(), make_core()

    book.started(start(1, 7, 4), core, 100.0)

    assert book.since(0.0, 5_000.0) == (0.0, {Holder("bob", "team", "k80"): 4_900.0})


def test_an_end_that_is_reported_twice_or_without_a_start_counts_once() -> None:
    book, core = UsageBook(), make_core()
    book.started(start(0, 7, 0), core, 0.0)

    book.ended(end(0, 7), 10.0)
    book.ended(end(0, 7), 20.0)
    book.ended(end(1, 8), 30.0)

    assert book.since(0.0, 40.0)[1] == {ALICE: 10.0}


def test_a_lease_whose_end_was_lost_ends_with_the_next_start_of_its_job() -> None:
    book, core = UsageBook(), make_core()

    book.started(start(0, 7, 0), core, 0.0)
    book.started(start(0, 9, 4), core, 50.0)

    assert book.since(0.0, 60.0)[1] == {ALICE: 50.0, Holder("alice", "", "k80"): 10.0}


def test_since_counts_whole_hours() -> None:
    book, core = UsageBook(), make_core()
    book.started(start(0, 7, 0), core, 0.0)
    book.ended(end(0, 7), 10 * HOUR_S)
    book.started(start(0, 8, 0), core, 10 * HOUR_S)

    first_s, found = book.since(8.5 * HOUR_S, 11 * HOUR_S)

    assert first_s == 8 * HOUR_S
    assert found == {ALICE: 3 * HOUR_S}


@pytest.mark.parametrize("seed", first_fast(range(5), 3))
def test_usage_equals_a_sum_over_intervals_with_restarts_at_any_time(seed: int) -> None:
    rng, core, book, now_s = Random(seed), make_core(), UsageBook(), 0.0
    running: dict[int, tuple[int, float, int, int]] = {}
    intervals: list[tuple[int, int, int, float, float]] = []  # job, GPU, GPUs, start, end

    for lease in range(400):
        now_s += rng.expovariate(1 / 20_000)
        job = rng.randrange(6)
        if job in running:
            number, began_s, gpu, count = running.pop(job)
            book.ended(end(job, number), now_s)
            intervals.append((job, gpu, count, began_s, now_s))
        else:
            gpu, count = rng.choice([0, 4]), rng.randint(1, 4)
            running[job] = lease, now_s, gpu, count
            book.started(start(job, lease, *range(gpu, gpu + count)), core, now_s)
        if rng.random() < 0.1:
            book = UsageBook.restore(decode_state(encode_state(book.snapshot())), core)
    intervals += [(job, gpu, count, began_s, now_s) for job, (_, began_s, gpu, count) in running.items()]

    assert now_s > HOURLY_S + 10 * DAY_S  # rows were merged
    for since_s in (0.0, now_s - 40 * DAY_S, now_s - 3 * DAY_S, now_s - 1.0):
        first_s, found = book.since(since_s, now_s)
        expected: defaultdict[Holder, float] = defaultdict(float)
        for job, gpu, count, began_s, ended_s in intervals:
            holder = Holder(OWNERS[job % 3], "team" if job % 2 else "", "v100" if gpu < 4 else "k80")
            expected[holder] += count * max(ended_s - max(began_s, first_s), 0.0)
        assert since_s - DAY_S <= first_s <= since_s
        assert found == pytest.approx({holder: gpu_s for holder, gpu_s in expected.items() if gpu_s})


def test_a_year_of_hours_is_few_rows() -> None:
    book, core = UsageBook(), make_core()

    for lease in range(365):
        book.started(start(0, lease, 0), core, lease * DAY_S)
        book.ended(end(0, lease), (lease + 1) * DAY_S)

    assert len(book.snapshot()["sums"]) < 365 + 24 * 33
    assert book.since(0.0, 365 * DAY_S)[1] == {ALICE: 365 * DAY_S}


def test_a_corrupt_snapshot_is_refused() -> None:
    with pytest.raises(JournalCorrupt, match="usage in the snapshot is corrupt"):
        UsageBook.restore({"gpu_s": {"nonsense": 1.0}, "open": {}, "daily_s": 0.0}, make_core())


def test_usage_outlives_a_restart_and_shows_users_their_own_only(tmp_path: Path) -> None:
    before, admin, alice, bob, curious = asyncio.run(reports_over_a_restart(tmp_path))

    (row,) = admin
    assert admin == alice == before
    assert (row.owner, row.gpu_type) == ("alice", "v100")
    assert row.gpu_s > 0
    assert bob == curious == []


async def reports_over_a_restart(directory: Path) -> list[list[UsageRow]]:
    """Rows for an admin before a restart; after it for an admin, alice, bob, and bob who names alice."""
    config, agent = make_config(directory), Agent("n0", gpus=2)
    async with running(config) as cluster, agent.connected(cluster):
        await cluster.submit(make_spec("train", gpus=2))
        await cluster.until(lambda: bool(agent.leases), "it runs")
        agent.finish(next(iter(agent.leases)))
        await cluster.until(lambda: len(cluster.core.jobs.active) == 0, "it ends")
        found = [await usage(cluster.scheduler, Caller("root", Role.ADMIN))]
    async with running(config, in_good_order=False) as cluster:
        for name, role in (("root", Role.ADMIN), ("alice", Role.USER), ("bob", Role.USER)):
            found.append(await usage(cluster.scheduler, Caller(name, role)))
        found.append(await usage(cluster.scheduler, Caller("bob", Role.USER), owner="alice"))
        with pytest.raises(InvalidInput, match="since_s must be"):
            await usage(cluster.scheduler, Caller("alice", Role.USER), since_s=float("nan"))
    return [list(report.rows) for report in found]


def test_what_leaves_and_what_stays_is_all_of_the_usage() -> None:
    """Leases that start and end at random, with changes of prices: rows leave at any hour, and sums stay the same."""
    rng, core = Random(3), make_core()
    whole, book, now_s, left = UsageBook(), UsageBook(), 0.0, defaultdict(lambda: [0.0] * 5)
    running: dict[int, int] = {}
    for lease in range(400):
        now_s += rng.expovariate(1 / 900)
        job = rng.randrange(6)
        for each in (whole, book):
            if job in running:
                each.ended(end(job, running[job]), now_s, core)
            else:
                each.started(start(job, lease, rng.choice((job % 4, job % 4))), core, now_s)
        running = {other: at for other, at in running.items() if other != job} | (
            {} if job in running else {job: lease}
        )
        if rng.random() < 0.1:
            price = rng.random()
            for each in (whole, book):
                each.priced("v100", price, now_s)
        if rng.random() < 0.1:
            before_s = now_s // HOUR_S * HOUR_S
            for row in book.leaving(before_s):
                assert row.start_s + row.length_s <= before_s
                total = left[Holder(row.owner, row.entity, row.gpu_type)]
                sums = (row.gpu_s, row.cost_usd, row.waited_s, row.leases, row.preemptions)
                total[:] = [one + other for one, other in zip(total, sums, strict=True)]
            book.archived((), before_s)

    for holder, sums in book.sums_since(0.0, now_s)[1].items():
        left[holder][:] = [one + other for one, other in zip(left[holder], sums, strict=True)]

    expected = whole.sums_since(0.0, now_s)[1]
    assert left.keys() == expected.keys()
    for holder, sums in expected.items():
        assert left[holder] == pytest.approx(sums)
    assert sum(sums[3] for sums in expected.values()) > 100
    assert sum(sums[4] for sums in expected.values()) > 100
