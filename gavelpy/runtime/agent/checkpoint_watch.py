"""What this node sees of its checkpoint directory: a fact with a time and three values, kept up to date by probes.

Seen: the directory has answered, and this is its id. Not seen: it has answered that it cannot be used. Unknown: it does
not answer; what was seen last stays in force. A node whose directory is not seen, or not known, takes no new leases;
leases that run there continue. Only worker processes touch the directory: see `gavelpy.runtime.storage`.
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
SILENT_S: Final = 5.0  # a directory that takes longer does not answer
ABANDON_S: Final = 60.0  # a probe that hangs for so long is abandoned: what hangs may have been mounted again


class DirectoryState(StrEnum):
    """Whether a node sees its checkpoint directory."""

    UNKNOWN = "unknown"
    AVAILABLE = "seen"
    UNAVAILABLE = "not seen"


@dataclass(frozen=True)
class DirectoryStatus:
    """What was found, and since when it is so."""

    state: DirectoryState
    directory: str = ""  # id of the directory that was seen last; empty = none ever
    cluster: str = ""  # id of the cluster that it belongs to
    trouble: str = ""  # why no lease can begin, for people; empty = one can
    since_clock_s: float = 0.0


class CheckpointWatch:
    """Probes one directory. `changed` is called when something else is so than before."""

    def __init__(
        self,
        workers: StorageWorkers,
        root: str,
        bytes_min: int,
        changed: Callable[[DirectoryStatus], None],
        *,
        is_own: bool = False,
        known: str = "",
        silent_s: float = SILENT_S,
        probe_s: float = PROBE_S,
    ) -> None:
        """`is_own`: the node made the directory below its state directory. `known`: its id, if it was seen before."""
        self.sight = DirectoryStatus(DirectoryState.UNKNOWN, directory=known, since_clock_s=clock_s())
        self._workers, self._root, self._bytes_min, self._changed = workers, root, bytes_min, changed
        self._is_own, self._silent_s, self._probe_s = is_own, silent_s, probe_s
        self._first = asyncio.Event()

    @property
    def is_new(self) -> bool:
        """Whether a directory without an id is a new one. Where the node saw an id before, a mount is missing."""
        return self._is_own or not self.sight.directory

    @property
    def answers(self) -> bool:
        """Whether the directory answered the last probe."""
        return self.sight.state is not DirectoryState.UNKNOWN

    async def wait_first(self, limit_s: float) -> None:
        """Until the directory has answered once, or does not."""
        try:
            async with asyncio.timeout(limit_s):
                await self._first.wait()
        except TimeoutError:
            return

    async def keep_looking(self) -> None:
        """Probes again and again."""
        while True:
            await self._probe()
            await asyncio.sleep(self._probe_s)

    async def _probe(self) -> None:
        call = self._workers.call(
            checkpoint_directory.look, self._root, self.is_new, self._bytes_min, limit_s=max(ABANDON_S, self._silent_s)
        )
        probe = asyncio.ensure_future(call)
        try:
            done, _ = await asyncio.wait({probe}, timeout=self._silent_s)
            if not done:
                self._is_silent()
            found = await probe
        except StorageSilent:
            self._is_silent()
            return
        except OSError as error:
            self._is(DirectoryState.UNKNOWN, trouble=f"cannot probe the checkpoint directory ({self._root!r}): {error}")
            return
        finally:
            probe.cancel()
        if found["directory"]:
            self._is(DirectoryState.AVAILABLE, found["directory"], found["cluster"], found["trouble"])
        else:
            self._is(DirectoryState.UNAVAILABLE, trouble=found["trouble"])

    def _is_silent(self) -> None:
        self._is(DirectoryState.UNKNOWN, trouble=f"the checkpoint directory ({self._root!r}) does not answer")

    def _is(self, state: DirectoryState, directory: str = "", cluster: str = "", trouble: str = "") -> None:
        before = self.sight
        seen = directory or before.directory, cluster if directory else before.cluster
        now = replace(before, state=state, directory=seen[0], cluster=seen[1], trouble=trouble)
        self._first.set()
        if now == before:
            return
        self.sight = replace(now, since_clock_s=clock_s()) if now.state is not before.state else now
        detail = {"state": state.value, "directory": now.directory, "detail": trouble}
        logger.warning("checkpoint directory", extra=detail) if trouble else logger.info(
            "checkpoint directory", extra=detail
        )
        self._changed(self.sight)


def watch_of(
    config: NodeConfig, workers: StorageWorkers, changed: Callable[[DirectoryStatus], None], memory: AgentState
) -> CheckpointWatch:
    """Watches a node's checkpoint directory, which it may have seen before."""
    root, is_own = str(config.checkpoints), config.has_own_checkpoints
    known = memory.directory if memory.checkpoints == root else ""
    return CheckpointWatch(workers, root, config.free_bytes_min, changed, is_own=is_own, known=known)
