"""JobService: gRPC on loopback for jobs that cannot use the lease files, which LeaseIterator reads and writes.

A job authenticates by the token in its environment and can access its own lease only.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable
from typing import Any, Final

import grpc
import grpc.aio

from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.registry import LeaseRegistry
from gavelpy.runtime.lease_files import PROGRESS_NUMBERS, STEPS_MAX, Progress, clock_s
from gavelpy.runtime.wire import job_pb2, job_pb2_grpc

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
WAIT_S_MAX: Final = 60.0
MESSAGE_BYTES_MAX: Final = 64 << 10
CALLS_MAX: Final = 1_000
_POLL_S = 0.05
_BEARER = "Bearer "
Context = grpc.aio.ServicerContext[Any, Any]  # of any messages


class JobServiceServicer(job_pb2_grpc.JobServiceServicer):
    """Serves the jobs of a registry's leases."""

    def __init__(self, registry: LeaseRegistry) -> None:
        self._registry = registry

    async def GetLease(  # noqa: N802 the protocol's name
        self, request: job_pb2.GetLeaseRequest, context: Context
    ) -> job_pb2.GetLeaseResponse:
        """The lease, at once or when it differs from `version_seen`."""
        folder = await self._folder(context)
        if not math.isfinite(request.wait_s) or not 0 <= request.wait_s <= WAIT_S_MAX:
            await _refuse(context, f"wait_s must be in [0, {WAIT_S_MAX:g}], got {request.wait_s!r}")
        deadline_s = clock_s() + request.wait_s
        while folder.orders.version == request.version_seen and folder.end is None and clock_s() < deadline_s:
            await asyncio.sleep(min(_POLL_S, max(0.0, deadline_s - clock_s())))
        orders = folder.orders
        return job_pb2.GetLeaseResponse(
            version=orders.version,
            remaining_s=max(0.0, orders.until_clock_s - clock_s()),
            should_stop=_should_stop(folder),
            steps_max=orders.steps_max,
            steps_saved=orders.steps_saved,
        )

    async def ReportProgress(  # noqa: N802 the protocol's name
        self,
        request: job_pb2.ReportProgressRequest,
        context: Context,
    ) -> job_pb2.ReportProgressResponse:
        """Writes the progress of a rank; refused after the lease and its grace."""
        folder = await self._folder(context)
        error = _error_in(request, folder)
        if error:
            await _refuse(context, error)
        grace_s = folder.assignment.grace_s if folder.assignment else 0.0
        if folder.is_over or folder.orders.kill or clock_s() > folder.orders.until_clock_s + grace_s:
            await _refuse(context, f"lease {folder.lease} is over", grpc.StatusCode.FAILED_PRECONDITION)
        should_stop = _should_stop(folder)
        progress = Progress(
            steps_done=request.steps_done,
            steps_saved=request.steps_saved,
            rate_steps_per_s=request.rate_steps_per_s,
            finished=request.finished,
            saves_at_end=request.saves_at_end,
            steps_total=request.steps_total,
            gpu_memory_gib=request.gpu_memory_gib,
            stopped=should_stop and request.steps_saved >= request.steps_done,
        )
        try:
            folder.write_progress(request.local_rank, progress)
        except OSError as error:
            why = f"the report cannot be stored: {error.strerror}"
            await _refuse(context, why, grpc.StatusCode.FAILED_PRECONDITION)
        return job_pb2.ReportProgressResponse(should_stop=should_stop)

    async def _folder(self, context: Context) -> LeaseDirectory:
        metadata = context.invocation_metadata() or ()
        said = next((value for key, value in metadata if key == "authorization"), "")
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        folder = self._registry.by_token(text.removeprefix(_BEARER))
        if folder is None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "authorization must be the GAVEL_JOB_TOKEN of a running job"
            )
        assert folder is not None, "abort raises"
        return folder


async def serve_jobs(registry: LeaseRegistry, port: int) -> tuple[grpc.aio.Server, int]:
    """Serves on a loopback port, or on another if it is in use; 0 = any."""
    server = _server(registry)
    try:
        taken = server.add_insecure_port(f"{HOST}:{port}")
    except RuntimeError:
        logger.warning("port of the job service is in use: running jobs cannot reach it", extra={"port": port})
        server = _server(registry)
        taken = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    return server, taken


def _server(registry: LeaseRegistry) -> grpc.aio.Server:
    options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
    job_pb2_grpc.add_JobServiceServicer_to_server(JobServiceServicer(registry), server)
    return server


def _error_in(request: job_pb2.ReportProgressRequest, folder: LeaseDirectory) -> str:
    """The error in a report; empty = none."""
    ranks = folder.assignment.local_ranks if folder.assignment else 0
    if request.local_rank >= ranks:
        return f"local_rank must be below {ranks}, got {request.local_rank}"
    for name in PROGRESS_NUMBERS:
        value = getattr(request, name)
        if not math.isfinite(value) or not 0 <= value <= STEPS_MAX:
            return f"{name} must be in [0, {STEPS_MAX:g}], got {value!r}"
    if request.steps_saved > request.steps_done:
        return f"steps_saved must be at most steps_done = {request.steps_done:g}, got {request.steps_saved:g}"
    return ""


def _should_stop(folder: LeaseDirectory) -> bool:
    return folder.orders.stop or folder.orders.kill or clock_s() >= folder.orders.until_clock_s


def _refuse(
    context: Context,
    message: str,
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
) -> Awaitable[None]:
    return context.abort(code, message)
