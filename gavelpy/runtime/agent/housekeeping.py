"""Periodic work of the agent: remove old logs, watch disk space and GPU memory in use, reap orphans of jobs.

Nothing here is urgent, and nothing runs in the agent's loop that can block.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from gavelpy.runtime.agent import gpu_processes
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.job_directory import remove_discarded
from gavelpy.runtime.agent.leases.registry import LeaseRegistry
from gavelpy.runtime.agent.leases.retention import prune
from gavelpy.runtime.agent.mps import Mps
from gavelpy.runtime.checkpoint_directory import shortage
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.shim.processes import reap_adopted

logger = logging.getLogger(__name__)

PRUNE_S: Final = 60.0
DISK_CHECK_S: Final = 2.0
GPU_MEMORY_S: Final = 10.0


def earliest_date_s(began: tuple[float, float], now: tuple[float, float]) -> float:
    """The date for ages of files, which are removed by them: a date that was set forward makes no file old at once.

    `began` and `now`: date and boot clock when the agent started, and now.
    """
    (began_date_s, began_clock_s), (date_s, now_clock_s) = began, now
    return min(date_s, began_date_s + now_clock_s - began_clock_s)


class Housekeeping:
    """Keeps one state directory tidy. Calls `changed` when there is something to report.

    `registries`, to which this one is added: of all agents of this process, whose children their shims are.
    """

    def __init__(
        self,
        config: NodeConfig,
        gpus: Gpus,
        registry: LeaseRegistry,
        registries: list[LeaseRegistry],
        changed: Callable[[], None],
    ) -> None:
        self._config, self._registry, self._registries, self._changed = config, registry, registries, changed
        registries.append(registry)
        self.mps = Mps(config, gpus, changed)
        self._began = time.time(), clock_s()
        self.pruning = asyncio.Lock()  # held while old logs are removed
        self.shortage = ""  # of disk space in the state directory, as a message; empty = none

    async def run(self) -> None:
        """Does all of this until it is cancelled."""
        watching = self.mps.keep_watching()
        await asyncio.gather(self._keep_pruning(), self._keep_checking_disk(), self._keep_measuring(), watching)

    async def _keep_pruning(self) -> None:
        """Removes the logs of leases that ended long ago."""
        while True:
            async with self.pruning:
                removed = await asyncio.to_thread(
                    prune,
                    self._config.state,
                    bytes_max=self._config.ended_log_bytes_max,
                    retention_s=self._config.ended_retention_s,
                    now_s=earliest_date_s(self._began, (time.time(), clock_s())),
                )
                await asyncio.to_thread(remove_discarded, self._config.state)
            if removed:
                logger.info("old logs removed", extra={"leases": removed})
            await asyncio.sleep(PRUNE_S)

    async def _keep_checking_disk(self) -> None:
        """Watches the free space of the state directory; reaps orphans of jobs."""
        while True:
            await self.check_disk()
            reap_adopted({folder.child for registry in self._registries for folder in registry.folders})
            await asyncio.sleep(DISK_CHECK_S)

    async def _keep_measuring(self) -> None:
        """Notes the most GPU memory that each lease was seen to use; does nothing where nvidia-smi is not installed."""
        if not (tool := gpu_processes.find_tool(self._config.vendor)):
            return
        while True:
            await asyncio.sleep(GPU_MEMORY_S)
            shims = {folder.shim_process: folder for folder in self._registry.folders if folder.shim_process}
            used = await asyncio.to_thread(gpu_processes.measured, tool, list(shims)) if shims else {}
            for shim, gib in used.items():
                shims[shim].gpu_memory_gib = max(gib, shims[shim].gpu_memory_gib)

    async def started_mps(self) -> Mps:
        """The Multi-Process Service, after an attempt to start it if it is configured."""
        await asyncio.to_thread(self.mps.start)
        return self.mps

    def close(self) -> None:
        """Stops what no lease needs any more. Blocks for seconds."""
        if all(folder.is_over for folder in self._registry.folders):
            self.mps.stop()

    async def check_disk(self) -> None:
        """Updates `shortage`."""
        config = self._config
        found = await asyncio.to_thread(shortage, {"state": config.state}, config.free_bytes_min)
        if found != self.shortage:
            logger.warning(
                "no disk space for new leases" if found else "disk space for new leases", extra={"detail": found}
            )
            self.shortage = found
            self._changed()
