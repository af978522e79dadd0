"""Counts the whole checkpoints of leases that have ended, for at most a while: storage may hang.

What is not counted in time is not lost: what the job reported counts, and the job's next lease looks for the newest
checkpoint itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gavelpy.runtime.agent.folder import LeaseFolder
from gavelpy.runtime.checkpoint_directory import whole_steps
from gavelpy.runtime.storage import StorageWorkers

logger = logging.getLogger(__name__)

COUNT_S: Final = 5.0
COUNT_SILENT_S: Final = 0.5  # while the checkpoint directory is known not to answer


class SavedSteps:
    """Looks into the checkpoint directories of leases; `changed` is called when one is counted."""

    def __init__(
        self, workers: StorageWorkers, changed: Callable[[], None], answers: Callable[[], bool] = lambda: True
    ) -> None:
        """`answers`: whether the checkpoint directory answered when it was last probed."""
        self._workers, self._changed, self._answers = workers, changed, answers
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self, folder: LeaseFolder) -> None:
        """Finishes the lease, in a while."""
        task = asyncio.get_running_loop().create_task(self._count(folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Counts nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def _count(self, folder: LeaseFolder) -> None:
        limit_s = COUNT_S if self._answers() else COUNT_SILENT_S
        steps = 0.0
        try:
            steps = await self._workers.call(whole_steps, folder.checkpoint_directory, limit_s=limit_s)
        except OSError as error:
            logger.warning("checkpoints cannot be read: %s", error, extra={"lease": folder.lease, "job": folder.job})
        folder.finish(steps)
        self._changed()
