"""The HTTP server for metrics and health checks, on loopback.

`/healthz`: the process lives. `/readyz`: it leads a cluster; a standby answers 503 with the address of the leader.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST

from gavelpy.runtime.daemon.listening import port_of


class HttpServer:
    """Listens from `start` to `stop`. It imports aiohttp when it is made, which takes longer than recovery."""

    def __init__(self, metrics: Callable[[], bytes], unready: Callable[[], str]) -> None:
        """`metrics`: in Prometheus' text format. `unready`: why it is not ready, "" = it is."""
        from aiohttp import web

        async def scrape(_: web.Request) -> web.Response:
            return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

        async def process_is_alive(_: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def is_ready(_: web.Request) -> web.Response:
            if why := unready():
                return web.Response(text=f"{why}\n", status=503)
            return web.Response(text="ok\n")

        application = web.Application(client_max_size=1 << 16)
        application.add_routes(
            [
                web.get("/metrics", scrape),
                web.get("/healthz", process_is_alive),
                web.get("/readyz", is_ready),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, sockets: Sequence[socket.socket]) -> int:
        """Takes connections from listening sockets, which it closes in `stop`; returns the port (0 for a path)."""
        from aiohttp import web

        port = port_of(sockets)
        await self._runner.setup()
        for one in sockets:
            await web.SockSite(self._runner, one).start()
        return port

    async def stop(self) -> None:
        """Closes the port."""
        await self._runner.cleanup()
