"""A connection to a scheduler: every call has a deadline and is repeated, with growing pauses, while nobody answers.

Repeating is safe: a submission carries a key that the scheduler keeps, and every other call says what shall be, not
what shall change.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from gavelpy.errors import InvalidInput
from gavelpy.runtime.client.failures import CallFailed
from gavelpy.runtime.client.log_messages import batched, go_on
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.client.statuses import failure_of, is_worth_repeating
from gavelpy.runtime.client.under_way import UnderWay
from gavelpy.runtime.security.exposure import is_loopback, pem_file
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc

API_VERSIONS = (1,)
MESSAGE_BYTES_MAX = 64 * 2**20  # a page of 10,000 jobs has a few MB
_ATTEMPT_S = 10.0
_FIRST_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
_PAGE = 2_000  # jobs: a page is made well within an attempt, and others have their turn between two
_FORECAST_S = 60.0  # a forecast may take this long, after others that were asked for before

Response = TypeVar("Response")
Stub = Callable[..., Any]  # a method of the generated stub


class Client:
    """Close it, or use it in a `with`. Methods raise what `failures` lists."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._metadata = _metadata(settings)
        self._channel = _channel(settings)
        self._under_way = UnderWay()
        self._stub = client_pb2_grpc.SchedulerServiceStub(self._channel)
        self._tell: Callable[[str], None] | None = None  # given: outages are waited for
        self._is_away = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def outlast(self, tell: Callable[[str], None]) -> None:
        """From now on calls wait for as long as the scheduler is away; `tell` is called once when it goes, and comes.

        It must answer now: a wrong address is no outage.
        """
        self.server_info()
        self._tell = tell

    def server_info(self) -> pb.GetServerInfoResponse:
        """Who answers, and whom it takes the caller for; raises CallFailed where no common version is spoken."""
        from gavelpy import __version__

        request = pb.GetServerInfoRequest(client_version=__version__, api_versions=API_VERSIONS)
        answer: pb.GetServerInfoResponse = self._call(self._stub.GetServerInfo, request)
        if answer.api_version not in API_VERSIONS:
            raise CallFailed(
                f"the scheduler {answer.server_version} speaks version {answer.api_version} of the protocol"
            )
        return answer

    def submit(
        self, jobs: Sequence[pb.JobDescription], *, key: str = "", dry_run: bool = False
    ) -> pb.SubmitJobsResponse:
        """All of the jobs or none. The same key and jobs again: the same answer and no new jobs."""
        request = pb.SubmitJobsRequest(idempotency_key=key or str(uuid.uuid4()), jobs=jobs, dry_run=dry_run)
        return self._called(self._stub.SubmitJobs, request, pb.SubmitJobsResponse, _FORECAST_S if dry_run else 0.0)

    def jobs(
        self, *, states: Sequence[pb.JobState.ValueType] = (), all_states: bool = False, owner: str = ""
    ) -> list[pb.Job]:
        """The caller's living jobs (admins: everybody's), or those asked for, by number."""
        found: list[pb.Job] = []
        after = -1
        while True:
            request = pb.ListJobsRequest(
                states=states, all_states=all_states, owner=owner, page_size=_PAGE, after=after
            )
            page = self._called(self._stub.ListJobs, request, pb.ListJobsResponse)
            found.extend(page.jobs)
            if page.next_after < 0:
                return found
            after = page.next_after

    def job(self, job: str) -> pb.GetJobResponse:
        """All there is to know of one job, by number or name."""
        return self._called(self._stub.GetJob, pb.GetJobRequest(job=job), pb.GetJobResponse, _FORECAST_S)

    def wait(self, jobs: Sequence[str], *, wait_s: float, ends_s: float = math.inf) -> pb.WaitJobsResponse:
        """Answers when all are over, or after `wait_s`, which is at most 60.

        An outage is waited for until `ends_s` of time.monotonic() at most; then SchedulerUnreachable.
        """
        request = pb.WaitJobsRequest(jobs=jobs, wait_s=wait_s)
        return self._called(self._stub.WaitJobs, request, pb.WaitJobsResponse, extra_s=wait_s, outage_ends_s=ends_s)

    def cancel(self, jobs: Sequence[str]) -> list[pb.Job]:
        """The jobs as they are then."""
        request = pb.CancelJobsRequest(jobs=jobs)
        return list(self._called(self._stub.CancelJobs, request, pb.CancelJobsResponse).jobs)

    def nodes(self) -> list[pb.NodeStatus]:
        """All nodes that ever joined."""
        return list(self._called(self._stub.ListNodes, pb.ListNodesRequest(), pb.ListNodesResponse).nodes)

    def set_node(self, node_id: str, wish: pb.NodeWish.ValueType, *, force: bool = False) -> pb.NodeStatus:
        """The node as it is then."""
        request = pb.SetNodeRequest(node_id=node_id, wish=wish, force=force)
        return self._called(self._stub.SetNode, request, pb.SetNodeResponse).node

    def cluster(self) -> pb.GetClusterResponse:
        """Policy, round, GPUs and jobs in numbers."""
        return self._called(self._stub.GetCluster, pb.GetClusterRequest(), pb.GetClusterResponse)

    def set_policy(self, *, policy: str = "", parameters: str = "", round_s: float = 0.0) -> pb.GetClusterResponse:
        """The cluster as it is then; what is empty or 0 stays as it is."""
        request = pb.SetPolicyRequest(policy=policy, policy_parameters=parameters, round_s=round_s)
        return self._called(self._stub.SetPolicy, request, pb.SetPolicyResponse).cluster

    def events(
        self, *, after: int = 0, follow: bool = False, events_max: int = 0, job: str = ""
    ) -> Iterator[pb.ListEventsResponse]:
        """Events of the journal in order. Following goes on where it was cut off when the scheduler comes back."""
        while True:
            request = pb.ListEventsRequest(after=after, follow=follow, events_max=events_max, job=job)
            try:
                for event in self._stream(self._stub.ListEvents, request, follow=follow):
                    after = event.sequence
                    events_max = max(events_max - 1, 0) if events_max else 0
                    yield event
            except grpc.RpcError as error:
                code, detail = _status(error)
                if not (follow and is_worth_repeating(code)):
                    raise failure_of(code, detail, self.settings.scheduler) from None
                self.server_info()  # waits for it as long as any call
            else:
                return

    def logs(self, request: pb.ReadLogsRequest) -> Iterator[pb.ReadLogsResponse]:
        """Batches of lines, and notices. Following goes on without a gap when the scheduler comes back."""
        asked = pb.ReadLogsRequest()
        asked.CopyFrom(request)
        asked.batches = True
        while True:
            try:
                for message in self._stream(self._stub.ReadLogs, asked, follow=asked.follow):
                    yield batched(message, asked)
                    go_on(asked, message)
            except grpc.RpcError as error:
                code, detail = _status(error)
                if not (asked.follow and is_worth_repeating(code)):
                    raise failure_of(code, detail, self.settings.scheduler) from None
                self.server_info()  # waits for it as long as any call
            else:
                return

    def _stream(self, method: Stub, request: Any, *, follow: bool) -> Iterator[Any]:
        """Of a stream's messages. One that follows has no deadline: its end is the reader's."""
        timeout_s = None if follow else max(self.settings.timeout_s, 60.0) * 10
        with self._under_way.one_more():
            yield from method(request, timeout=timeout_s, metadata=self._metadata)

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
        """One answer; `extra_s` is how long the scheduler may take its time on purpose, once it has been reached."""
        patience_s = self.settings.timeout_s
        ends_s, pause_s = math.inf, _FIRST_PAUSE_S  # of patience, once it is tried
        while True:
            began_s = time.monotonic()
            timeout_s = min(patience_s, _ATTEMPT_S, ends_s - began_s) + extra_s
            try:
                with self._under_way.one_more():
                    answer = method(request, timeout=timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                code, detail = _status(error)
                failed_s = began_s + extra_s if code is grpc.StatusCode.DEADLINE_EXCEEDED else time.monotonic()
                ends_s = min(ends_s, failed_s + patience_s)
                if self._tell is not None and is_worth_repeating(code):
                    ends_s = max(outage_ends_s, failed_s)
                    self._goes(str(failure_of(code, detail, self.settings.scheduler)))
                if not is_worth_repeating(code) or time.monotonic() + pause_s >= ends_s:
                    raise failure_of(code, detail, self.settings.scheduler) from None
            else:
                self._is_back()
                return answer
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _goes(self, why: str) -> None:
        if self._tell is not None and not self._is_away:
            self._tell(f"{why}; waiting for it")
        self._is_away = True

    def _is_back(self) -> None:
        if self._tell is not None and self._is_away:
            self._tell("the scheduler answers again")
        self._is_away = False


def _status(error: Any) -> tuple[grpc.StatusCode, str]:  # Any: an RpcError that is a Call, which no type says
    return error.code(), error.details() or ""


def _metadata(settings: ClientSettings) -> list[tuple[str, str]]:
    secret = settings.secret
    if secret and not settings.tls_ca and not is_loopback(settings.scheduler):
        raise InvalidInput(
            f"a token goes over the network under TLS only: give tls_ca (GAVEL_TLS_CA) for {settings.scheduler!r}"
        )
    return [("authorization", f"Bearer {secret}")] if secret else []


def _channel(settings: ClientSettings) -> grpc.Channel:
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", 20_000),  # a stream that follows must see that its scheduler's machine is gone
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if not settings.tls_ca:
        return grpc.insecure_channel(settings.scheduler, options)
    own = (
        (pem_file("tls_key", settings.tls_key), pem_file("tls_certificate", settings.tls_certificate))
        if settings.tls_key
        else (None, None)
    )
    credentials = grpc.ssl_channel_credentials(pem_file("tls_ca", settings.tls_ca), *own)
    return grpc.secure_channel(settings.scheduler, credentials, options)
