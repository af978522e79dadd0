"""Starting a lease. What may hang (a shared file system) is done in threads; the agent's loop starts the shim."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.agent.assignment import Assignment
from gavelpy.runtime.agent.checkpoints import CheckpointMissing, CheckpointsForeign, CheckpointUnseen, resume_of
from gavelpy.runtime.agent.environment import Spot, Surroundings, launch_of
from gavelpy.runtime.agent.folder import LeaseFolder
from gavelpy.runtime.lease_files import Launch, Outcome, clock_s

logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
_THREADS = 8


class CannotStart(RemoteViolation):
    """A lease cannot be started; the outcome says whether the job or the node is at fault."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class Starter:
    """Starts leases; `changed` is called when one has been started or has ended instead."""

    around: Surroundings  # set before the first start

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._threads = ThreadPoolExecutor(_THREADS, "start")
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, folder: LeaseFolder) -> None:
        """Starts a lease, in a while."""
        task = asyncio.get_running_loop().create_task(self._start(folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Lets go of starts that hang; nothing is started any more."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _start(self, folder: LeaseFolder) -> None:
        """Checks the orders once more when all is ready: they may have changed, and time has passed."""
        assert folder.assignment is not None, "a lease is started from its assignment"
        loop = asyncio.get_running_loop()
        names = {"lease": folder.lease, "job": folder.job}
        try:
            launch = await loop.run_in_executor(
                self._threads, prepared, folder.assignment, folder.lease, folder.job, folder.directory, self.around
            )
            orders = folder.orders
            if orders.kill:
                raise CannotStart(Outcome.LOST, "it was killed before it had started")
            if orders.stop or clock_s() >= orders.until_clock_s:
                raise CannotStart(Outcome.STOPPED, "its time was over before it had started")
            folder.spawn(launch, clock_s())
            logger.info("lease started", extra={**names, "steps_done": launch.steps_done})
        except CannotStart as reason:
            folder.conclude(reason.outcome, str(reason), clock_s())
            logger.warning("lease not started: %s", reason, extra=names)
        except OSError as error:
            folder.conclude(Outcome.LOST, f"the node could not start it: {error}", clock_s())
            logger.exception("lease not started", extra=names)
        self._changed()


def prepared(assignment: Assignment, lease: int, job: int, directory: Path, around: Surroundings) -> Launch:
    """What the shim will start. Looks for the working directory and the checkpoint; raises CannotStart."""
    where = f"on node {around.node_id}"
    try:
        if not os.path.isdir(assignment.working_directory):  # noqa: PTH112 a Path would turn "" into "."
            wrong = repr(assignment.working_directory)
            raise CannotStart(Outcome.FAILED, f"the working directory {wrong} does not exist {where}")
        resume = resume_of(around.checkpoint_root, job, lease, assignment)
    except (CheckpointMissing, CheckpointsForeign) as wrong_state:
        raise CannotStart(Outcome.FAILED, f"{wrong_state} {where}") from wrong_state
    except CheckpointUnseen as unseen:
        raise CannotStart(Outcome.LOST, f"{unseen} {where}") from unseen
    except OSError as error:
        raise CannotStart(Outcome.LOST, f"the checkpoint directory cannot be used {where}: {error}") from error
    token = secrets.token_urlsafe(TOKEN_BYTES)
    spot = Spot(lease, job, directory, token, resume.directory, resume.steps_done)
    return launch_of(assignment, spot, around)
