"""The HTTP server for metrics and health checks, on loopback.

`/healthz`: the process lives. `/readyz`: it leads a cluster; a standby answers 503 with the address of the leader.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST

from gavelpy.errors import InvalidInput


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

    async def start(self, listen: str) -> int:
        """Opens HOST:PORT or unix:PATH and returns the port (0 for a path)."""
        from aiohttp import web

        await self._runner.setup()
        site: web.BaseSite
        if listen.startswith("unix:"):
            site = web.UnixSite(self._runner, listen.removeprefix("unix:"))
        else:
            host, _, port = listen.rpartition(":")
            site = web.TCPSite(self._runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise InvalidInput(f"http_listen = {listen!r} cannot be opened: {error.strerror}") from None
        address = self._runner.addresses[0]
        return int(address[1]) if isinstance(address, tuple) else 0

    async def stop(self) -> None:
        """Closes the port."""
        await self._runner.cleanup()
