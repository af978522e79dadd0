"""Prometheus metrics of the scheduler, and the HTTP server for them and for health checks, on loopback.

Jobs are no labels, because their number is unbounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gavelpy import __version__
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import journal_name
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import JobState, NodeState

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_NAMES = {"commit": "journal_commit", "plan": "round_planning"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class SchedulerMetrics:
    """Metrics in their own registry, so that two schedulers in one process are independent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build = Gauge("gavel_build_info", "Version of the scheduler.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        self.jobs = Gauge("gavel_jobs", "Jobs by state.", ["state"], registry=self.registry)
        self.gpus = Gauge("gavel_gpus", "GPUs on nodes that are up, by type.", ["gpu_type"], registry=self.registry)
        self.gpus_in_use = Gauge(
            "gavel_gpus_in_use", "GPUs under lease, by type.", ["gpu_type"], registry=self.registry
        )
        self.nodes = Gauge("gavel_nodes", "Nodes by state.", ["state"], registry=self.registry)
        self.leases = Gauge("gavel_leases", "Leases without an end in the journal.", registry=self.registry)
        self.round = Gauge("gavel_round", "Number of the round.", registry=self.registry)
        self.engine_restarts = Gauge("gavel_engine_restarts", "Times the engine's process was started again.",
                                     registry=self.registry)  # fmt: skip
        self.events = Counter("gavel_events", "Events applied, by kind.", ["kind"], registry=self.registry)
        self._of_kind: dict[type[Event], Counter] = {}
        self.heartbeats = Counter("gavel_heartbeats", "Messages of agents.", registry=self.registry)
        texts = {
            "commit": "Time to write a batch of events to the journal.",
            "plan": "Time the core and the lease table took over one wakeup.",
            "solve": "Time from a request to the engine's answer.",
            "snapshot": "Time to write a snapshot.",
        }
        self._seconds = {
            what: Histogram(f"gavel_{_NAMES.get(what, what)}_seconds", text, buckets=_SECONDS, registry=self.registry)
            for what, text in texts.items()
        }

    def measured(self, what: str, seconds: float) -> None:
        """Records the duration of a commit, plan, solve or snapshot."""
        self._seconds[what].observe(seconds)

    def count_event(self, event: Event) -> None:
        """An event was applied."""
        kind = type(event)
        if kind not in self._of_kind:
            self._of_kind[kind] = self.events.labels(journal_name(event))
        self._of_kind[kind].inc()

    def read(self, core: SchedulerCore, leases: int, engine_restarts: int) -> bytes:
        """The metrics in Prometheus' text format."""
        jobs, pool = core.jobs, core.pool
        states = np.bincount(jobs.state[: jobs.count], minlength=len(JobState)).tolist()
        for state, count in zip(JobState, states, strict=True):
            self.jobs.labels(state.name.lower()).set(count)
        in_use = np.bincount(pool.type_of[pool.job != NONE], minlength=len(pool.gpu_types)).tolist()
        for gpu_type, count, used in zip(pool.gpu_types, pool.counts.tolist(), in_use, strict=True):
            self.gpus.labels(gpu_type).set(count)
            self.gpus_in_use.labels(gpu_type).set(used)
        for node_state in NodeState:
            self.nodes.labels(node_state.name.lower()).set(pool.node_state.count(node_state))
        self.nodes.labels("silent").set(sum(pool.node_unreachable))
        self.leases.set(leases)
        self.round.set(core.round)
        self.engine_restarts.set(engine_restarts)
        return generate_latest(self.registry)


class HttpServer:
    """Listens from `start` to `stop`. It imports aiohttp when it is made, which takes longer than recovery."""

    def __init__(self, scheduler: Scheduler) -> None:
        from aiohttp import web

        async def metrics(_: web.Request) -> web.Response:
            text = scheduler.metrics.read(scheduler.core, len(scheduler.leases.leases), scheduler.engine.restarts)
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

        async def process_is_alive(_: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def journal_was_read(_: web.Request) -> web.Response:
            if scheduler.is_ready.is_set():
                return web.Response(text="ok\n")
            return web.Response(text="reading the journal\n", status=503)

        application = web.Application(client_max_size=1 << 16)
        application.add_routes(
            [
                web.get("/metrics", metrics),
                web.get("/healthz", process_is_alive),
                web.get("/readyz", journal_was_read),
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
