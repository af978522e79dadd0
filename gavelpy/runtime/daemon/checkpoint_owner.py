"""Marks the shared checkpoint directory as the cluster's."""

from __future__ import annotations

from gavelpy.errors import InvalidInput
from gavelpy.runtime.checkpoint_directory import check_owner, mark
from gavelpy.runtime.storage import StorageSilent, StorageWorkers


async def mark_checkpoints(storage: StorageWorkers, directory: str, cluster_id: str, limit_s: float) -> None:
    """Marks the checkpoint directory as this cluster's. Raises InvalidInput, StorageSilent where it does not answer."""
    if not directory:
        return
    try:
        owner = await storage.call(mark, directory, cluster_id, limit_s=limit_s)
    except StorageSilent:
        raise
    except OSError as error:
        raise InvalidInput(f"nodes.checkpoint_directory = {directory!r} cannot be used: {error}") from None
    check_owner(directory, cluster_id, owner)
