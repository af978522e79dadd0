"""The client of a scheduler: each call has a deadline and is retried, with growing pauses, while there is no answer.

Retries are safe: a submission carries an idempotency key, and every other call states a target, not a change.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import grpc

from gavelpy.errors import CallFailed, InvalidInput
from gavelpy.runtime.addresses import (
    SILENT_S,
    STALE_AGE_MS,
    STALE_LEADER,
    STALE_OK,
    STALE_SEQUENCE,
    are_loopback,
)
from gavelpy.runtime.client.channels import SchedulerChannels
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.client.statuses import CallLimit, error_of, is_transient, status_of, wait_s_of
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc, log_pb2

API_VERSIONS = (1,)
OVER = (pb.JOB_STATE_FINISHED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_FAILED)
_ATTEMPT_S = 10.0
_FIRST_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
_PAGE = 2_000  # jobs: the scheduler fills a page well within an attempt and serves other calls between pages
_STALE_S = 10.0  # after a standby has answered, before the leader is tried again
_FORECAST_S = 60.0  # a forecast may take this long, including its wait for earlier ones


Response = TypeVar("Response")
Stub = Callable[..., Any]  # a method of the generated stub


def is_over(job: pb.Job) -> bool:
    """Whether the job has finished, failed or been cancelled."""
    return job.state in OVER


class StaleAnswer(NamedTuple):
    """Where an answer comes from that is not of the leader, and how current it is."""

    scheduler: str  # the standby
    leader: str  # empty = none leads
    sequence: int  # of the last event of the journal that the answer includes
    age_s: float  # later events, if there are any, are not older


class Client:
    """Close it, or use it in a `with`. Methods raise SchedulerUnreachable, NotAllowed, CallFailed and InvalidInput.

    With `stale_ok` reads are answered by a standby if no leader answers; `stale` is then of the last answer.
    """

    def __init__(self, settings: ClientSettings, *, stale_ok: bool = False) -> None:
        self.settings = settings
        self.stale_ok = stale_ok
        self.stale: StaleAnswer | None = None  # None = of the leader
        self._stale_until_s = -math.inf
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
        after, oldest = -1, None
        while True:
            request = pb.ListJobsRequest(
                states=states, all_states=all_states, owner=owner, page_size=_PAGE, after=after,
                ended_since_s=ended_since_s,
            )  # fmt: skip
            page = self._called(self._stub.ListJobs, request, pb.ListJobsResponse)
            found.extend(page.jobs)
            oldest = oldest or self.stale
            if page.next_after < 0:
                self.stale = oldest
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

    def cancel_app(self, app: str) -> pb.CancelAppResponse:
        """Cancels all jobs of an app that are not over, in one act."""
        return self._called(self._stub.CancelApp, pb.CancelAppRequest(app=app), pb.CancelAppResponse)

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

    def shadow_prices(self, *, since_s: float = 0.0, until_s: float = 0.0) -> list[pb.ShadowPriceRow]:
        """Marginal values of GPUs and other resources by hour, between two Unix times; 0 = the first, now."""
        request = pb.GetShadowPricesRequest(since_s=since_s, until_s=until_s)
        return list(self._called(self._stub.GetShadowPrices, request, pb.GetShadowPricesResponse).rows)

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
                raise error_of(*status_of(error), self.settings.scheduler) from None
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
                code, detail = status_of(error)
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
        """One answer; `extra_s` is how long the scheduler may deliberately wait before it answers.

        An attempt that the end of the client's patience cut short shows nothing: the error is then the one before it.
        """
        patience_s = self.settings.timeout_s
        attempt_s = SILENT_S if self._channel.turns.are_several else _ATTEMPT_S
        if self.stale_ok:
            attempt_s = min(attempt_s, patience_s / (1 + len(self._channel.turns.all)))
        ends_s, pause_s = math.inf, _FIRST_PAUSE_S  # no end until the first failure
        before: tuple[grpc.StatusCode, str] | None = None  # the failure of the attempt before
        takes_stale = self.stale_ok and time.monotonic() < self._stale_until_s
        while True:
            began_s = time.monotonic()
            left_s = (ends_s if self._notify is None else max(ends_s, outage_ends_s)) - began_s
            timeout_s = min(patience_s, attempt_s, left_s) + extra_s
            try:
                with self._calls.slot():
                    answer = self._attempt(method, request, timeout_s, takes_stale=takes_stale)
            except grpc.RpcError as error:
                code, detail = status_of(error)
                if before and code is grpc.StatusCode.DEADLINE_EXCEEDED and left_s < min(patience_s, attempt_s):
                    raise error_of(*before, self.settings.scheduler) from None
                before = code, detail
                wait_s = wait_s_of(error) * random.uniform(1.0, 1.5)
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
                time.sleep(wait_s)
            elif self._channel.turns.failed():
                if self.stale_ok and not takes_stale:
                    takes_stale = True
                    continue
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _attempt(self, method: Stub, request: Any, timeout_s: float, *, takes_stale: bool) -> Any:
        if not takes_stale:
            answer = method(request, timeout=timeout_s, metadata=self._metadata)
            self.stale = None
            return answer
        metadata = [*self._metadata, (STALE_OK, "1")]
        answer, call = method.with_call(request, timeout=timeout_s, metadata=metadata)  # type: ignore[attr-defined]  # of `_InTurn`
        found = dict(call.trailing_metadata() or ())
        self.stale = None
        if STALE_SEQUENCE in found:
            age_s = int(found[STALE_AGE_MS]) / 1_000
            self.stale = StaleAnswer(
                self._channel.turns.current, found[STALE_LEADER], int(found[STALE_SEQUENCE]), age_s
            )
        self._stale_until_s = time.monotonic() + _STALE_S if self.stale is not None else -math.inf
        return answer

    def _outage_begins(self, why: str) -> None:
        if self._notify is not None and not self._is_away:
            self._notify(f"{why}; waiting for it")
        self._is_away = True

    def _outage_ends(self) -> None:
        if self._notify is not None and self._is_away:
            self._notify("the scheduler answers again")
        self._is_away = False


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
