"""The client of a scheduler: each call has a deadline and is retried, with growing pauses, while there is no answer.

Retries are safe: a submission carries an idempotency key, and every other call states a target, not a change.
"""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from gavelpy.errors import CallFailed, GavelError, InvalidInput, NotAllowed, NotFound, SchedulerUnreachable
from gavelpy.runtime.addresses import SILENT_S, are_loopback
from gavelpy.runtime.client.channels import SchedulerChannels
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.security.exposure import PUSHBACK
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc, log_pb2

API_VERSIONS = (1,)
OVER = (pb.JOB_STATE_FINISHED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_FAILED)
CALLS_MAX = 900  # concurrent, on one connection; the scheduler accepts 1,000
_ATTEMPT_S = 10.0
_FIRST_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
_PAGE = 2_000  # jobs: the scheduler fills a page well within an attempt and serves other calls between pages
_FORECAST_S = 60.0  # a forecast may take this long, including its wait for earlier ones

_UNREACHABLE = (  # the last one: the scheduler stopped during the call
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in gRPC's description of a failed handshake
_NOT_ALLOWED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_BAD_INPUT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.OUT_OF_RANGE)

Response = TypeVar("Response")
Stub = Callable[..., Any]  # a method of the generated stub


def is_over(job: pb.Job) -> bool:
    """Whether the job has finished, failed or been cancelled."""
    return job.state in OVER


class Client:
    """Close it, or use it in a `with`. Methods raise SchedulerUnreachable, NotAllowed, CallFailed and InvalidInput."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._metadata = _metadata(settings)
        self._channel = SchedulerChannels(settings)
        self._calls = CallLimit()
        self._stub = client_pb2_grpc.SchedulerServiceStub(self._channel)
        self._notify: Callable[[str], None] | None = None  # set: calls wait through outages
        self._is_away = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def wait_through_outages(self, notify: Callable[[str], None]) -> None:
        """Makes later calls wait while the scheduler is unreachable; `notify` reports start and end of each outage.

        The scheduler must answer now, so that a wrong address is an error.
        """
        self.server_info()
        self._notify = notify

    def server_info(self) -> pb.GetServerInfoResponse:
        """The server's version and the caller's identity; raises CallFailed if there is no common API version."""
        from gavelpy import __version__

        request = pb.GetServerInfoRequest(client_version=__version__, api_versions=API_VERSIONS)
        answer: pb.GetServerInfoResponse = self._call(self._stub.GetServerInfo, request)
        if answer.api_version not in API_VERSIONS:
            raise CallFailed(
                f"the scheduler {answer.server_version} needs version {answer.api_version} of the protocol, and this "
                f"client ({__version__}) has {API_VERSIONS[-1]}: upgrade the older of the two"
            )
        return answer

    def submit(
        self, jobs: Sequence[pb.JobDescription], *, key: str = "", dry_run: bool = False
    ) -> pb.SubmitJobsResponse:
        """Submits all of the jobs or none. A repeated `key` with the same jobs creates no duplicates."""
        request = pb.SubmitJobsRequest(idempotency_key=key or str(uuid.uuid4()), jobs=jobs, dry_run=dry_run)
        return self._called(self._stub.SubmitJobs, request, pb.SubmitJobsResponse, _FORECAST_S if dry_run else 0.0)

    def jobs(
        self,
        *,
        states: Sequence[pb.JobState.ValueType] = (),
        all_states: bool = False,
        owner: str = "",
        ended_since_s: float = 0.0,
    ) -> list[pb.Job]:
        """The caller's unfinished jobs, or those selected, by number. Admins see the jobs of all users.

        With `ended_since_s`, a Unix time, none of the jobs that ended before.
        """
        found: list[pb.Job] = []
        after = -1
        while True:
            request = pb.ListJobsRequest(
                states=states, all_states=all_states, owner=owner, page_size=_PAGE, after=after,
                ended_since_s=ended_since_s,
            )  # fmt: skip
            page = self._called(self._stub.ListJobs, request, pb.ListJobsResponse)
            found.extend(page.jobs)
            if page.next_after < 0:
                return found
            after = page.next_after

    def job(self, job: str, *, environment: bool = False) -> pb.GetJobResponse:
        """One job in detail, by number or name; `environment`: with the values of its variables."""
        request = pb.GetJobRequest(job=job, environment=environment)
        return self._called(self._stub.GetJob, request, pb.GetJobResponse, _FORECAST_S)

    def wait(self, jobs: Sequence[str], *, wait_s: float, ends_s: float = math.inf) -> pb.WaitJobsResponse:
        """Returns when all jobs are over, or after `wait_s` (at most 60).

        Waits through outages until `ends_s` (of time.monotonic()), then raises SchedulerUnreachable.
        """
        request = pb.WaitJobsRequest(jobs=jobs, wait_s=wait_s)
        return self._called(self._stub.WaitJobs, request, pb.WaitJobsResponse, extra_s=wait_s, outage_ends_s=ends_s)

    def cancel(self, jobs: Sequence[str]) -> list[pb.Job]:
        """Cancels the jobs and returns them."""
        request = pb.CancelJobsRequest(jobs=jobs)
        return list(self._called(self._stub.CancelJobs, request, pb.CancelJobsResponse).jobs)

    def reserve(self, reservation: pb.Reservation, *, force: bool = False) -> pb.ReserveNodesResponse:
        """Reserves nodes, or replaces the reservation of this name; `force`: although jobs of others may stay there."""
        request = pb.ReserveNodesRequest(reservation=reservation, force=force)
        return self._called(self._stub.ReserveNodes, request, pb.ReserveNodesResponse)

    def delete_reservation(self, name: str) -> list[pb.Reservation]:
        """Deletes a reservation; returns those that are left."""
        request = pb.DeleteReservationRequest(name=name)
        return list(self._called(self._stub.DeleteReservation, request, pb.DeleteReservationResponse).reservations)

    def reservations(self) -> list[pb.Reservation]:
        """The reservations that are not over, by begin."""
        request = pb.ListReservationsRequest()
        return list(self._called(self._stub.ListReservations, request, pb.ListReservationsResponse).reservations)

    def change_jobs(
        self, jobs: Sequence[str], change: pb.JobChange.ValueType, *, force: bool = False, priority: str = ""
    ) -> list[pb.ChangedJob]:
        """Holds, releases or requeues the jobs, or changes their class, and returns them with notes on the effect."""
        request = pb.ChangeJobsRequest(jobs=jobs, change=change, force=force, priority=priority)
        return list(self._called(self._stub.ChangeJobs, request, pb.ChangeJobsResponse).jobs)

    def nodes(self) -> list[pb.NodeStatus]:
        """All nodes that ever joined."""
        return list(self._called(self._stub.ListNodes, pb.ListNodesRequest(), pb.ListNodesResponse).nodes)

    def set_node(self, node_id: str, wish: pb.NodeWish.ValueType, *, force: bool = False) -> pb.NodeStatus:
        """Drains, resumes or declares a node lost, and returns it."""
        request = pb.SetNodeRequest(node_id=node_id, wish=wish, force=force)
        return self._called(self._stub.SetNode, request, pb.SetNodeResponse).node

    def cluster(self) -> pb.GetClusterResponse:
        """Policy, round, GPUs and job counts."""
        return self._called(self._stub.GetCluster, pb.GetClusterRequest(), pb.GetClusterResponse)

    def usage(self, *, since_s: float = 0.0, owner: str = "") -> pb.GetUsageResponse:
        """GPU time by owner, entity and GPU type since a Unix time; admins see all owners."""
        request = pb.GetUsageRequest(since_s=since_s, owner=owner)
        return self._called(self._stub.GetUsage, request, pb.GetUsageResponse)

    def set_policy(self, *, policy: str = "", parameters: str = "", round_s: float = 0.0) -> pb.GetClusterResponse:
        """Changes the policy or round length and returns the cluster; an empty or 0 argument changes nothing."""
        request = pb.SetPolicyRequest(policy=policy, policy_parameters=parameters, round_s=round_s)
        return self._called(self._stub.SetPolicy, request, pb.SetPolicyResponse).cluster

    def events(
        self, *, after: int = 0, follow: bool = False, events_max: int = 0, job: str = ""
    ) -> Iterator[pb.ListEventsResponse]:
        """Events of the journal in order. With `follow`, continues after an outage where it stopped."""
        request = pb.ListEventsRequest(after=after, follow=follow, events_max=events_max, job=job)

        def move_past(event: pb.ListEventsResponse) -> None:
            request.after = event.sequence
            request.events_max = max(request.events_max - 1, 0)

        return self._stream(self._stub.ListEvents, request, move_past)

    def logs(self, request: pb.ReadLogsRequest) -> Iterator[pb.ReadLogsResponse]:
        """Batches of lines, and notices. With `follow`, continues without a gap after an outage."""
        remaining = pb.ReadLogsRequest()
        remaining.CopyFrom(request)
        remaining.batches = True
        for message in self._stream(self._stub.ReadLogs, remaining, partial(_move_past, remaining)):
            yield _as_batch(message, remaining)

    def tunnel(self, requests: Iterator[pb.OpenTunnelRequest]) -> Iterator[pb.OpenTunnelResponse]:
        """The messages of a tunnel to a job; the first request names it, and the first message has no data.

        Not continued after an outage. Raises CallFailed, also when the job does not run or listen.
        """
        with self._calls.slot():
            call = self._stub.OpenTunnel(requests, metadata=tuple(self._metadata))
            try:
                yield from call
            except grpc.RpcError as error:
                raise error_of(*_status(error), self.settings.scheduler) from None
            finally:
                call.cancel()  # type: ignore[no-untyped-call]  # of a library without this type

    def _stream(self, method: Stub, request: Any, move_past: Callable[[Any], None]) -> Iterator[Any]:
        """A stream's messages. After each, `move_past` changes the request so that its answer continues there.

        A stream that follows has no deadline, because the reader ends it, and continues after an outage.
        """
        while True:
            timeout_s = None if request.follow else max(self.settings.timeout_s, 60.0) * 10
            try:
                with self._calls.slot():
                    for message in method(request, timeout=timeout_s, metadata=self._metadata):
                        yield message
                        move_past(message)
            except grpc.RpcError as error:
                code, detail = _status(error)
                if not (request.follow and is_transient(code)):
                    raise error_of(code, detail, self.settings.scheduler) from None
                self.server_info()  # waits for the scheduler as long as any call
            else:
                return

    def _called(
        self,
        method: Stub,
        request: Any,
        kind: type[Response],
        extra_s: float = 0.0,
        *,
        outage_ends_s: float = math.inf,
    ) -> Response:
        answer = self._call(method, request, extra_s, outage_ends_s)
        assert isinstance(answer, kind), f"{type(answer).__name__} for {kind.__name__}"
        return answer

    def _call(self, method: Stub, request: Any, extra_s: float = 0.0, outage_ends_s: float = math.inf) -> Any:
        """One answer; `extra_s` is how long the scheduler may deliberately wait before it answers."""
        patience_s = self.settings.timeout_s
        attempt_s = SILENT_S if self._channel.turns.are_several else _ATTEMPT_S
        ends_s, pause_s = math.inf, _FIRST_PAUSE_S  # no end until the first failure
        while True:
            began_s = time.monotonic()
            timeout_s = min(patience_s, attempt_s, ends_s - began_s) + extra_s
            try:
                with self._calls.slot():
                    answer = method(request, timeout=timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                code, detail = _status(error)
                wait_s = _wait_s(error)
                failed_s = began_s + extra_s if code is grpc.StatusCode.DEADLINE_EXCEEDED else time.monotonic()
                ends_s = min(ends_s, failed_s + patience_s)
                if self._notify is not None and is_transient(code):
                    ends_s = max(outage_ends_s, failed_s)
                    self._outage_begins(str(error_of(code, detail, self.settings.scheduler)))
                if not (is_transient(code) or wait_s) or time.monotonic() + max(pause_s, wait_s) >= ends_s:
                    raise error_of(code, detail, self.settings.scheduler) from None
            else:
                self._channel.turns.answered()
                self._outage_ends()
                return answer
            if wait_s:
                time.sleep(wait_s * random.uniform(1.0, 1.5))
            elif self._channel.turns.failed():
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _outage_begins(self, why: str) -> None:
        if self._notify is not None and not self._is_away:
            self._notify(f"{why}; waiting for it")
        self._is_away = True

    def _outage_ends(self) -> None:
        if self._notify is not None and self._is_away:
            self._notify("the scheduler answers again")
        self._is_away = False


class CallLimit:
    """Bounds the concurrent calls of one connection, over all threads: beyond its limit gRPC queues them silently."""

    def __init__(self, calls_max: int = CALLS_MAX) -> None:
        self._calls_max, self._count = calls_max, 0
        self._lock = threading.Lock()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Counts a call while it lasts; raises CallFailed if there are as many as the connection allows."""
        with self._lock:
            if self._count >= self._calls_max:
                raise CallFailed(
                    f"this client has {self._count} open calls and streams, the most that one connection allows: close "
                    "some of them, or open another Client"
                )
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1


def is_transient(code: grpc.StatusCode) -> bool:
    """Whether the same call may succeed a moment later."""
    return code in _UNREACHABLE


def error_of(code: grpc.StatusCode, detail: str, scheduler: str) -> GavelError:
    """The exception for the status of a failed call."""
    if code in _UNREACHABLE and _UNTRUSTED in detail:
        return SchedulerUnreachable(
            f"the certificate of the scheduler at {scheduler} is not trusted: check that tls_ca (GAVEL_TLS_CA) names "
            "the authority that signed it, and that it is issued for this host name and still valid"
        )
    if code in _UNREACHABLE:
        return SchedulerUnreachable(f"the scheduler at {scheduler} does not answer ({_brief(detail)})")
    if code in _NOT_ALLOWED:
        return NotAllowed(f"not allowed: {detail}")
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(detail)
    if code in _BAD_INPUT:
        return InvalidInput(detail)
    return CallFailed(f"the scheduler at {scheduler} answers {code.name}: {detail}")


def _brief(detail: str) -> str:
    """gRPC's description of a failed connection, without the addresses it repeats."""
    return detail.rpartition("; last error: ")[2][:200] or "no reason given"


def _status(error: Any) -> tuple[grpc.StatusCode, str]:  # Any: an RpcError that is also a Call, which has no type
    return error.code(), error.details() or ""


def _wait_s(error: Any) -> float:  # Any: as above
    """How long a caller above its limits must wait, by the scheduler's answer; 0 = unknown."""
    given = dict(error.trailing_metadata() or ()).get(PUSHBACK, "")
    return int(given) / 1_000 if given.isdecimal() else 0.0


def _metadata(settings: ClientSettings) -> list[tuple[str, str]]:
    secret = settings.secret
    if secret and not settings.tls_ca and not are_loopback(settings.scheduler):
        raise InvalidInput(
            f"a token is sent over a network only with TLS: set tls_ca (GAVEL_TLS_CA) for {settings.scheduler!r}"
        )
    return [("authorization", f"Bearer {secret}")] if secret else []


def _as_batch(message: pb.ReadLogsResponse, request: pb.ReadLogsRequest) -> pb.ReadLogsResponse:
    """A batch or a notice; the single line of a scheduler that does not support batches becomes a batch."""
    if message.notice or message.HasField("batch"):
        return message
    if request.after:
        raise CallFailed("the scheduler was replaced by an older version, which cannot continue an interrupted log")
    origin = log_pb2.LogOrigin(
        job=message.job,
        job_name=message.job_name,
        lease=message.lease,
        rank=message.rank,
        is_error_stream=message.is_error_stream,
        node_id=message.node_id,
    )
    batch = log_pb2.LogBatch(origins=[origin], origin=[0], time_s=[message.time_s], text=[message.text])
    return pb.ReadLogsResponse(batch=batch)


def _move_past(request: pb.ReadLogsRequest, message: pb.ReadLogsResponse) -> None:
    """Changes a request so that its answer continues after a message."""
    if message.positions:
        request.after.update(message.positions)
        request.tail_lines = 0
    elif not message.notice and not message.HasField("batch"):
        request.follow = False  # without positions an interrupted log cannot be continued
    if request.job and message.batch.origins:
        request.job = str(message.batch.origins[0].job)  # by then the name may belong to another job
