"""Recovers the cluster id and used numbers from the checkpoint directory after the journal has lost events.

Worker processes read the directory within a time limit, because its storage may hang. The scheduler does this at its
start, before it serves.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from gavelpy.errors import InvalidInput
from gavelpy.journal.loss_detection import Numbers
from gavelpy.runtime.checkpoint_directory import owner_of, used_numbers
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

LIMIT_S: Final = 60.0  # for the directory to answer


@dataclass(frozen=True)
class CheckpointEvidence:
    """Contents of a checkpoint directory that identify a cluster and its jobs."""

    cluster_id: str = ""  # of its owner; empty = none
    numbers: Numbers = field(default_factory=Numbers)  # the first unused ones


def evidence_in(directory: str, limit_s: float = LIMIT_S) -> CheckpointEvidence:
    """Reads a checkpoint directory; empty = there is none. Raises InvalidInput where it cannot be read in time."""
    if not directory:
        return CheckpointEvidence()
    try:
        with ThreadPoolExecutor(1) as thread:  # the caller may run an event loop
            return thread.submit(asyncio.run, _read(directory, limit_s)).result()
    except StorageSilent:
        why = f"does not answer within {limit_s:g} s; start again when it answers"
    except OSError as error:
        why = f"cannot be used: {error}"
    raise InvalidInput(
        f"nodes.checkpoint_directory = {directory!r} must be readable when events of the journal are lost, because it "
        f"shows which numbers were used; it {why}"
    )


async def _read(directory: str, limit_s: float) -> CheckpointEvidence:
    storage = StorageWorkers()
    try:
        async with asyncio.timeout(limit_s):
            cluster_id = await storage.call(owner_of, directory, limit_s=limit_s)
            jobs, leases = await storage.call(used_numbers, directory, limit_s=limit_s)
    except TimeoutError:
        raise StorageSilent(f"storage did not answer within {limit_s:g} s") from None
    finally:
        storage.close()
    return CheckpointEvidence(cluster_id, Numbers(jobs, leases))
