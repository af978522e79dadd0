"""HTTP server for Prometheus metrics and health checks, on loopback."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gavelpy.errors import InvalidInput
from gavelpy.runtime.daemon.scheduler import Scheduler


class HttpServer:
    """Listens from `start` to `stop`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        application = web.Application(client_max_size=1 << 16)
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, listen: str) -> int:
        """Opens HOST:PORT or unix:PATH and returns the port (0 for a path)."""
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

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002 a handler's
        scheduler = self._scheduler
        text = scheduler.metrics.read(scheduler.core, len(scheduler.leases.leases), scheduler.engine.restarts)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, request: web.Request) -> web.Response:  # noqa: ARG002 a handler's
        """Whether the process is alive."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:  # noqa: ARG002 a handler's
        """Whether the journal was read and is written."""
        is_ready = self._scheduler.is_ready.is_set()
        return web.Response(text="ok\n" if is_ready else "reading the journal\n", status=200 if is_ready else 503)
