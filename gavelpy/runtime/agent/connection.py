"""The stream to the scheduler: heartbeats and reports out, orders in; and the channel and back-off to reconnect.

`SchedulerStream` sends and receives; `describe_node`, `report_of` and `status_message` make the messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar

import grpc
import grpc.aio

from gavelpy import __version__
from gavelpy.errors import RemoteViolation, one_line
from gavelpy.runtime.addresses import Turns, addresses_of
from gavelpy.runtime.agent.checkpoint_watch import DirectoryAvailability, DirectoryStatus
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.orders import API_VERSIONS, Orders, heartbeat_interval_s, orders_of
from gavelpy.runtime.agent.leases.reconcile import LocalPhase
from gavelpy.runtime.lease_files import LeaseOutcome, clock_s
from gavelpy.runtime.security.exposure import CONNECT_MS_MAX, channel_credentials, is_loopback
from gavelpy.runtime.shim.failures import FailureKind
from gavelpy.runtime.shim.processes import boot_id, this_process
from gavelpy.runtime.wire import agent_pb2

MESSAGE_BYTES_MAX: Final = 4 << 20
FIRST_WAIT_S: Final = 0.1
WAIT_S_MAX: Final = 2.0
WAIT_S_MAX_OF_SEVERAL: Final = 1.0  # between two tries of all addresses: a standby may lead at any moment
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", 4 * MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class SchedulerEndpoint:
    """Address and credentials of the scheduler. Raises InvalidInput if a file cannot be read."""

    def __init__(self, config: NodeConfig) -> None:
        self._addresses = config.scheduler
        self._credentials: grpc.ChannelCredentials | None = None
        token = config.token()
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if config.tls_ca:
            self._credentials = channel_credentials(config.tls_ca, config.tls_certificate, config.tls_key)

    def turns(self) -> Turns:
        """The addresses, for one caller."""
        return Turns(self._addresses)

    def open(self, address: str) -> grpc.aio.Channel:
        """A new channel."""
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        return grpc.aio.secure_channel(address, self._credentials, options=_OPTIONS)


class Backoff:
    """Waits between attempts: they double, each drawn at random from the upper half of its range."""

    def __init__(self, rng: random.Random, wait_s_max: float = WAIT_S_MAX) -> None:
        self._rng = rng
        self._wait_s = FIRST_WAIT_S
        self._wait_s_max = wait_s_max

    def succeeded(self) -> None:
        """Resets to short waits."""
        self._wait_s = FIRST_WAIT_S

    def next_s(self) -> float:
        """The next wait."""
        wait_s = self._wait_s
        self._wait_s = min(2 * wait_s, self._wait_s_max)
        return wait_s * self._rng.uniform(0.5, 1.0)


logger = logging.getLogger(__name__)

FIRST_HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 20.0  # without a message the stream is closed, unless heartbeats are slower
WRITE_S: Final = 10.0

T = TypeVar("T")
ConnectCall = grpc.aio.StreamStreamCall[agent_pb2.ConnectRequest, agent_pb2.ConnectResponse]


class SchedulerStream:
    """One call. `describe` makes a report, `obey` takes orders, `on_message` is called for each message received."""

    def __init__(
        self,
        call: ConnectCall,
        number: int,
        node: agent_pb2.Node,
        describe: Callable[[], agent_pb2.ConnectRequest],
        obey: Callable[[Orders], None],
        on_message: Callable[[], None],
        silence_s: float = SILENCE_S,
    ) -> None:
        self._call = call
        self._number = number
        self._node = node
        self._describe = describe
        self._obey = obey
        self._on_message = on_message
        self._silence_s = silence_s
        self._interval_s = FIRST_HEARTBEAT_S
        self._sequence = 0

    async def run(self, changed: asyncio.Event) -> None:
        """Runs until the stream ends. Raises the error that ended it, RemoteViolation for a breach of protocol."""
        await self._send(self._node)
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write(changed))
        try:
            done, _ = await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(reading, writing)
            self._call.cancel()
        for task in done:
            task.result()

    async def _write(self, changed: asyncio.Event) -> None:
        """Sends a report at each interval, and at once when `changed` is set."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await changed.wait()
            changed.clear()
            await self._send(None)

    async def _send(self, node: agent_pb2.Node | None) -> None:
        request = self._describe()
        self._sequence += 1
        request.sequence = self._sequence
        if node is not None:
            request.node.CopyFrom(node)
        request.clock_s = clock_s()
        await _within(WRITE_S, self._call.write(request), "accept a message")

    async def _read(self) -> None:
        messages = aiter(self._call)
        while True:
            timeout_s = max(self._silence_s, 5 * self._interval_s)
            message = await _within(timeout_s, anext(messages, None), "send a message")
            if message is None:
                return
            orders = orders_of(message, self._number)
            self._interval_s = heartbeat_interval_s(message, self._interval_s)
            self._on_message()
            self._obey(orders)


async def _within(limit_s: float, waiting: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await waiting
    except TimeoutError:
        raise RemoteViolation(f"the scheduler did not {what} within {limit_s:g} s") from None


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # mark it as retrieved


DETAIL_CHARACTERS_MAX: Final = 1_000
TROUBLE_CHARACTERS_MAX: Final = 500
_EXIT_CODES: Final = range(-(1 << 31), 1 << 31)
_PHASES: Final = {
    LocalPhase.PREPARED: agent_pb2.LEASE_PHASE_PREPARED,
    LocalPhase.STARTING: agent_pb2.LEASE_PHASE_STARTING,
    LocalPhase.RUNNING: agent_pb2.LEASE_PHASE_RUNNING,
    LocalPhase.STOPPING: agent_pb2.LEASE_PHASE_STOPPING,
    LocalPhase.ENDED: agent_pb2.LEASE_PHASE_ENDED,
}
_OUTCOMES: Final = {
    LeaseOutcome.FINISHED: agent_pb2.LEASE_OUTCOME_FINISHED,
    LeaseOutcome.STOPPED: agent_pb2.LEASE_OUTCOME_STOPPED,
    LeaseOutcome.FAILED: agent_pb2.LEASE_OUTCOME_FAILED,
    LeaseOutcome.LOST: agent_pb2.LEASE_OUTCOME_LOST,
}


_FAILURES: Final = {
    FailureKind.USER.value: agent_pb2.FAILURE_CLASS_USER,
    FailureKind.OUT_OF_MEMORY.value: agent_pb2.FAILURE_CLASS_OUT_OF_MEMORY,
    FailureKind.SYSTEM.value: agent_pb2.FAILURE_CLASS_SYSTEM,
    FailureKind.COMMUNICATION.value: agent_pb2.FAILURE_CLASS_COMMUNICATION,
    FailureKind.REFUSED.value: agent_pb2.FAILURE_CLASS_REFUSED,
    FailureKind.TIME_LIMIT.value: agent_pb2.FAILURE_CLASS_TIME_LIMIT,
    FailureKind.STALLED.value: agent_pb2.FAILURE_CLASS_STALLED,
}
_SIGHTS: Final = {
    DirectoryAvailability.UNKNOWN: agent_pb2.CHECKPOINT_SIGHT_STATE_UNKNOWN,
    DirectoryAvailability.AVAILABLE: agent_pb2.CHECKPOINT_SIGHT_STATE_SEEN,
    DirectoryAvailability.UNAVAILABLE: agent_pb2.CHECKPOINT_SIGHT_STATE_UNSEEN,
}


def status_message(sight: DirectoryStatus, now_clock_s: float) -> agent_pb2.CheckpointSight:
    """State of the checkpoint directory."""
    age_s = max(0.0, now_clock_s - sight.since_clock_s)
    return agent_pb2.CheckpointSight(
        state=_SIGHTS[sight.state], directory_id=sight.directory, cluster_id=sight.cluster, age_s=age_s
    )


def report_of(folder: LeaseDirectory) -> agent_pb2.LeaseReport:
    """The report of a lease."""
    progress, end, saved = folder.progress, folder.end, folder.progress.steps_saved
    if folder.launch is not None and folder.assignment is not None and saved <= folder.launch.steps_done:
        saved = folder.assignment.steps_done  # a newer checkpoint that it resumed from is another lease's
    report = agent_pb2.LeaseReport(
        lease=folder.lease,
        job=folder.job,
        phase=_PHASES[folder.phase],
        steps_done=progress.steps_done,
        steps_saved=saved,
        rate_steps_per_s=progress.rate_steps_per_s,
        steps_total=progress.steps_total,
        gpu_memory_gib=max(progress.gpu_memory_gib, folder.gpu_memory_gib),
        by_time=folder.is_estimated,
        saves_at_end=folder.saves_at_end,
        last_step_done=folder.is_done,
        metrics=[agent_pb2.Metric(**point._asdict()) for point in folder.metrics.last],
    )
    if folder.shim is not None:
        report.shim_process = folder.shim.process
        report.shim_process_start = folder.shim.process_start_ticks
    assignment = folder.assignment
    if assignment is not None and assignment.is_first_node:
        report.rendezvous_port = assignment.rendezvous_port
    if end is not None:
        report.outcome = _OUTCOMES[end.outcome]
        report.exit_code = end.exit_code if end.exit_code in _EXIT_CODES else -1
        report.failure = _FAILURES.get(end.failure, agent_pb2.FAILURE_CLASS_UNSPECIFIED)
        report.detail = end.detail[:DETAIL_CHARACTERS_MAX]
    elif progress.save_error:
        report.detail = f"a checkpoint failed: {one_line(progress.save_error)}"[:DETAIL_CHARACTERS_MAX]
    return report


def trouble_of(error: OSError) -> str:
    """Why the state directory cannot be used."""
    where = f" ({str(error.filename)!r})" if error.filename else ""
    return f"the state directory cannot be used: {error.strerror or 'unknown error'}{where}"[:TROUBLE_CHARACTERS_MAX]


def urgent_part(reports: Iterable[agent_pb2.LeaseReport]) -> tuple[tuple[object, ...], ...]:
    """The fields of which a change is reported at once; others wait for the next heartbeat."""
    return tuple(
        (
            report.lease,
            report.phase,
            report.outcome,
            report.rendezvous_port,
            report.steps_saved,
            report.shim_process,
            report.saves_at_end,
            report.last_step_done,
            report.steps_total,
        )
        for report in reports
    )


LOOPBACK: Final = "127.0.0.1"


def describe_node(config: NodeConfig, gpus: Gpus, checkpoint_marker: str) -> agent_pb2.Node:
    """The description of this node."""
    return agent_pb2.Node(
        node_id=config.node_id,
        host_id=boot_id(),
        agent_version=__version__,
        api_versions=API_VERSIONS,
        gpu_type=gpus.gpu_type,
        gpu_count=len(gpus.devices),
        address=config.address or address_towards(config.scheduler),
        checkpoint_marker=checkpoint_marker,
        agent_process=os.getpid(),
        agent_process_start=this_process().start_ticks,
        state_directory=str(config.state),
        rack=config.rack,
        zone=config.zone,
        region=config.region,
    )


def address_towards(scheduler: str) -> str:
    """The address of this node's interface towards HOST:PORT, the first of several."""
    scheduler = addresses_of(scheduler)[0]
    if is_loopback(scheduler):
        return LOOPBACK
    host, _, port = scheduler.rpartition(":")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
