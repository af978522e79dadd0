"""Requests for events that the journal has already deleted, or moved to the archive."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gavelpy.runtime.daemon import written
from gavelpy.runtime.daemon.queries.events import NOT_KEPT, EventQueries
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.security.identity import SOLE_CALLER
from tests.runtime.daemon.harness import Running, make_config, make_spec, running


async def some_jobs(cluster: Running) -> None:
    """Submits jobs until a snapshot is due, and waits until it is saved."""
    taken = cluster.scheduler.driver.sequence
    await cluster.submit(*[make_spec()] * 20)
    written = cluster.scheduler.driver._written
    await cluster.until(lambda: cluster.scheduler.driver.sequence > taken and not written.is_much, "a snapshot")


def test_an_answer_names_the_requested_events_that_were_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "SNAPSHOT_EVENTS", 15)
    monkeypatch.setattr(written, "EVENTS_KEPT", 0)

    async def scenario() -> None:
        async with running(make_config(tmp_path, journal={"events_retention": "0"})) as cluster:
            await some_jobs(cluster)
            await some_jobs(cluster)
            await some_jobs(cluster)
            stream = EventQueries(cluster.scheduler, JobQueries(cluster.scheduler))
            told = [event async for event in stream.read(SOLE_CALLER, after=3)]
            kept = [event async for event in stream.read(SOLE_CALLER, after=told[0].sequence)]

        last = told[0].sequence
        assert told[0].kind == NOT_KEPT
        assert told[0].text == f"events 4 to {last} were truncated: a snapshot replaces them"
        assert json.loads(told[0].json) == {"first": 4, "last": last}
        assert [event.sequence for event in told[1:]] == list(range(last + 1, told[-1].sequence + 1))
        assert [event.kind for event in kept] == [event.kind for event in told[1:]]

    asyncio.run(asyncio.wait_for(scenario(), 120.0))


def test_older_events_are_read_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "SNAPSHOT_EVENTS", 15)
    monkeypatch.setattr(written, "EVENTS_KEPT", 0)

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            for _ in range(3):
                await some_jobs(cluster)
            stream = EventQueries(cluster.scheduler, JobQueries(cluster.scheduler))
            kept = await cluster.scheduler.read_journal(lambda store: store.events(0, 1))
            told = [event async for event in stream.read(SOLE_CALLER)]

        assert kept[0][0] > 1
        assert [event.sequence for event in told] == list(range(1, told[-1].sequence + 1))
        assert len(told) >= 60

    asyncio.run(asyncio.wait_for(scenario(), 120.0))
