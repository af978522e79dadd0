"""Starting a lease. What may hang (shared storage) is done in a worker process; the agent's loop starts the shim."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.environment import LeaseContext, NodeEnvironment, launch_of
from gavelpy.runtime.agent.leases.resume import prepare
from gavelpy.runtime.checkpoint_directory import whole_steps
from gavelpy.runtime.lease_files import Launch, Outcome, clock_s
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
PREPARE_S: Final = 60.0  # storage that takes longer does not answer
_LOOK_S = 0.1  # at the orders while storage does not answer


class CannotStart(RemoteViolation):
    """A lease cannot be started; the outcome says whether the job or the node is at fault."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class Starter:
    """Starts leases; `changed` is called when one has been started or has ended instead."""

    around: NodeEnvironment  # set before the first start

    def __init__(
        self, workers: StorageWorkers, changed: Callable[[], None], may_make: Callable[[], bool] = lambda: True
    ) -> None:
        """`may_make`: whether a checkpoint directory without an id is a new one."""
        self._workers, self._may_make = workers, may_make
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, folder: LeaseDirectory) -> None:
        """Starts a lease, in a while."""
        task = asyncio.get_running_loop().create_task(self._start(folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Lets go of starts that hang; nothing is started any more."""
        for task in self._tasks:
            task.cancel()

    async def _start(self, folder: LeaseDirectory) -> None:
        """Checks the orders once more when all is ready: they may have changed, and time has passed."""
        assert folder.assignment is not None, "a lease is started from its assignment"
        names = {"lease": folder.lease, "job": folder.job}
        try:
            launch = await self._prepared(folder)
            _check_orders(folder)
            folder.spawn(launch, clock_s())
            logger.info("lease started", extra={**names, "steps_done": launch.steps_done})
        except CannotStart as reason:
            folder.conclude(reason.outcome, str(reason), clock_s())
            logger.warning("lease not started: %s", reason, extra=names)
        except OSError as error:
            folder.conclude(Outcome.LOST, f"the node could not start it: {error}", clock_s())
            logger.exception("lease not started", extra=names)
        self._changed()

    async def _prepared(self, folder: LeaseDirectory) -> Launch:
        """What the shim will start; raises CannotStart, also when the orders change while storage does not answer."""
        assignment, around = folder.assignment, self.around
        assert assignment is not None, "a lease is started from its assignment"
        wanted = [
            float(assignment.resume_lease),
            assignment.resume_steps,
            assignment.steps_done,
            float(assignment.is_gang_of_nodes),
        ]
        call = self._workers.call(
            prepare,
            str(around.checkpoint_root),
            self._may_make(),
            assignment.checkpoint_directory_id,
            assignment.working_directory,
            folder.job,
            folder.lease,
            wanted,
            limit_s=PREPARE_S,
        )
        preparing = asyncio.ensure_future(call)
        try:
            while not preparing.done():
                await asyncio.wait({preparing}, timeout=_LOOK_S)
                _check_orders(folder)
            found = preparing.result()
        except StorageSilent as silent:
            raise CannotStart(Outcome.LOST, f"{silent} on node {around.node_id}") from silent
        finally:
            preparing.cancel()
        for key, outcome in (("failed", Outcome.FAILED), ("lost", Outcome.LOST)):
            if key in found:
                raise CannotStart(outcome, f"{found[key]} on node {around.node_id}")
        resume = Path(str(found["resume"])) if found["resume"] else None
        token = secrets.token_urlsafe(TOKEN_BYTES)
        spot = LeaseContext(folder.lease, folder.job, folder.directory, token, resume, float(found["steps_done"]))
        return launch_of(assignment, spot, around)


def _check_orders(folder: LeaseDirectory) -> None:
    """Raises CannotStart where a lease is not to be started any more."""
    orders = folder.orders
    if orders.kill:
        raise CannotStart(Outcome.LOST, "it was killed before it had started")
    if orders.stop or clock_s() >= orders.until_clock_s:
        raise CannotStart(Outcome.STOPPED, "its time was over before it had started")


COUNT_S: Final = 5.0
COUNT_SILENT_S: Final = 0.5  # while the checkpoint directory is known not to answer


class CheckpointCounter:
    """Looks into the checkpoint directories of leases; `changed` is called when one is counted."""

    def __init__(
        self, workers: StorageWorkers, changed: Callable[[], None], answers: Callable[[], bool] = lambda: True
    ) -> None:
        """`answers`: whether the checkpoint directory answered when it was last probed."""
        self._workers, self._changed, self._answers = workers, changed, answers
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self, folder: LeaseDirectory) -> None:
        """Finishes the lease, in a while."""
        task = asyncio.get_running_loop().create_task(self._count(folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Counts nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def _count(self, folder: LeaseDirectory) -> None:
        limit_s = COUNT_S if self._answers() else COUNT_SILENT_S
        steps = 0.0
        try:
            steps = await self._workers.call(whole_steps, folder.checkpoint_directory, limit_s=limit_s)
        except OSError as error:
            logger.warning("checkpoints cannot be read: %s", error, extra={"lease": folder.lease, "job": folder.job})
        folder.finish(steps)
        self._changed()
