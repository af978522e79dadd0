"""Start leases, and count the checkpoints of those that have ended.

Calls to storage, which can hang, run in worker processes; the shim is started from the agent's loop.
"""

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
from gavelpy.runtime.lease_files import Launch, LeaseOutcome, clock_s
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
PREPARE_S: Final = 60.0
_CHECK_S = 0.1  # of the terms, while storage does not answer


class LeaseNotStarted(RemoteViolation):
    """A lease cannot be started. The outcome is FAILED for a problem of the job, LOST for one of the node."""

    def __init__(self, outcome: LeaseOutcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class Starter:
    """Starts leases. Calls `changed` when one has started, or has ended instead."""

    environment: NodeEnvironment  # set before the first start

    def __init__(
        self, workers: StorageWorkers, changed: Callable[[], None], may_make: Callable[[], bool] = lambda: True
    ) -> None:
        """`may_make`: whether a checkpoint directory without an id is new, so that an id can be made."""
        self._workers, self._may_make = workers, may_make
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, folder: LeaseDirectory) -> None:
        """Starts a lease in the background."""
        task = asyncio.get_running_loop().create_task(self._start(folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancels starts."""
        for task in self._tasks:
            task.cancel()

    async def _start(self, folder: LeaseDirectory) -> None:
        """Prepares and starts; checks the terms again in between."""
        assert folder.assignment is not None, "a lease with an assignment is started"
        names = {"lease": folder.lease, "job": folder.job}
        try:
            launch = await self._prepared(folder)
            _check_orders(folder)
            folder.spawn(launch, clock_s())
            logger.info("lease started", extra={**names, "steps_done": launch.steps_done})
        except LeaseNotStarted as reason:
            folder.conclude(reason.outcome, str(reason), clock_s())
            logger.warning("lease not started: %s", reason, extra=names)
        except OSError as error:
            folder.conclude(LeaseOutcome.LOST, f"the node could not start it: {error}", clock_s())
            logger.exception("lease not started", extra=names)
        self._changed()

    async def _prepared(self, folder: LeaseDirectory) -> Launch:
        """The launch for the shim; raises LeaseNotStarted, also if the terms change while storage does not answer."""
        assignment, node = folder.assignment, self.environment
        assert assignment is not None, "a lease with an assignment is started"
        target = [
            float(assignment.resume_lease),
            assignment.resume_steps,
            assignment.steps_done,
            float(assignment.is_gang_of_nodes),
        ]
        call = self._workers.call(
            prepare,
            str(node.checkpoint_root),
            self._may_make(),
            assignment.checkpoint_directory_id,
            assignment.working_directory,
            folder.job,
            folder.lease,
            target,
            limit_s=PREPARE_S,
        )
        preparing = asyncio.ensure_future(call)
        try:
            while not preparing.done():
                await asyncio.wait({preparing}, timeout=_CHECK_S)
                _check_orders(folder)
            found = preparing.result()
        except StorageSilent as silent:
            raise LeaseNotStarted(LeaseOutcome.LOST, f"{silent} on node {node.node_id}") from silent
        finally:
            preparing.cancel()
        for key, outcome in (("failed", LeaseOutcome.FAILED), ("lost", LeaseOutcome.LOST)):
            if key in found:
                raise LeaseNotStarted(outcome, f"{found[key]} on node {node.node_id}")
        resume = Path(str(found["resume"])) if found["resume"] else None
        token = secrets.token_urlsafe(TOKEN_BYTES)
        context = LeaseContext(folder.lease, folder.job, folder.directory, token, resume, float(found["steps_done"]))
        return launch_of(assignment, context, node)


def _check_orders(folder: LeaseDirectory) -> None:
    """Raises LeaseNotStarted if the lease must not start any more."""
    orders = folder.orders
    if orders.kill:
        raise LeaseNotStarted(LeaseOutcome.LOST, "it was killed before it had started")
    if orders.stop or clock_s() >= orders.until_clock_s:
        raise LeaseNotStarted(LeaseOutcome.STOPPED, "its time was over before it had started")


COUNT_S: Final = 5.0
COUNT_SILENT_S: Final = 0.5  # if the checkpoint directory did not answer the last probe


class CheckpointCounter:
    """Counts the complete checkpoints of ended leases within a time limit. Calls `changed` for each.

    If storage does not answer in time, the reported steps count, and the next lease finds the newest checkpoint itself.
    """

    def __init__(
        self, workers: StorageWorkers, changed: Callable[[], None], answers: Callable[[], bool] = lambda: True
    ) -> None:
        """`answers`: whether the checkpoint directory answered the last probe."""
        self._workers, self._changed, self._answers = workers, changed, answers
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self, folder: LeaseDirectory) -> None:
        """Counts in the background, then finishes the lease."""
        task = asyncio.get_running_loop().create_task(self._count(folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancels counts."""
        for task in self._tasks:
            task.cancel()

    async def _count(self, folder: LeaseDirectory) -> None:
        limit_s = COUNT_S if self._answers() else COUNT_SILENT_S
        steps = 0.0
        try:
            steps = await self._workers.call(whole_steps, folder.checkpoint_directory, limit_s=limit_s)
        except OSError as error:
            logger.warning("cannot read checkpoints: %s", error, extra={"lease": folder.lease, "job": folder.job})
        folder.finish(steps)
        self._changed()
