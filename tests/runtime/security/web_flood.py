"""A hostile user at the port of the web page, in a process of its own.

`python -m tests.runtime.security.web_flood ADDRESS TOKEN SECONDS CONNECTIONS CALLS STREAMS` opens connections without a
whole request, requests that wait for forecasts, and streams that it never reads, and prints how many of each it had.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter

OPENED_AT_ONCE = 200
PAUSE_S = 5.0  # before what was refused is tried again
STEP_S = 0.5  # over which each kind begins


class WebFlood:
    """What one user does to an address until a time."""

    def __init__(self, address: str, token: str, until_s: float) -> None:
        self.tally = Counter[str]()
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._head = f" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        self._until_s = until_s

    async def half_open(self) -> None:
        """A connection with half a header, opened again when it is closed."""
        await self._repeat("half-open", f"GET /{self._head}", 0)

    async def waiting(self) -> None:
        """A request for a forecast, which waits for those before it."""
        await self._repeat("waits", f"GET /api/v1/jobs/endless{self._head}Connection: close\r\n\r\n", 1 << 20)

    async def unread(self) -> None:
        """A stream that is never read."""
        await self._repeat("streams", f"GET /api/v1/changes{self._head}\r\n", 0)

    async def _repeat(self, name: str, request: str, read: int) -> None:
        await asyncio.sleep(random.uniform(0.0, STEP_S))
        while (left_s := self._until_s - time.monotonic()) > 0:
            try:
                reader, writer = await asyncio.open_connection(*self._address, limit=1 << 16)
            except OSError:
                self.tally["not connected"] += 1
                await asyncio.sleep(1.0)
                continue
            self.tally[name] += 1
            try:
                writer.write(request.encode())
                async with asyncio.timeout(left_s):
                    status = await (reader.readline() if read else self._end(reader))
                    self.tally[status.decode()[9:12] or "closed"] += 1
            except (TimeoutError, OSError):
                self.tally["cut"] += 1
            writer.close()
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.5))

    async def _end(self, reader: asyncio.StreamReader) -> bytes:
        """Waits for the end without reading: what comes stays in buffers."""
        while not reader.at_eof() and time.monotonic() < self._until_s:
            await asyncio.sleep(PAUSE_S / 2)
            if reader.exception() is not None:
                break
        return b""


async def flood(address: str, token: str, seconds: float, connections: int, calls: int, streams: int) -> Counter[str]:
    """Everything at the same time."""
    found = WebFlood(address, token, time.monotonic() + seconds)
    tasks = []
    for number in range(max(connections, calls, streams)):
        tasks += [asyncio.create_task(found.half_open())] if number < connections else []
        tasks += [asyncio.create_task(found.waiting())] if number < calls else []
        tasks += [asyncio.create_task(found.unread())] if number < streams else []
        if not number % OPENED_AT_ONCE:
            await asyncio.sleep(0.0)
    await asyncio.wait(tasks, timeout=seconds + 10.0)
    return found.tally


if __name__ == "__main__":
    address, token, seconds, *counts = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(flood(address, token, float(seconds), *map(int, counts)))))
