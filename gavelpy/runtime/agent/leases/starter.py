"""Start leases, and count the checkpoints of those that have ended.

Calls to storage, which can hang, run in worker processes; the shim is started from the agent's loop. With OwnerRules
each job runs as its owner; the account is looked up at each start, so that changes apply to the next lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.accounts import NO_ACCOUNT, account_of
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.environment import LeaseContext, NodeEnvironment, launch_of
from gavelpy.runtime.agent.leases.reconcile import WITHDRAWN
from gavelpy.runtime.agent.leases.resume import prepare
from gavelpy.runtime.checkpoint_directory import whole_steps
from gavelpy.runtime.lease_files import Launch, LeaseOutcome, clock_s
from gavelpy.runtime.shim.failures import FailureKind
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
PREPARE_S: Final = 60.0
_CHECK_S = 0.1  # of the terms, while storage does not answer
COUNT_S: Final = 5.0
COUNT_SILENT_S: Final = 0.5  # if the checkpoint directory did not answer the last probe


@dataclass(frozen=True)
class OwnerRules:
    """Which owners' jobs a node runs, as their accounts."""

    node_id: str
    accounts: Mapping[str, str]  # by owner, where the names differ
    allow_root: bool
    only_uid: int  # the agent is not root and runs jobs of this account only; NO_ACCOUNT = it is root

    def arguments(self, owner: str) -> tuple[str, str, str, bool, int]:
        """The arguments of `find_account` for an owner."""
        return owner, self.accounts.get(owner, owner), self.node_id, self.allow_root, self.only_uid


def owner_rules_of(config: NodeConfig) -> OwnerRules | None:
    """The rules of a node; None if its jobs run as the agent."""
    if not config.runs_as_owner:
        return None
    only_uid = NO_ACCOUNT if os.geteuid() == 0 else os.geteuid()
    return OwnerRules(config.node_id, config.users, config.allow_root, only_uid)


class LeaseNotStarted(RemoteViolation):
    """A lease cannot be started. The outcome is FAILED for a problem of the job, LOST for one of the node."""

    def __init__(self, outcome: LeaseOutcome, detail: str, failure: FailureKind = FailureKind.UNKNOWN) -> None:
        super().__init__(detail)
        self.outcome, self.failure = outcome, failure


class Starter:
    """Starts leases, and counts the complete checkpoints of those that have ended, in the background.

    Calls `changed` when a lease has started or ended. A count has a time limit: if storage does not answer in time, the
    reported steps count, and the next lease finds the newest checkpoint itself.
    """

    environment: NodeEnvironment  # set before the first start
    owners: OwnerRules | None = None  # None = jobs run as the agent

    def __init__(
        self,
        workers: StorageWorkers,
        changed: Callable[[], None],
        may_make: Callable[[], bool] = lambda: True,
        answers: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_make`: whether a checkpoint directory without an id is new, so that an id can be made.

        `answers`: whether the checkpoint directory answered the last probe.
        """
        self._workers, self._changed = workers, changed
        self._may_make, self._answers = may_make, answers
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, folder: LeaseDirectory) -> None:
        """Starts a lease in the background."""
        self._run(self._start(folder))

    def count(self, folder: LeaseDirectory) -> None:
        """Counts the checkpoints of a lease in the background, then finishes it."""
        self._run(self._count(folder))

    def close(self) -> None:
        """Cancels starts and counts."""
        for task in self._tasks:
            task.cancel()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            folder.conclude(reason.outcome, str(reason), clock_s(), reason.failure)
            logger.warning("lease not started: %s", reason, extra=names)
        except OSError as error:
            folder.conclude(LeaseOutcome.LOST, f"the node could not start it: {error}", clock_s())
            logger.exception("lease not started", extra=names)
        self._changed()

    async def _prepared(self, folder: LeaseDirectory) -> Launch:
        """The launch for the shim; raises LeaseNotStarted, also if the terms change while storage does not answer."""
        assignment, node = folder.assignment, self.environment
        assert assignment is not None, "a lease with an assignment is started"
        if assignment.interactive and assignment.is_gang_of_nodes:
            nodes = assignment.node_count
            raise LeaseNotStarted(
                LeaseOutcome.FAILED, f"an interactive job needs its GPUs on one node, got {nodes} nodes"
            )
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
            "/" if assignment.software.snapshot else assignment.working_directory,
            folder.job,
            folder.lease,
            target,
            list(self.owners.arguments(assignment.owner)) if self.owners is not None else [],
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
        if "refused" in found:
            raise LeaseNotStarted(LeaseOutcome.FAILED, found["refused"], FailureKind.REFUSED)
        for key, outcome in (("failed", LeaseOutcome.FAILED), ("lost", LeaseOutcome.LOST)):
            if key in found:
                raise LeaseNotStarted(outcome, f"{found[key]} on node {node.node_id}")
        resume = Path(str(found["resume"])) if found["resume"] else None
        token = secrets.token_urlsafe(TOKEN_BYTES)
        account = account_of(found["account"]) if found["account"] else None
        if image := assignment.software.image:
            uid = account.uid if account else os.geteuid()
            if why := node.images.refusal(image, node.node_id, uid):
                raise LeaseNotStarted(LeaseOutcome.FAILED, why, FailureKind.REFUSED)
        context = LeaseContext(
            folder.lease, folder.job, folder.directory, token, resume, float(found["steps_done"]), account
        )
        return launch_of(assignment, context, node)

    async def _count(self, folder: LeaseDirectory) -> None:
        limit_s = COUNT_S if self._answers() else COUNT_SILENT_S
        steps = 0.0
        try:
            steps = await self._workers.call(
                whole_steps, folder.checkpoint_directory, folder.account_fields, limit_s=limit_s
            )
        except OSError as error:
            logger.warning("cannot read checkpoints: %s", error, extra={"lease": folder.lease, "job": folder.job})
        folder.finish(steps)
        self._changed()


def _check_orders(folder: LeaseDirectory) -> None:
    """Raises LeaseNotStarted if the lease must not start any more."""
    orders = folder.orders
    if orders.kill:
        raise LeaseNotStarted(LeaseOutcome.LOST, "it was killed before it had started")
    if orders.stop or clock_s() >= orders.until_clock_s:
        raise LeaseNotStarted(LeaseOutcome.STOPPED, "its time was over before it had started")
    if folder.is_withdrawn:
        raise LeaseNotStarted(LeaseOutcome.STOPPED, WITHDRAWN)
