"""Whether this node's checkpoint directory is available, kept up to date by probes.

Available: the directory has answered, with its id. Unavailable: it has answered that it cannot be used. Unknown: it
does not answer; the last known id stays. Unless its directory is available, a node accepts no new leases; running
leases continue. Only worker processes access the directory: see `gavelpy.runtime.storage`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gavelpy.runtime import checkpoint_directory
from gavelpy.runtime.agent.agent_state import AgentState
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

logger = logging.getLogger(__name__)

PROBE_S: Final = 2.0  # between probes
TIMEOUT_S: Final = 5.0  # without an answer the state is unknown
ABANDON_S: Final = 60.0  # a probe that hangs longer is abandoned: the storage may have been remounted


class DirectoryAvailability(StrEnum):
    """State of a checkpoint directory."""

    UNKNOWN = "unknown"
    AVAILABLE = "seen"
    UNAVAILABLE = "not seen"


@dataclass(frozen=True)
class DirectoryStatus:
    """The state of the directory, and since when."""

    state: DirectoryAvailability
    directory: str = ""  # last known id; empty = none
    cluster: str = ""  # id of the cluster that marked it
    trouble: str = ""  # why no lease can start; empty = one can
    since_clock_s: float = 0.0


class CheckpointWatch:
    """Probes one directory. Calls `changed` when the status changes."""

    def __init__(
        self,
        workers: StorageWorkers,
        root: str,
        bytes_min: int,
        changed: Callable[[DirectoryStatus], None],
        *,
        is_own: bool = False,
        is_for_owners: bool = False,
        known: str = "",
        timeout_s: float = TIMEOUT_S,
        probe_s: float = PROBE_S,
    ) -> None:
        """`is_own`: the directory is below the node's state directory. `known`: its id, if it was available before.

        `is_for_owners`: jobs run as their owners, who must be able to pass through it.
        """
        self.status = DirectoryStatus(DirectoryAvailability.UNKNOWN, directory=known, since_clock_s=clock_s())
        self._workers, self._root, self._bytes_min, self._changed = workers, root, bytes_min, changed
        self._is_for_owners = is_for_owners
        self._is_own, self._timeout_s, self._probe_s = is_own, timeout_s, probe_s
        self._first = asyncio.Event()

    @property
    def is_new(self) -> bool:
        """Whether a directory without an id is new. If it had an id before, it is probably not mounted."""
        return self._is_own or not self.status.directory

    @property
    def answers(self) -> bool:
        """Whether the directory answered the last probe."""
        return self.status.state is not DirectoryAvailability.UNKNOWN

    async def wait_first(self, limit_s: float) -> None:
        """Waits for the first answer or timeout, at most `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._first.wait()
        except TimeoutError:
            return

    async def keep_probing(self) -> None:
        """Probes periodically."""
        while True:
            await self._probe()
            await asyncio.sleep(self._probe_s)

    async def _probe(self) -> None:
        call = self._workers.call(
            checkpoint_directory.look,
            self._root,
            self.is_new,
            self._bytes_min,
            self._is_for_owners,
            limit_s=max(ABANDON_S, self._timeout_s),
        )
        probe = asyncio.ensure_future(call)
        try:
            done, _ = await asyncio.wait({probe}, timeout=self._timeout_s)
            if not done:
                self._set_unknown()
            found = await probe
        except StorageSilent:
            self._set_unknown()
            return
        except OSError as error:
            self._set(
                DirectoryAvailability.UNKNOWN,
                trouble=f"cannot probe the checkpoint directory ({self._root!r}): {error}",
            )
            return
        finally:
            probe.cancel()
        if found["directory"]:
            self._set(DirectoryAvailability.AVAILABLE, found["directory"], found["cluster"], found["trouble"])
        else:
            self._set(DirectoryAvailability.UNAVAILABLE, trouble=found["trouble"])

    def _set_unknown(self) -> None:
        self._set(DirectoryAvailability.UNKNOWN, trouble=f"the checkpoint directory ({self._root!r}) does not answer")

    def _set(self, state: DirectoryAvailability, directory: str = "", cluster: str = "", trouble: str = "") -> None:
        before = self.status
        seen = directory or before.directory, cluster if directory else before.cluster
        now = replace(before, state=state, directory=seen[0], cluster=seen[1], trouble=trouble)
        self._first.set()
        if now == before:
            return
        self.status = replace(now, since_clock_s=clock_s()) if now.state is not before.state else now
        detail = {"state": state.value, "directory": now.directory, "detail": trouble}
        logger.warning("checkpoint directory", extra=detail) if trouble else logger.info(
            "checkpoint directory", extra=detail
        )
        self._changed(self.status)


def watch_of(
    config: NodeConfig, workers: StorageWorkers, changed: Callable[[DirectoryStatus], None], memory: AgentState
) -> CheckpointWatch:
    """A watch of the node's checkpoint directory."""
    root, is_own = str(config.checkpoints), config.has_own_checkpoints
    known = memory.directory if memory.checkpoints == root else ""
    return CheckpointWatch(
        workers,
        root,
        config.free_bytes_min,
        changed,
        is_own=is_own,
        is_for_owners=config.switches_accounts,
        known=known,
    )
