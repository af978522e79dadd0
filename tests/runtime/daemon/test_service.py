"""The daemon's event loop: one turn reads all wake-ups of gRPC's poller."""

import asyncio
import socket

from gavelpy.runtime.daemon.service import EventLoop

WAKE_UPS = 200


def test_wake_ups_that_arrived_together_cost_one_turn() -> None:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    reads: list[bytes] = []

    async def scenario() -> None:
        asyncio.get_running_loop().add_reader(reader, lambda: reads.append(reader.recv(1)))
        for _ in range(WAKE_UPS):
            writer.send(b"1")
        await asyncio.sleep(0.01)
        writer.send(b"1")
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().remove_reader(reader)

    with reader, writer, asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())

    assert reads == [b"1", b"1"]
