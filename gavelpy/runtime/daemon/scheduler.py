"""The scheduler object behind the gRPC services: core, journal, nodes, leases, engine, and the operations on them.

Only the event loop accesses the core, the lease table, the nodes and the job history, never across an await, so they
are consistent between two awaits. Reads are plain attributes. Changes go through the driver: they are written to the
journal, applied to the core and executed before the caller is answered. Reports of agents update the lease table at
once and become events in the driver's next batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from gavelpy.errors import GavelError, InvalidInput
from gavelpy.estimator.learning_loop import RatesLearned
from gavelpy.journal.store import EventStore
from gavelpy.mechanism.accept import NAMES_SHOWN
from gavelpy.mechanism.events import (
    NO_INTS,
    AllocationSolved,
    ConfigChanged,
    Event,
    JobCancelled,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    NodeDraining,
    NodeLost,
    PolicyChanged,
    PriorityChanged,
    ReservationAdded,
    ReservationRemoved,
)
from gavelpy.mechanism.lifecycle import LAST_ALIVE
from gavelpy.mechanism.priority_classes import check_class
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.windows import Window, in_the_way
from gavelpy.model.job import JobSpec, NodeId
from gavelpy.runtime.daemon.archivist import Archivist
from gavelpy.runtime.daemon.command_executor import CommandExecutor
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.driver import Driver
from gavelpy.runtime.daemon.engine.engine_process import Answer as EngineAnswer
from gavelpy.runtime.daemon.engine.engine_process import EngineProcess
from gavelpy.runtime.daemon.engine.forecasts import Forecasts
from gavelpy.runtime.daemon.engine.policy_choice import EstimationChoice, PolicyChoice
from gavelpy.runtime.daemon.engine.throughput_files import rates_again, read_table
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.metrics import SchedulerMetrics
from gavelpy.runtime.daemon.nodes.quorum_views import VIEWS
from gavelpy.runtime.daemon.nodes.registry import joined
from gavelpy.runtime.daemon.queries.past import PastQueries
from gavelpy.runtime.daemon.recovery import (
    CONFIGURED,
    Recovered,
    boot_id,
    configured_choice,
    configured_settings,
    configured_text,
)
from gavelpy.runtime.daemon.rpc.agent_logs import LogNodes
from gavelpy.runtime.daemon.rpc.tunnels import Tunnels
from gavelpy.runtime.daemon.submissions import Submissions, Submitted
from gavelpy.runtime.snapshots import DIRECTORY as SNAPSHOTS
from gavelpy.runtime.storage import StorageWorkers

logger = logging.getLogger(__name__)
_FIXED = ("scheduler", "nodes", "security", "throughputs", "limits", "notifications", "journal", "prices", "standby")
Answer = TypeVar("Answer")


class NodeAction(Enum):
    """An operator's action on a node."""

    DRAIN = "drain"
    RESUME = "resume"
    LOST = "lost"


class Scheduler:
    """Start it with `run`; services call the other methods."""

    def __init__(self, config: Config, store: EventStore, recovered: Recovered) -> None:
        self.config = config
        self.clock = recovered.clock
        self.core = recovered.core  # read only, here and in services
        self.history = recovered.history
        self.cluster_id = recovered.cluster_id
        self.incarnation = recovered.incarnation
        self.choice = recovered.choice  # the policy in force
        self.metrics = SchedulerMetrics()
        self.logs = LogNodes()
        self.tunnels = Tunnels(self.logs)
        given = config.throughputs
        estimation = EstimationChoice(given.estimate, given.model, given.profile_gpu_s, config.mechanism.round_s)
        choice = self.choice.within(self.core.settings)
        self.engine = EngineProcess(choice, self._answered, estimation=estimation)
        self.execution = CommandExecutor(self, config.nodes, boot_id(), config.throughputs, recovered.views)
        self.execution.usd_per_gpu_h = config.prices.usd_per_gpu_h
        self.execution.quorum_views.keep = self._keep_views
        self.measuring = self.execution.measuring
        self.storage = StorageWorkers()  # for storage that may hang
        self.nodes, self.leases = self.execution.nodes, self.execution.leases
        self.driver = Driver(self.core, store, self.clock, self.execution, recovered.sequence, recovered.replayed)
        self.past = PastQueries(self, store.reader())
        self.driver.archivist = Archivist(self, config.journal)
        self.execution.wake_driver = self.driver.wake
        self.began_s = self.clock.now_s()
        self.forecasts = Forecasts()
        self.version = 0  # grows with every batch of events
        self.follows = ""  # it leads
        self.is_ready = asyncio.Event()  # the recovered state is in force
        self._opening = (*recovered.events, *self.execution.priced(self.core.pool.gpu_types))
        self._table = read_table(config.throughputs.file)  # digest of the file
        self._changed = asyncio.Event()
        self._submissions = Submissions(self)
        self._keeping: asyncio.Task[None] | None = None  # of views

    # Reading ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.config.scheduler.name

    @property
    def snapshot_directory(self) -> str:
        """Where clients put archives of code; empty = there is no shared directory."""
        root = self.config.nodes.checkpoint_directory
        return str(Path(root).absolute() / SNAPSHOTS) if root else ""

    def now_s(self) -> float:
        """The scheduler's time; the core's may lag behind."""
        return max(self.clock.now_s(), self.core.now_s)

    def wall_s(self, now_s: float) -> float:
        """Unix time of a time of the scheduler's clock."""
        return self.clock.wall_s(now_s)

    def job_named(self, owner: str, name: str) -> int:
        """Serial of the owner's newest job of this name; -1 = none."""
        return self.history.newest(owner, name)

    async def wait_changed(self, version: int, timeout_s: float) -> int:
        """Waits until the version changes or the timeout; returns the version."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.version == version:
            rest_s = deadline_s - asyncio.get_running_loop().time()
            if rest_s <= 0:
                break
            try:
                async with asyncio.timeout(rest_s):
                    await self._changed.wait()
            except TimeoutError:
                break
        return self.version

    async def read_journal(self, read: Callable[[EventStore], Answer]) -> Answer:
        """Calls a short function on the journal in the journal's thread; returns its result."""
        return await self.driver.journal(read)

    # Jobs ---------------------------------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec], key: str, owner: str) -> Submitted:
        """Submits all jobs or none: see `Submissions.submit`."""
        return await self._submissions.submit(specs, key, owner)

    async def cancel(self, serials: Sequence[int]) -> None:
        """Cancels jobs that are not over. Raises InvalidInput for an unknown serial."""
        self._check_serials(serials)
        await self.driver.apply([JobCancelled(job) for job in dict.fromkeys(serials)])

    async def cancel_app(self, serials: Sequence[int]) -> int:
        """Cancels those of these jobs of an app that are not over, in one transaction; returns how many.

        Jobs that wait at a rung come first, so that no rung is decided between two of them.
        """
        self._check_serials(serials)
        jobs = self.core.jobs
        living = [job for job in serials if jobs.by_serial.state[job] <= LAST_ALIVE]
        living.sort(key=lambda job: (jobs.ids.row(job) not in jobs.apps.at_rung, job))
        if living:
            await self.driver.apply([JobCancelled(job) for job in living])
        return len(living)

    async def hold(self, serials: Sequence[int], *, by_admin: Sequence[int] = ()) -> None:
        """Holds jobs that are not over, some of them as an admin. Raises InvalidInput for an unknown serial."""
        self._check_serials(serials)
        parts = (([job for job in serials if job not in by_admin], False), (by_admin, True))
        await self.driver.apply([JobsHeld(np.array(jobs, dtype=np.int64), admin) for jobs, admin in parts if jobs])

    async def release(self, serials: Sequence[int], *, by_admin: bool) -> None:
        """Releases held jobs; those that an admin holds only `by_admin`. Raises InvalidInput for an unknown serial."""
        self._check_serials(serials)
        await self.driver.apply([JobsReleased(np.array(serials, dtype=np.int64), by_admin)])

    async def requeue(self, serials: Sequence[int]) -> None:
        """Stops the leases of jobs in order; they stay in the queue. Raises InvalidInput for an unknown serial."""
        self._check_serials(serials)
        await self.driver.apply([JobsRequeued(np.array(serials, dtype=np.int64))])

    async def change_priority(self, serials: Sequence[int], priority: str, *, by_admin: bool) -> None:
        """Moves jobs to another priority class, which must be open to their owners unless an admin does it."""
        self._check_serials(serials)
        for owner in {None} if by_admin else {self.core.jobs.by_serial.specs[job].owner for job in serials}:
            check_class(priority, self.core.settings, owner)
        await self.driver.apply([PriorityChanged(np.array(serials, dtype=np.int64), priority)])

    def _check_serials(self, serials: Sequence[int]) -> None:
        for job in serials:
            if not 0 <= job < self.core.jobs.by_serial.count:
                raise InvalidInput(f"job must be in [0, {self.core.jobs.by_serial.count}), got {job}")

    # Nodes and policy ---------------------------------------------------------------------------------------------

    async def set_node(self, node_id: str, action: NodeAction, *, force: bool = False) -> None:
        """Drains a node (with `force`, also of jobs that are not preempted), resumes it, or declares it lost.

        Raises InvalidInput.
        """
        node = self.nodes.get(node_id)
        known = NodeId(node_id) in self.core.pool.node_row
        if not known:
            raise InvalidInput(
                f"node must be one of {', '.join(self.core.pool.node_ids) or 'none yet'}, got {node_id!r}"
            )
        match action:
            case NodeAction.DRAIN:
                event: Event = NodeDraining(NodeId(node_id), force)
            case NodeAction.RESUME:
                if node is None or not node.is_connected:
                    raise InvalidInput(f"node {node_id!r} must be connected to be resumed; it is not")
                event = joined(self.core.pool, node, self.cluster_id)
            case NodeAction.LOST:
                if node is not None and node.is_connected:
                    raise InvalidInput(
                        f"node {node_id!r} must be disconnected to be declared lost; it is connected: drain it"
                    )
                event = NodeLost(NodeId(node_id), is_forgotten=True)
        await self.driver.apply([event])

    async def reserve(self, wanted: Window, *, force: bool = False) -> list[str]:
        """Reserves nodes, or replaces the reservation of this name; its times are Unix times. Raises InvalidInput.

        Returns notes on jobs that are not preempted and would still run there at the begin: only with `force`.
        """
        now_s = self.now_s()
        begin_s, end_s = (now_s + moment - self.wall_s(now_s) for moment in (wanted.begin_s, wanted.end_s))
        window = replace(wanted, begin_s=begin_s, end_s=end_s)
        stay = self.core.jobs.ids.of_rows(in_the_way(self.core, window)) if wanted.users else NO_INTS
        notes = [f"job {job} ({name_of(self.core.jobs.by_serial.specs[job].id)})" for job in stay.tolist()]
        if notes and not force:
            more = f" and {len(notes) - NAMES_SHOWN} more" if len(notes) > NAMES_SHOWN else ""
            jobs = f"{', '.join(notes[:NAMES_SHOWN])}{more}"
            raise InvalidInput(
                f"reservation {wanted.name!r}: {jobs} cannot be preempted and may still run there when it begins; "
                "choose other nodes or times, or add --force: it gets their GPUs when they end"
            )
        event = ReservationAdded(wanted.name, wanted.node_ids, begin_s, end_s, wanted.reason, wanted.users)
        await self.driver.apply([event])
        return [f"{note} runs on; the reservation gets its GPUs when it ends" for note in notes]

    async def delete_reservation(self, name: str) -> None:
        """Deletes a reservation; its nodes are usable again. Raises InvalidInput if there is none."""
        await self.driver.apply([ReservationRemoved(name)])

    async def set_policy(self, name: str = "", parameters: str = "", round_s: float = 0.0) -> None:
        """Changes the policy, its parameters (JSON) or the round length; empty or 0 = unchanged."""
        choice = self.choice.changed(name, parameters) if name or parameters else self.choice
        settings = self.config.with_round(self.core.settings, round_s) if round_s else self.core.settings
        await self._change(choice, self.config.for_policy(settings, choice.policy))

    async def reload(self, config: Config) -> list[str]:
        """Applies changes of the configuration; returns the names of changed settings that need a restart.

        If the throughputs file has changed it is read again, and jobs that were submitted without rates receive new
        ones. Raises InvalidInput without a change if the configuration is invalid.
        """
        file = config.throughputs.file
        table = await asyncio.to_thread(read_table, file)
        is_other_table = (file, table) != (self.choice.throughputs_file, self._table)
        version = self.choice.throughputs_version + is_other_table
        choice = replace(configured_choice(config), throughputs_version=version)
        if is_other_table:
            self._table, self.choice = table, self.choice.over(choice)
            self.engine.change(self.choice)
        await self._change(choice, configured_settings(config, choice))
        if is_other_table:
            logger.info("throughputs read again", extra={"file": file})
            self.engine.ask(rates_again(self.core))
        ignored = [
            f"{section}.{name}"
            for section in _FIXED
            for name, value in msgspec.structs.asdict(getattr(config, section)).items()
            if value != getattr(getattr(self.config, section), name) and (section, name) != ("throughputs", "file")
        ]
        self.config = msgspec.structs.replace(
            self.config,
            policy=config.policy,
            mechanism=config.mechanism,
            mechanism_given=config.mechanism_given,
            jobs=config.jobs,
            throughputs=msgspec.structs.replace(self.config.throughputs, file=file),
        )
        await self.read_journal(lambda store: store.set_meta(CONFIGURED, configured_text(config)))
        return ignored

    async def _change(self, choice: PolicyChoice, settings: MechanismSettings) -> None:
        choice.refuse_living(self.core.jobs)
        events: list[Event] = [choice.event] if choice != self.choice else []
        if settings != self.core.settings:
            events.append(ConfigChanged(settings))
        if events:
            await self.driver.apply(events)

    # Running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until `stop` is called; raises the first error of a task."""
        watching = asyncio.create_task(self._watch())
        await asyncio.sleep(0)  # the recovered events are first in the driver's queue now
        tasks = [watching, *(asyncio.create_task(part) for part in (self.driver.run(), self._answer_questions()))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.engine.stop()
            self.storage.close()
            self.past.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Completes pending changes and writes a snapshot."""
        await self.driver.stop()

    def _keep_views(self, text: str, done: Callable[[], None]) -> None:
        """Writes views to the journal; none is sent before `done` is called."""

        async def keep() -> None:
            try:
                await self.read_journal(lambda store: store.set_meta(VIEWS, text))
            except GavelError as error:  # the scheduler stops, or the driver fails, too
                logger.warning("views not kept", extra={"detail": str(error)})
            else:
                done()

        self._keeping = asyncio.create_task(keep())

    async def _watch(self) -> None:
        await self.driver.apply(self._opening)
        text = configured_text(self.config)
        noting = asyncio.create_task(self.read_journal(lambda store: store.set_meta(CONFIGURED, text)))
        await asyncio.sleep(0)  # it is in the journal's queue now, before any change
        self.is_ready.set()
        await noting
        await self.execution.watch()

    async def _answer_questions(self) -> None:
        """Runs the engine once the scheduler is ready, because starting its process uses much CPU time."""
        await self.is_ready.wait()
        await self.engine.run()

    def batch_applied(self) -> None:
        """Wakes callers that wait for a change."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def policy_changed(self, event: PolicyChanged) -> None:
        """Switches the engine to another policy."""
        self.choice = self.choice.after(event)
        self.engine.change(self.choice)

    def _answered(self, answer: EngineAnswer, seconds: float) -> None:
        if isinstance(answer, RatesLearned):
            if (event := self.measuring.learned(answer, seconds)) is not None:
                self.driver.put(event)
            return
        self.metrics.answered(answer, seconds)
        if isinstance(answer, AllocationSolved) and answer.warning:
            logger.warning("allocation not fully proved", extra={"epoch": answer.epoch, "detail": answer.warning})
        self.driver.put(answer)
