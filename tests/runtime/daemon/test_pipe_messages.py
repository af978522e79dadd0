"""Messages to child processes arrive complete, however long, and a long one does not block the event loop."""

from __future__ import annotations

import asyncio
import pickle
import sys

from gavelpy.runtime.daemon.engine.pipe_messages import LENGTH, send

ECHO = """
import sys
from gavelpy.runtime.daemon.engine.pipe_messages import read_message, write_message
write_message(sys.stdout.buffer, read_message(sys.stdin.buffer))
"""
LONG = bytes(range(256)) * (3 << 12) + b"end"


async def echoed(message: object) -> tuple[object, int]:
    """The reply of a process, and how often other tasks ran while waiting for it."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ECHO, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    waiting = asyncio.create_task(others())
    await send(process.stdin, pickle.dumps(message))
    waiting.cancel()
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    answer = pickle.loads(await process.stdout.readexactly(length))
    await process.wait()
    return answer, turns


def test_a_long_message_arrives_whole_and_others_have_turns_meanwhile() -> None:
    answer, turns = asyncio.run(asyncio.wait_for(echoed(LONG), 60.0))

    assert answer == LONG
    assert turns > len(LONG) >> 18


def test_a_short_message_arrives() -> None:
    answer, _ = asyncio.run(asyncio.wait_for(echoed([1, "a"]), 60.0))

    assert answer == [1, "a"]
