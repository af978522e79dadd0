"""The file in the shared checkpoint directory that names the cluster it belongs to."""

from __future__ import annotations

from pathlib import Path

from gavelpy.errors import InvalidInput

MARKER = ".gavel-cluster"
_DIRECTORY_MODE = 0o700


def owner_of(directory: str) -> str:
    """The id of the cluster that uses a checkpoint directory; "" where there is none yet. Raises InvalidInput."""
    marker = Path(directory) / MARKER
    try:
        return marker.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"nodes.checkpoint_directory = {directory!r} cannot be used: {error}") from None


def mark_checkpoints(directory: str, cluster_id: str) -> None:
    """Writes the cluster's id into the shared directory, where nodes look for it; raises InvalidInput."""
    if not directory:
        return
    marker = Path(directory) / MARKER
    owner = owner_of(directory)
    if owner and owner != cluster_id:
        raise InvalidInput(
            f"nodes.checkpoint_directory = {directory!r} must be this cluster's; {marker} says it is of {owner[:80]!r}"
        )
    if owner:
        return
    try:
        marker.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        marker.write_text(cluster_id + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"nodes.checkpoint_directory = {directory!r} cannot be used: {error}") from None
