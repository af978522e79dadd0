"""The agent: looks at its leases, compares them with its orders, acts, and keeps the scheduler told.

One event loop. Its pace is set by `_look`, several times a second and whenever something is known to have changed;
the connections only bring orders in and take reports out, so a scheduler that is away changes nothing here but that
no lease is lengthened any more. Nothing that may hang runs in the loop: starts and log pages have threads.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import grpc
import grpc.aio

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.agent import memory
from gavelpy.runtime.agent.alone import Alone
from gavelpy.runtime.agent.book import LeaseBook, log_action
from gavelpy.runtime.agent.checkpoint_watch import Sight, SightState, watch_of
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.containment import Containment, find_containment
from gavelpy.runtime.agent.ended import prune
from gavelpy.runtime.agent.environment import surroundings_of
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.identity import address_towards, describe_node
from gavelpy.runtime.agent.job_service import HOST, serve_jobs
from gavelpy.runtime.agent.link import Backoff, Link
from gavelpy.runtime.agent.log_stream import serve_logs
from gavelpy.runtime.agent.membership import Regard, farewell, put_aside, regard
from gavelpy.runtime.agent.orders import Orders, is_newer
from gavelpy.runtime.agent.orphans import Orphans
from gavelpy.runtime.agent.peers import peer_address, serve_peers
from gavelpy.runtime.agent.reconcile import Amend, Place, reconcile
from gavelpy.runtime.agent.reports import TROUBLE_CHARACTERS_MAX, report_of, sight_of, trouble_of, urgent_part
from gavelpy.runtime.agent.room import shortage
from gavelpy.runtime.agent.saved_steps import SavedSteps
from gavelpy.runtime.agent.shim_watch import ShimWatch
from gavelpy.runtime.agent.starter import Starter
from gavelpy.runtime.agent.stream import Stream
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.quorum import Member
from gavelpy.runtime.shim.processes import adopt_orphans, boot_id, reap_adopted
from gavelpy.runtime.storage import StorageWorkers
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1
TROUBLE_S: Final = 1.0  # until a disk that refused is tried again
SIGHT_S: Final = 3.0  # before the first connection, for the checkpoint directory to answer
LAST_WORDS_S: Final = 5.0  # for the scheduler to say that it has heard how the jobs ended
PRUNE_S: Final = 60.0
STOP_SLACK_S: Final = 5.0
ROOM_S: Final = 2.0


class Agent:
    """A node's agent. The state directory is locked by the caller."""

    def __init__(self, config: NodeConfig, gpus: Gpus) -> None:
        self._config = config
        self._gpus = gpus
        self._link = Link(config)
        self._orders: Orders | None = None
        self._moves_to = ""  # another cluster, once nothing of the old one is left
        self._tidying = asyncio.Lock()  # of what ended leases have left
        self._wake = asyncio.Event()  # look now
        self._changed = asyncio.Event()  # tell the scheduler now
        self._leaving = asyncio.Event()
        self._is_draining = False
        self._streams = 0
        self._was_heard = False
        self._trouble = ""  # with the state directory
        self._shortage = ""  # of room in it
        self._told: tuple[tuple[object, ...], ...] = ()
        self._containment = Containment()
        known = memory.recall(config.state)
        memory.check_node(known, config.state, config.node_id)
        self._has_memory = known is not None
        self._has_booted_since = known is not None and known.boot_id != boot_id()
        found = known or memory.Memory(config.node_id, "")
        self._memory = memory.completed(found, boot_id())
        me = Member(config.node_id, self._memory.state_id, "")
        self._orphans = Orphans(
            config.state, me, self._memory.cluster_id, self._memory.incarnation, boot_id(), clock_s()
        )
        self._alone = Alone(self._orphans, lambda: any(f.end is None for f in self._book.folders), self._wake.set)
        self._obeyed = 0  # sequence of the newest message of the stream that is sure to be remembered

    @property
    def job_service_port(self) -> int:
        """Where jobs reach the agent, once it runs."""
        return self._memory.job_service_port

    async def run(self, ready: Callable[[], None]) -> None:
        """Until `leave` is called; `ready` is called when the leases of an earlier agent have been found."""
        adopt_orphans()
        if self._config.control_groups:
            self._containment = find_containment(self._memory.state_id)
        logger.info("jobs are contained by %s", self._containment.kind, extra={"root": self._containment.root})
        workers = StorageWorkers()
        self._sight = watch_of(self._config, workers, self._see, self._memory)
        self._starter = Starter(workers, self._wake.set, lambda: self._sight.is_new)
        saved_steps = SavedSteps(workers, self._wake.set, lambda: self._sight.sight.state is not SightState.UNKNOWN)
        self._book = LeaseBook(self._config.state, self._starter.begin, saved_steps.count)
        self._watch = ShimWatch(self._wake.set)
        self._book.load(clock_s(), has_booted_since=self._has_booted_since)
        servers = await self._serve()
        service = f"{HOST}:{self.job_service_port}"
        self._starter.around = surroundings_of(self._config, self._gpus, self._containment, service)
        self._look()
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._keep_looking(),
                self._keep_connected(),
                self._keep_serving_logs(),
                self._keep_pruning(),
                self._keep_room(),
                self._alone.run(),
                self._sight.keep_looking(),
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
            self._starter.close()
            saved_steps.close()
            workers.close()
            self._book.close()
            self._containment.close()

    async def _serve(self) -> tuple[grpc.aio.Server, ...]:
        """Serves jobs and other agents where they knew it, if that can be had, and remembers where that is."""
        config = self._config
        jobs, port = await serve_jobs(self._book, self._memory.job_service_port)
        host = config.address or await asyncio.to_thread(address_towards, config.scheduler)
        peers, peer_port = await serve_peers(self._orphans, host, config.peer_port or self._memory.peer_port)
        self._memory = replace(self._memory, job_service_port=port, peer_port=peer_port)
        self._orphans.me = replace(self._orphans.me, address=peer_address(host, peer_port))
        try:
            memory.remember(config.state, self._memory)
        except OSError:
            await asyncio.gather(jobs.stop(None), peers.stop(None))
            raise
        return jobs, peers

    def leave(self) -> None:
        """Ends `run`. Jobs go on under their shims, unless the configuration says otherwise."""
        self._leaving.set()

    # Looking and acting.

    async def _keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                self._look()
                if self._moves_to and not self._book.folders:
                    await self._move()
            except OSError as error:
                logger.exception("the state directory cannot be used")
                self._say_trouble(trouble_of(error))
                await asyncio.sleep(TROUBLE_S)
            else:
                self._say_trouble("")

    def _say_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._changed.set()

    def _look(self) -> None:
        """Sees what is, does what is to be done about it, and has the scheduler told if it is news.

        What the disk refuses for one lease is raised when all others have been seen to.
        """
        now_clock_s = clock_s()
        refused = self._book.observe(now_clock_s)
        place = Place(self._gpus.gpu_type, len(self._gpus.devices))
        local = [folder.local for folder in self._book.folders]
        orders = farewell(local) if self._moves_to else self._orders
        for action in reconcile(local, None if self._is_draining else orders, place, now_clock_s):
            log_action(action)
            try:
                self._book.act(action, now_clock_s)
            except OSError as error:
                refused = refused or error
        if not (self._moves_to or self._is_draining):
            refused = self._book.extend(self._orphans.until_clock_s, now_clock_s) or refused
        self._watch.follow(folder.shim_process for folder in self._book.folders)
        told = urgent_part(map(report_of, self._book.folders))
        if told != self._told:
            self._told = told
            self._changed.set()
        if refused is not None:
            raise refused

    def _obey(self, orders: Orders) -> None:
        """Takes orders over if they are newer than all before; those of another cluster when the old one is left."""
        whose = regard(orders, self._memory)
        if whose is Regard.OLDER:
            extra = {"incarnation": orders.incarnation, "obeyed": self._memory.incarnation}
            logger.error("orders of an older scheduler ignored", extra=extra)
            return
        if whose is Regard.ANOTHER_CLUSTER:
            if orders.cluster_id != self._moves_to:
                logger.warning(
                    "another cluster: all leases of the old one are killed and forgotten",
                    extra={"cluster": orders.cluster_id, "left": self._memory.cluster_id},
                )
            self._moves_to = orders.cluster_id
            self._wake.set()
            return
        self._moves_to = ""
        if not is_newer(orders, self._orders):
            return
        cluster_id = orders.cluster_id or self._memory.cluster_id
        heeded = replace(self._memory, cluster_id=cluster_id, incarnation=orders.incarnation)
        if heeded != self._memory:
            memory.remember(self._config.state, heeded)
            self._memory = heeded
        self._orders = orders
        self._orphans.cluster_id = cluster_id
        if self._orphans.heard(orders.incarnation, orders.echo_clock_s, clock_s()):
            self._obeyed = orders.sequence
        if orders.view is not None:
            with suppress(OSError):  # the scheduler sends it again
                self._orphans.take(orders.view, orders.view_key)
        self._wake.set()

    async def _move(self) -> None:
        """Nothing of the old cluster runs here or is told any more: from now on the node is the other one's."""
        to = self._moves_to
        async with self._tidying:
            checkpoints = self._config.checkpoints if self._config.has_own_checkpoints else None
            await asyncio.to_thread(put_aside, self._config.state, checkpoints, to)
        if self._moves_to != to:
            return  # the old cluster was heard again, or a third one
        moved = replace(self._memory, cluster_id=to, incarnation=0)
        memory.remember(self._config.state, moved)
        self._memory, self._orders, self._moves_to = moved, None, ""
        self._orphans.move(to, clock_s())
        self._has_memory, self._was_heard = True, False  # whatever the new cluster had here long ago is gone
        logger.info("cluster joined", extra={"cluster": to})

    # Speaking with the scheduler.

    def _describe(self) -> agent_pb2.ConnectRequest:
        return agent_pb2.ConnectRequest(
            leases=[report_of(folder) for folder in self._book.folders],
            draining=self._is_draining,
            trouble=(self._trouble or self._shortage or self._sight.sight.trouble)[:TROUBLE_CHARACTERS_MAX],
            obeyed=self._obeyed,
            view_epoch=self._orphans.view.epoch if self._orphans.view is not None else 0,
            view_unreached=self._alone.unreached,
            checkpoints=sight_of(self._sight.sight, clock_s()),
        )

    async def _keep_connected(self) -> None:
        await self._again_and_again("scheduler", self._connect)

    async def _keep_serving_logs(self) -> None:
        await self._again_and_again("scheduler's questions about logs", self._serve_logs)

    async def _connect(self, channel: grpc.aio.Channel, heard: Callable[[], None]) -> None:
        await self._sight.wait_first(SIGHT_S)
        await self._look_for_room()
        self._streams += 1
        node = await asyncio.to_thread(describe_node, self._config, self._gpus, self._sight.sight.cluster)
        # An agent that was here before knows all that may still run, and reports it; later on there is nothing to add.
        node.confirmed_dead = self._has_memory and not self._was_heard
        node.containment = self._containment.kind
        node.cluster_id, node.state_id = self._memory.cluster_id, self._memory.state_id
        node.identity_key = self._memory.identity_key
        node.peer_address = self._orphans.me.address
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.Connect(metadata=self._link.metadata)  # type: ignore[call-arg]  # requests are written one by one
        # Nothing awaits from here to the first message: what it says of the leases is so, and no older orders count.
        self._orders, self._obeyed = None, 0

        def hear() -> None:
            self._was_heard = True
            if not self._moves_to:  # a scheduler that waits until the old cluster is left is not to be called too often
                heard()

        await Stream(call, self._streams, node, self._describe, self._obey, hear).run(self._changed)

    async def _serve_logs(self, channel: grpc.aio.Channel, heard: Callable[[], None]) -> None:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.ServeLogs(metadata=self._link.metadata)  # type: ignore[call-arg]  # answers are written one by one
        await serve_logs(call, self._memory, self._book, heard)

    async def _again_and_again(
        self, what: str, speak: Callable[[grpc.aio.Channel, Callable[[], None]], Awaitable[None]]
    ) -> None:
        """Speaks on a new channel each time the last one has ended."""
        backoff = Backoff(random.Random())
        was_told = ""
        while True:
            why = "it ended the stream"
            try:
                async with self._link.open() as channel:
                    await speak(channel, backoff.succeeded)
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {error.details()}"
            except (RemoteViolation, asyncio.InvalidStateError) as error:
                why = str(error)
            except OSError as error:  # what was heard could not be kept
                why = trouble_of(error)
            except asyncio.CancelledError:
                if (current := asyncio.current_task()) is not None and current.cancelling():
                    raise
                why = "the call was cancelled"  # on this side, because it could not be written to
            if why != was_told:
                logger.warning("no connection to the %s: %s", what, why, extra={"scheduler": self._config.scheduler})
                was_told = why
            await asyncio.sleep(backoff.next_s())

    # Other duties.

    async def _keep_pruning(self) -> None:
        while True:
            async with self._tidying:
                removed = await asyncio.to_thread(
                    prune,
                    self._config.state,
                    bytes_max=self._config.ended_log_bytes_max,
                    retention_s=self._config.ended_retention_s,
                    now_s=time.time(),
                )
            if removed:
                logger.info("old logs removed", extra={"leases": removed})
            await asyncio.sleep(PRUNE_S)

    async def _keep_room(self) -> None:
        while True:
            await self._look_for_room()
            reap_adopted({folder.child for folder in self._book.folders})
            await asyncio.sleep(ROOM_S)

    async def _look_for_room(self) -> None:
        """In the state directory, which is on the node's own disk."""
        config = self._config
        found = await asyncio.to_thread(shortage, {"state": config.state}, config.free_bytes_min)
        if found != self._shortage:
            logger.warning("no room for new leases" if found else "room for new leases", extra={"detail": found})
            self._shortage = found
            self._changed.set()

    def _see(self, sight: Sight) -> None:
        """The checkpoint directory is seen, or is not, or is another one."""
        config = self._config
        self._memory = memory.seeing(config.state, self._memory, config.checkpoints, sight.directory)
        self._changed.set()

    async def _stop_jobs(self) -> None:
        """Stops all jobs in good order, and waits until they have ended and the scheduler knows."""
        self._is_draining = True
        now_clock_s = clock_s()
        for folder in self._book.folders:
            if folder.end is None and not folder.orders.stop:
                orders = folder.orders
                self._book.act(
                    Amend(folder.lease, orders.until_clock_s, True, orders.kill, orders.steps_saved), now_clock_s
                )
        graces = [folder.assignment.grace_s for folder in self._book.folders if folder.assignment]
        deadline_s = now_clock_s + 2 * max(graces, default=0.0) + STOP_SLACK_S
        while any(folder.end is None for folder in self._book.folders) and clock_s() < deadline_s:
            await asyncio.sleep(LOOK_S / 2)
        self._changed.set()
        until_s = clock_s() + LAST_WORDS_S
        while not self._is_all_known() and clock_s() < until_s:
            await asyncio.sleep(LOOK_S / 10)

    def _is_all_known(self) -> bool:
        """Whether the scheduler has heard how every lease here ended: what was sent may be lost with the stream."""
        forgotten = self._orders.forget if self._orders else frozenset()
        return all(folder.lease in forgotten for folder in self._book.folders)
