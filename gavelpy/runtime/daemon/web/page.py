"""The web page of one scheduler, from `start` to `stop`: queries, routes and samples.

Forecasts for the page run in a process of their own, so that they do not delay those of `gavel explain`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.scheduler import Scheduler
from gavelpy.runtime.daemon.web.access import Access
from gavelpy.runtime.daemon.web.actions import Actions
from gavelpy.runtime.daemon.web.reads import Reads
from gavelpy.runtime.daemon.web.samples import Samples
from gavelpy.runtime.daemon.web.server import WebServer
from gavelpy.runtime.daemon.web.streams import Streams
from gavelpy.runtime.daemon.web.what_if import WhatIf

logger = logging.getLogger(__name__)


class WebPage:
    """Serves a scheduler that is ready. It imports aiohttp, so it is imported when it is needed."""

    def __init__(self, scheduler: Scheduler) -> None:
        config, jobs = scheduler.config, JobQueries(scheduler)
        self._forecaster = Forecaster()
        self._explainer = Explainer(scheduler, jobs, self._forecaster)
        self._samples = Samples(scheduler)
        access = Access(config)
        reads = Reads(scheduler, jobs, self._explainer, self._samples)
        actions, streams = Actions(scheduler, jobs, reads.cluster), Streams(scheduler, jobs, reads)
        what_if = WhatIf(scheduler, jobs, self._forecaster)
        routes = [route for room in (reads, actions, streams, what_if) for route in room.routes(access)]
        self._server = WebServer(config, routes)
        self._sampling: asyncio.Task[None] | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> int:
        """Takes connections from listening sockets, which it closes in `stop`; returns the port (0 for a path)."""
        port = await self._server.start(sockets)
        self._sampling = asyncio.create_task(self._samples.run())
        self._sampling.add_done_callback(_raised)
        return port

    async def stop(self) -> None:
        """Closes the port, and ends streams and forecasts."""
        if self._sampling is not None:
            self._sampling.cancel()
        await self._server.stop()
        await self._explainer.close()
        self._forecaster.close()


def _raised(task: asyncio.Task[None]) -> None:
    """Logs why samples ended."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("no more samples for the web page", extra={"detail": repr(error)})
