"""The cluster that the shared checkpoint directory belongs to, as the scheduler reads it and writes it there."""

from __future__ import annotations

from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.runtime.checkpoint_directory import MARKER_FILE, check_owner, mark
from gavelpy.runtime.storage import StorageSilent, StorageWorkers


def owner_of(directory: str) -> str:
    """The id of the cluster that uses a checkpoint directory; "" where there is none yet. Raises InvalidInput."""
    marker = Path(directory) / MARKER_FILE
    try:
        return marker.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"nodes.checkpoint_directory = {directory!r} cannot be used: {error}") from None


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
