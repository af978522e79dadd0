"""Processes of other agents on this host."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process, create_subprocess_exec

from gavelpy.runtime.agent.neighbors import NeighborWatch
from gavelpy.runtime.shim.processes import process_facts, this_process

PATIENCE_S = 60.0


async def sleeping() -> tuple[Process, tuple[int, int]]:
    process = await create_subprocess_exec("sleep", "1000")
    facts = process_facts(process.pid)
    assert facts is not None
    return process, (process.pid, facts.start_ticks)


def test_the_end_of_a_neighbor_is_reported_at_once_and_until_it_is_not_followed() -> None:
    async def story() -> None:
        changed = asyncio.Event()
        watch = NeighborWatch(changed.set)
        process, name = await sleeping()
        me = (os.getpid(), this_process().start_ticks)
        watch.follow([name, me])
        before = watch.ended

        process.kill()
        await asyncio.wait_for(changed.wait(), PATIENCE_S)
        watch.follow([me, name])
        after = watch.ended
        watch.follow([me])

        assert (before, after, watch.ended) == ([], [name], [])
        watch.close()
        await process.wait()

    asyncio.run(story())


def test_a_process_that_was_never_seen_alive_is_not_reported() -> None:
    async def story() -> None:
        watch = NeighborWatch(lambda: None)
        process, (number, start) = await sleeping()
        process.kill()
        await process.wait()

        watch.follow([(number, start), (os.getpid(), this_process().start_ticks + 1)])  # ended before; a reused id
        await asyncio.sleep(0)

        assert watch.ended == []
        watch.close()

    asyncio.run(story())
