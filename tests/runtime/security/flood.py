"""A hostile user in a process of its own: half-open connections, waiting calls and streams that it never reads.

`python -m tests.runtime.security.flood ADDRESS TOKEN SECONDS CONNECTIONS CALLS STREAMS` prints how many of each it had.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter

import grpc
import grpc.aio

from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub

CALLS_A_CHANNEL = 900
OPENED_AT_ONCE = 200
PAUSE_S = 5.0  # before a refused call is made again
REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED


async def half_open(address: str, until_s: float, tally: Counter[str]) -> None:
    """A connection that never sends anything, and is opened again when it is closed."""
    host, _, port = address.rpartition(":")
    while time.monotonic() < until_s:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            tally["not connected"] += 1
            await asyncio.sleep(1.0)
            continue
        tally["half-open"] += 1
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(until_s - time.monotonic(), 0.1)):
                while await reader.read(4096):
                    pass
        except (TimeoutError, OSError):
            tally["cut"] += 1
        writer.close()


async def waiting(stub: SchedulerServiceStub, token: str, until_s: float, tally: Counter[str]) -> None:
    """A call that waits for a job that never ends; refused, it is made again."""
    who = (("authorization", f"Bearer {token}"),)
    while (left_s := until_s - time.monotonic()) > 0:
        call = stub.WaitJobs(pb.WaitJobsRequest(jobs=["endless"], wait_s=60.0), metadata=who, timeout=left_s)
        tally["waits"] += 1
        code = await call.code()
        tally[code.name] += 1
        await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.5) if code is REFUSED else 0.0)


async def unread(stub: SchedulerServiceStub, token: str, until_s: float, tally: Counter[str]) -> None:
    """A stream of all events that is never read; refused, it is opened again."""
    who = (("authorization", f"Bearer {token}"),)
    while (left_s := until_s - time.monotonic()) > 0:
        call = stub.ListEvents(pb.ListEventsRequest(follow=True), metadata=who, timeout=left_s)
        tally["streams"] += 1
        code = await call.code()
        tally[code.name] += 1
        await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.5) if code is REFUSED else 0.0)


async def flood(address: str, token: str, seconds: float, connections: int, calls: int, streams: int) -> Counter[str]:
    """Everything at the same time."""
    until_s, tally = time.monotonic() + seconds, Counter[str]()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(address, options) for _ in range(-(-(calls + streams) // CALLS_A_CHANNEL))
    ]  # fmt: skip
    stubs = [SchedulerServiceStub(channel) for channel in channels]
    tasks = []
    for number in range(max(connections, calls, streams)):
        stub = stubs[number % len(stubs)]
        tasks += [asyncio.create_task(half_open(address, until_s, tally))] if number < connections else []
        tasks += [asyncio.create_task(waiting(stub, token, until_s, tally))] if number < calls else []
        tasks += [asyncio.create_task(unread(stub, token, until_s, tally))] if number < streams else []
        if not number % OPENED_AT_ONCE:
            await asyncio.sleep(0.0)
    await asyncio.wait(tasks, timeout=seconds + 10.0)
    return tally


if __name__ == "__main__":
    address, token, seconds, *counts = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(flood(address, token, float(seconds), *map(int, counts)))))
