"""The agent: compares its leases with the scheduler's orders, acts, and reports to the scheduler.

One event loop. `_reconcile` runs several times a second and after each change; the connections only bring orders in and
reports out. While the scheduler is unreachable, the only difference is that it extends no lease. Nothing that can hang
runs in the loop: storage has worker processes, log pages have threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import grpc
import grpc.aio

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.addresses import SILENT_S
from gavelpy.runtime.agent import agent_state
from gavelpy.runtime.agent.checkpoint_watch import DirectoryStatus, watch_of
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.connection import (
    SILENCE_S,
    TROUBLE_CHARACTERS_MAX,
    WAIT_S_MAX,
    WAIT_S_MAX_OF_SEVERAL,
    Backoff,
    SchedulerEndpoint,
    SchedulerStream,
    address_towards,
    describe_node,
    report_of,
    status_message,
    trouble_of,
    urgent_part,
)
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.housekeeping import Housekeeping
from gavelpy.runtime.agent.job_service import HOST, serve_jobs
from gavelpy.runtime.agent.leases.containment import Containment, find_containment
from gavelpy.runtime.agent.leases.environment import node_environment_of
from gavelpy.runtime.agent.leases.images import ImageRules, find_images
from gavelpy.runtime.agent.leases.orders import FEATURES, Orders, is_newer
from gavelpy.runtime.agent.leases.reconcile import Amend, NodeGpus, reconcile
from gavelpy.runtime.agent.leases.registry import LeaseRegistry, ShimWatch, log_action
from gavelpy.runtime.agent.leases.retention import OrdersKind, archive, classify_orders, final_orders
from gavelpy.runtime.agent.leases.starter import Starter, owner_rules_of
from gavelpy.runtime.agent.log_stream import serve_logs
from gavelpy.runtime.agent.machine import machine_of
from gavelpy.runtime.agent.neighbors import NeighborWatch
from gavelpy.runtime.agent.peers import LeaseExtender, peer_address, serve_peers
from gavelpy.runtime.agent.probing import PeerProbing
from gavelpy.runtime.agent.quorum_member import QuorumMember
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.quorum import Member
from gavelpy.runtime.shim.processes import adopt_orphans, boot_id
from gavelpy.runtime.storage import StorageWorkers
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc

logger = logging.getLogger(__name__)

RECONCILE_S: Final = 0.1
DISK_RETRY_S: Final = 1.0
FIRST_PROBE_S: Final = 3.0  # the longest wait for the checkpoint directory before connecting
LAST_REPORT_S: Final = 5.0  # the longest wait, when leaving, for the scheduler to acknowledge how the jobs ended
STOP_SLACK_S: Final = 5.0


class Agent:
    """A node's agent. The caller holds the lock of the state directory. `registries`: of all agents of this process."""

    def __init__(self, config: NodeConfig, gpus: Gpus, registries: list[LeaseRegistry] | None = None) -> None:
        self._config = config
        self._gpus, self._machine = gpus, machine_of(config)
        self._registries = [] if registries is None else registries
        self._endpoint = SchedulerEndpoint(config)
        self._orders: Orders | None = None
        self._moves_to = ""  # id of another cluster, which the node joins once no lease of the old one is left
        self._wake = asyncio.Event()  # reconcile now
        self._changed = asyncio.Event()  # report now
        self._leaving = asyncio.Event()
        self._is_draining = False
        self._streams, self._was_connected = 0, False
        self._disk_error = ""  # of the state directory
        self._reported: tuple[tuple[object, ...], ...] = ()
        self._containment, self._images = Containment(), ImageRules()
        known = agent_state.read_state(config.state)
        self._has_state = known is not None
        self._has_booted_since = known is not None and known.boot_id != boot_id()
        self._state = agent_state.initial_state(known, config, boot_id())
        me = Member(config.node_id, self._state.state_id, "")
        self._quorum = QuorumMember(
            config.state, me, self._state.cluster_id, self._state.incarnation, boot_id(), clock_s()
        )
        self._extender = LeaseExtender(self._quorum, self._has_leases, self._wake.set)
        self._probing = PeerProbing(self._quorum, self._changed.set)
        self._neighbors = NeighborWatch(self._changed.set)
        self._obeyed = 0  # sequence of the newest message of the stream with its effect on disk

    @property
    def job_service_port(self) -> int:
        """Port of the job service, once the agent runs."""
        return self._state.job_service_port

    async def run(self, ready: Callable[[], None]) -> None:
        """Runs until `leave` is called. Calls `ready` when the leases of an earlier agent have been loaded."""
        adopt_orphans()
        if self._config.control_groups:
            self._containment = find_containment(self._state.state_id, limits=self._config.job_limits)
        logger.info("jobs are contained by %s", self._containment.text, extra={"root": self._containment.root})
        workers = StorageWorkers()
        self._checkpoints = watch_of(self._config, workers, self._checkpoints_changed, self._state)
        self._starter = Starter(
            workers, self._wake.set, lambda: self._checkpoints.is_new, lambda: self._checkpoints.answers
        )
        self._starter.owners = owner_rules_of(self._config)
        self._registry = LeaseRegistry(self._config.state, self._starter.begin, self._starter.count)
        self._housekeeping = Housekeeping(self._config, self._gpus, self._registry, self._registries, self._changed.set)
        self._watch = ShimWatch(self._wake.set)
        self._registry.load(clock_s(), has_booted_since=self._has_booted_since)
        servers = await self._serve()
        service = f"{HOST}:{self.job_service_port}"
        self._images = await asyncio.to_thread(find_images, *self._config.image_rules, os.environ)
        found = self._containment, self._images, service, await self._housekeeping.started_mps()
        self._starter.environment = node_environment_of(self._config, self._gpus, *found)
        self._reconcile()
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._keep_reconciling(),
                self._keep_calling("scheduler", self._connect),
                self._keep_calling("scheduler for logs", self._serve_logs),
                self._housekeeping.run(),
                self._extender.run(),
                self._probing.run(),
                self._checkpoints.keep_probing(),
            )
        ]
        ready()
        try:
            leaving = asyncio.create_task(self._leaving.wait())
            done, _ = await asyncio.wait([*tasks, leaving], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {leaving}:
                task.result()
            if self._config.stop_jobs_on_exit:
                await self._stop_jobs()
        finally:
            for task in (*tasks, leaving):
                task.cancel()
            await asyncio.wait([*tasks, leaving])
            await asyncio.gather(*(server.stop(None) for server in servers))
            self._watch.close()
            self._neighbors.close()
            self._starter.close()
            await asyncio.to_thread(self._housekeeping.close)
            workers.close()
            self._registry.close()
            self._containment.close()

    async def _serve(self) -> tuple[grpc.aio.Server, ...]:
        """Serves jobs and other agents, on the ports of the earlier agent if they are free."""
        config = self._config
        jobs, port = await serve_jobs(self._registry, self._state.job_service_port)
        host = config.address or await asyncio.to_thread(address_towards, config.scheduler)
        peers, peer_port = await serve_peers(self._quorum, host, config.peer_port or self._state.peer_port)
        self._state = replace(self._state, job_service_port=port, peer_port=peer_port)
        self._quorum.me = replace(self._quorum.me, address=peer_address(host, peer_port))
        try:
            agent_state.write_state(config.state, self._state)
        except OSError:
            await asyncio.gather(jobs.stop(None), peers.stop(None))
            raise
        self._probing.open(host, peer_port)
        return jobs, peers

    def leave(self) -> None:
        """Ends `run`. Jobs continue under their shims, unless `stop_jobs_on_exit` is set."""
        self._leaving.set()

    def _has_leases(self) -> bool:
        return any(folder.end is None for folder in self._registry.folders)

    # Leases.

    async def _keep_reconciling(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECONCILE_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                self._reconcile()
                if self._moves_to and not self._registry.folders:
                    await self._move()
            except OSError as error:
                logger.exception("cannot use the state directory")
                self._set_disk_error(trouble_of(error))
                await asyncio.sleep(DISK_RETRY_S)
            else:
                self._set_disk_error("")

    def _set_disk_error(self, error: str) -> None:
        if error != self._disk_error:
            self._disk_error = error
            self._changed.set()

    def _reconcile(self) -> None:
        """Observes the leases, does what the orders require, and triggers a report if something urgent has changed.

        If the disk fails for one lease, the error is raised after all other leases have been handled.
        """
        now_clock_s = clock_s()
        failure = self._registry.observe(now_clock_s)
        gpus = NodeGpus(self._gpus.gpu_type, len(self._gpus.devices), self._machine.cpus, self._machine.memory_gib)
        local = [folder.local for folder in self._registry.folders]
        orders = final_orders(local) if self._moves_to else self._orders
        for action in reconcile(local, None if self._is_draining else orders, gpus, now_clock_s):
            log_action(action)
            try:
                self._registry.act(action, now_clock_s)
            except OSError as error:
                failure = failure or error
        if not (self._moves_to or self._is_draining):
            failure = self._registry.extend(self._quorum.until_clock_s, now_clock_s) or failure
        self._watch.follow(folder.shim_process for folder in self._registry.folders)
        urgent = urgent_part(map(report_of, self._registry.folders))
        if urgent != self._reported:
            self._reported = urgent
            self._changed.set()
        if failure is not None:
            raise failure

    def _obey(self, orders: Orders) -> None:
        """Accepts newer orders; those of another cluster once no lease of the old one is left."""
        kind = classify_orders(orders, self._state)
        if kind is OrdersKind.OUTDATED:
            extra = {"incarnation": orders.incarnation, "obeyed": self._state.incarnation}
            logger.error("orders of an older scheduler ignored", extra=extra)
            return
        if kind is OrdersKind.OTHER_CLUSTER:
            if orders.cluster_id != self._moves_to:
                logger.warning(
                    "another cluster: all leases of the old one are killed and forgotten",
                    extra={"cluster": orders.cluster_id, "left": self._state.cluster_id},
                )
            self._moves_to = orders.cluster_id
            self._wake.set()
            return
        self._moves_to = ""
        if not is_newer(orders, self._orders):
            return
        cluster_id = orders.cluster_id or self._state.cluster_id
        newer = replace(self._state, cluster_id=cluster_id, incarnation=orders.incarnation)
        if newer != self._state:
            agent_state.write_state(self._config.state, newer)
            self._state = newer
        self._orders = orders
        self._neighbors.follow(orders.neighbors)
        self._quorum.cluster_id = cluster_id
        if self._quorum.record_contact(orders.incarnation, orders.echo_clock_s, clock_s()):
            self._obeyed = orders.sequence
        if orders.view is not None:
            with suppress(OSError):  # the scheduler sends it again
                self._quorum.store_view(orders.view, orders.view_key)
        self._wake.set()

    async def _move(self) -> None:
        """Joins the other cluster: no lease of the old one is left, and all its ends have been reported."""
        to = self._moves_to
        async with self._housekeeping.pruning:
            checkpoints = self._config.checkpoints if self._config.has_own_checkpoints else None
            await asyncio.to_thread(archive, self._config.state, checkpoints, to)
        if self._moves_to != to:
            return  # meanwhile there were orders of the old cluster, or of a third one
        moved = replace(self._state, cluster_id=to, incarnation=0)
        agent_state.write_state(self._config.state, moved)
        self._state, self._orders, self._moves_to = moved, None, ""
        self._quorum.move(to, clock_s())
        # Nothing that the new cluster may have had here earlier runs.
        self._has_state, self._was_connected = True, False
        logger.info("cluster joined", extra={"cluster": to})

    # Connections to the scheduler.

    def _describe(self) -> agent_pb2.ConnectRequest:
        return agent_pb2.ConnectRequest(
            leases=[report_of(folder) for folder in self._registry.folders],
            draining=self._is_draining,
            trouble=(self._disk_error or self._housekeeping.shortage or self._checkpoints.status.trouble)[
                :TROUBLE_CHARACTERS_MAX
            ],
            obeyed=self._obeyed,
            view_epoch=self._quorum.view.epoch if self._quorum.view is not None else 0,
            view_unreached=self._extender.unreached,
            checkpoints=status_message(self._checkpoints.status, clock_s()),
            gpu_sharing=self._housekeeping.mps.text[:TROUBLE_CHARACTERS_MAX],
            peers=self._probing.sights(),
            ended=[agent_pb2.HostProcess(process=p, start=start) for p, start in self._neighbors.ended],
        )

    async def _connect(self, channel: grpc.aio.Channel, on_message: Callable[[], None]) -> None:
        await self._checkpoints.wait_first(FIRST_PROBE_S)
        await self._housekeeping.check_disk()
        self._streams += 1
        node = await asyncio.to_thread(describe_node, self._config, self._gpus, self._checkpoints.status.cluster)
        # With the state of an earlier agent, all leases that may still run are known and reported.
        node.confirmed_dead = self._has_state and not self._was_connected
        node.containment, node.images = self._containment.text, self._images.text
        node.features.extend(FEATURES)
        node.cpus, node.memory_gib = self._machine.cpus, self._machine.memory_gib
        node.cluster_id, node.state_id = self._state.cluster_id, self._state.state_id
        node.identity_key = self._state.identity_key
        node.peer_address, node.probe_port = self._quorum.me.address, self._probing.port
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.Connect(metadata=self._endpoint.metadata)  # type: ignore[call-arg]  # requests are written one by one
        # No await between here and the first message: its reports are current, and no older orders count after it.
        self._orders, self._obeyed = None, 0

        def received() -> None:
            # A stream of the cluster that the node has left may still have a message
            if node.cluster_id in ("", self._state.cluster_id):
                self._was_connected = True
            if not self._moves_to:  # otherwise keep the back-off: the new scheduler waits until the leases have ended
                on_message()

        silence_s = SILENT_S if self._endpoint.turns().are_several else SILENCE_S
        stream = SchedulerStream(call, self._streams, node, self._describe, self._obey, received, silence_s)
        await stream.run(self._changed)

    async def _serve_logs(self, channel: grpc.aio.Channel, on_message: Callable[[], None]) -> None:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.ServeLogs(metadata=self._endpoint.metadata)  # type: ignore[call-arg]  # answers are written one by one
        tunnel = partial(stub.ServeTunnel, metadata=self._endpoint.metadata)
        await serve_logs(call, self._state, self._registry, on_message, tunnel)

    async def _keep_calling(
        self, what: str, call: Callable[[grpc.aio.Channel, Callable[[], None]], Awaitable[None]]
    ) -> None:
        """Calls on a new channel whenever the last one has ended."""
        turns, logged = self._endpoint.turns(), ""
        backoff = Backoff(random.Random(), WAIT_S_MAX_OF_SEVERAL if turns.are_several else WAIT_S_MAX)

        def received() -> None:
            backoff.succeeded()
            turns.answered()

        while True:
            why = "the stream ended"
            try:
                async with self._endpoint.open(turns.current) as channel:
                    await call(channel, received)
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {error.details()}"
            except (RemoteViolation, asyncio.InvalidStateError) as error:
                why = str(error)
            except OSError as error:  # the orders could not be written
                why = trouble_of(error)
            except asyncio.CancelledError:
                if (current := asyncio.current_task()) is not None and current.cancelling():
                    raise
                why = "the call was cancelled"  # by this side, after a write timed out
            if why != logged:
                logger.warning("no connection to the %s: %s", what, why, extra={"scheduler": self._config.scheduler})
                logged = why
            if turns.failed():
                await asyncio.sleep(backoff.next_s())

    def _checkpoints_changed(self, status: DirectoryStatus) -> None:
        self._state = agent_state.with_checkpoint_directory(self._config, self._state, status.directory)
        self._changed.set()

    async def _stop_jobs(self) -> None:
        """Stops all jobs gracefully and waits until they have ended and the scheduler has acknowledged it."""
        self._is_draining = True
        now_clock_s = clock_s()
        for folder in self._registry.folders:
            if folder.end is None and not folder.orders.stop:
                orders = folder.orders
                self._registry.act(
                    Amend(folder.lease, orders.until_clock_s, True, orders.kill, orders.steps_saved), now_clock_s
                )
        graces = [folder.assignment.grace_s for folder in self._registry.folders if folder.assignment]
        deadline_s = now_clock_s + 2 * max(graces, default=0.0) + STOP_SLACK_S
        while any(folder.end is None for folder in self._registry.folders) and clock_s() < deadline_s:
            await asyncio.sleep(RECONCILE_S / 2)
        self._changed.set()
        until_s = clock_s() + LAST_REPORT_S
        while not self._is_all_acknowledged() and clock_s() < until_s:
            await asyncio.sleep(RECONCILE_S / 10)

    def _is_all_acknowledged(self) -> bool:
        """Whether the scheduler has acknowledged the end of every lease."""
        forgotten = self._orders.forget if self._orders else frozenset()
        return all(folder.lease in forgotten for folder in self._registry.folders)
