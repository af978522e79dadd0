"""The reads of the gRPC service for clients, which standbys serve too: they need a `SchedulerState` only.

Users see their own jobs, admins all jobs. Objects that a caller may not see are reported as not found. No method blocks
the event loop for long: pages are built in pieces, and forecasts run in a separate process.
"""

# ruff: noqa: N802, ARG002 - gRPC defines names and arguments of the methods

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np

from gavelpy.journal.archive_tables import PastJob
from gavelpy.mechanism.events import NO_INTS
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.engine.forecast_record import ForecastRecord, Keeper
from gavelpy.runtime.daemon.queries.cluster import ClusterQueries
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.fields import number, require, text
from gavelpy.runtime.daemon.queries.job_status import JobStatus, PublicState
from gavelpy.runtime.daemon.queries.jobs import PAGE_DEFAULT, JobQueries
from gavelpy.runtime.daemon.queries.past import merged, status_of
from gavelpy.runtime.daemon.queries.shadow_prices import shadow_prices
from gavelpy.runtime.daemon.queries.state import SchedulerState
from gavelpy.runtime.daemon.queries.usage import usage
from gavelpy.runtime.daemon.rpc.client_messages import (
    STATES,
    cluster_message,
    explanation_message,
    job_fields,
    job_message,
    node_message,
    past_message,
    shadow_prices_message,
    usage_message,
)
from gavelpy.runtime.security.identity import Refusal, caller
from gavelpy.runtime.wire import client_pb2 as pb

logger = logging.getLogger(__name__)
API_VERSIONS = (1,)
WAIT_S_MAX = 60.0
AT_ONCE = 200  # jobs between two yields to the event loop
_LISTED_AT_ONCE = 25  # the same for lists; another call waits for some eight of these pieces

Context = grpc.aio.ServicerContext[Any, Any]


class ReadService:
    """Serves reads of all clients."""

    def __init__(self, state: SchedulerState, keeper: Keeper | None = None) -> None:
        self._state = state
        self._forecaster = Forecaster()
        self._jobs = JobQueries(state)
        self._cluster = ClusterQueries(state, self._jobs)
        self._record = ForecastRecord(state, self._forecaster, keeper)
        self._explainer = Explainer(state, self._jobs, self._forecaster)
        self._past = state.past

    def start(self) -> None:
        """Begins to note forecasts, for their intervals, in a task of the running event loop."""
        self._record.start()

    async def close(self) -> None:
        """Ends forecasts that are running."""
        await self._record.close()
        await self._explainer.close()
        self._forecaster.close()

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Name and version of the server, and the caller's user and role."""
        from gavelpy import __version__

        common = set(API_VERSIONS).intersection(request.api_versions or API_VERSIONS)
        if not common:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"api_versions must hold one of {list(API_VERSIONS)}, got {list(request.api_versions)[:10]}",
            )
        client, scheduler = caller(), self._state
        return pb.GetServerInfoResponse(
            server_version=__version__,
            api_version=max(common),
            cluster_name=scheduler.name,
            cluster_id=scheduler.cluster_id,
            incarnation=scheduler.incarnation,
            user=client.name,
            role=client.role.value,
            snapshot_directory=scheduler.snapshot_directory,
        )

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """A page of jobs in order of their numbers."""
        for code in request.states:
            require(code in STATES, "states", "states of jobs", code)
        states = set(PublicState) if request.all_states else {STATES[code] for code in request.states} or None
        owner, since_s = text("owner", request.owner), request.ended_since_s
        after, size = request.after if request.HasField("after") else -1, request.page_size or PAGE_DEFAULT
        page = self._jobs.page(caller(), owner=owner, states=states, after=after, size=size, ended_since_s=since_s)
        past = []
        if states is not None:
            past = await self._past.page(caller(), owner=owner, states=states, after=after, size=size, since_s=since_s)
        chosen, next_after = merged(page, past, size)
        answer = pb.ListJobsResponse(next_after=next_after)
        async for status in self._statuses(chosen):
            answer.jobs.add(**job_fields(status))  # in place: a copy of thousands takes long
        return answer

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """Explains the state of one job; its owner and admins can request the values of its variables."""
        past = (await self._past.among(caller(), self._jobs, [request.job])).get(request.job)
        job = past.job if past is not None else self._jobs.find(caller(), request.job)
        if request.environment:
            logger.info("environment shown", extra={"job_id": job, "user": caller().name})
        if past is not None:
            return past_message(past, self._state.wall_s(0.0), shows_environment=request.environment)
        return explanation_message(await self._explainer.explain(job, shows_environment=request.environment))

    async def WaitJobs(self, request: pb.WaitJobsRequest, context: Context) -> pb.WaitJobsResponse:
        """Returns the jobs when all are over or the time limit is reached."""
        past, jobs = await self._named(request.jobs)
        wait_s = number("wait_s", request.wait_s)
        require(wait_s <= WAIT_S_MAX, "wait_s", f"at most {WAIT_S_MAX:g}", wait_s)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_s
        while True:
            version = self._state.version
            table = self._state.core.jobs
            here = jobs[table.ids.has(jobs)]
            all_over = bool((table.by_serial.state[here] > ALIVE[-1]).all())
            left_s = ends_s - loop.time()
            if all_over or left_s <= 0:
                found = [*past, *await self._messages(here.tolist())]
                return pb.WaitJobsResponse(jobs=found, all_over=all_over)
            await self._state.wait_changed(version, left_s)

    async def ListNodes(self, request: pb.ListNodesRequest, context: Context) -> pb.ListNodesResponse:
        """All nodes, but those that have been lost for long."""
        nodes = []
        for row in sorted(self._state.core.pool.node_row.values()):
            nodes.append(node_message(self._cluster.node_at(row, caller())))
            await give_way(row)
        return pb.ListNodesResponse(nodes=nodes)

    async def ListReservations(
        self, request: pb.ListReservationsRequest, context: Context
    ) -> pb.ListReservationsResponse:
        """All reservations that are not over."""
        return pb.ListReservationsResponse(reservations=self._reservations())

    async def GetCluster(self, request: pb.GetClusterRequest, context: Context) -> pb.GetClusterResponse:
        """Policy, round, GPUs and jobs in numbers."""
        return cluster_message(self._cluster.cluster())

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        """GPU time of the caller's jobs, for admins of all jobs, by owner, entity and GPU type."""
        owner = text("owner", request.owner)
        return usage_message(await usage(self._state, caller(), since_s=request.since_s, owner=owner))

    async def GetShadowPrices(self, request: pb.GetShadowPricesRequest, context: Context) -> pb.GetShadowPricesResponse:
        """Marginal values of GPUs and other resources by hour."""
        return shadow_prices_message(shadow_prices(self._state, request.since_s, request.until_s))

    def _reservations(self) -> list[pb.Reservation]:
        return [pb.Reservation(**vars(status)) for status in self._cluster.reservations()]

    async def _named(self, names: Sequence[str]) -> tuple[list[pb.Job], Ints]:
        """Jobs without duplicates, in order: messages of past ones, and the numbers of others. Raises NotFound."""
        past = await self._past.among(caller(), self._jobs, names)
        others = [name for name in names if name not in past]
        here = self._jobs.named(caller(), others) if others or not past else NO_INTS
        return await self._messages(list({job.job: job for job in past.values()}.values())), here

    async def _messages(self, jobs: Sequence[int | PastJob]) -> list[pb.Job]:
        return [job_message(status) async for status in self._statuses(jobs)]

    async def _statuses(self, jobs: Sequence[int | PastJob]) -> AsyncIterator[JobStatus]:
        """In pieces by serial, with a yield to the event loop after each. Past jobs are as they were in the end."""
        for first in range(0, len(jobs), _LISTED_AT_ONCE):
            part = jobs[first : first + _LISTED_AT_ONCE]
            here = np.array([job for job in part if isinstance(job, int)], dtype=np.int64)
            here = here[self._state.core.jobs.ids.has(here)]  # others have left meanwhile
            status = {one.job: one for one in self._jobs.statuses(here)}
            status |= {job.job: status_of(job) for job in part if isinstance(job, PastJob)}
            for job in sorted(status):
                yield status[job]
            await asyncio.sleep(0)


async def give_way(row: int) -> None:
    """Yields to the event loop from time to time, within a loop over many rows."""
    if row % AT_ONCE == AT_ONCE - 1:
        await asyncio.sleep(0)
