"""Identity and disk space of a checkpoint directory: its id, its cluster, and whether it can be written.

There are two small files in its root. `.gavel-directory` contains a random id, made by the first node that uses the
directory: nodes that read the same id share the directory, at any path. `.gavel-cluster` contains the id of the cluster
that it is marked for. The directory can be on shared storage that hangs: agents and the scheduler call these functions
in a `StorageWorkers` process only, except `shortage` of a local directory. Standard library only.

A lease starts with files in the state directory and ends with a checkpoint. Without space for either (`shortage`), the
node accepts no new leases; running leases continue, as there may be space again when they save.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import get_native_id
from typing import Any, Final

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.accounts import account_of, acting_as
from gavelpy.runtime.whole_files import read_text_whole, write_text_whole

MARKER_FILE: Final = ".gavel-cluster"
ID_FILE: Final = ".gavel-directory"
DIRECTORY_MODE: Final = 0o711  # the owners of jobs pass through it to their own directories
SHARED_MODE: Final = 0o1777
_ID_BYTES = 12
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MARKER_CHARACTERS_MAX = 200
_JOB = re.compile(r"[0-9]{1,18}")
_LEASE = re.compile(r"lease-([0-9]{8,18})")


class DirectoryUnknown(RemoteViolation):
    """The directory has no id and is not new: probably a file system is not mounted."""


def marker(root: Path) -> str:
    """The id of the cluster that the directory is marked for; empty = none."""
    try:
        text = read_text_whole(root / MARKER_FILE)
    except RemoteViolation:
        return ""
    return (text or "").strip()[:_MARKER_CHARACTERS_MAX]


def owner_of(root: str) -> str:
    """As `marker`; raises OSError where the file cannot be read."""
    try:
        return (Path(root) / MARKER_FILE).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""


def used_numbers(root: str) -> tuple[int, int]:
    """The first job and the first lease that no directory under a root is named for: `<root>/<job>/lease-<lease>`."""
    place = Path(root)
    jobs = [name for name in _directories(place) if _JOB.fullmatch(name)]
    matches = (_LEASE.fullmatch(name) for job in jobs for name in _directories(place / job))
    leases = (int(match[1]) for match in matches if match is not None)
    return max((int(job) + 1 for job in jobs), default=0), max((lease + 1 for lease in leases), default=0)


def mark(root: str, cluster_id: str) -> str:
    """Marks a directory for a cluster, unless it is another's; returns the id of its cluster."""
    file = Path(root) / MARKER_FILE
    _make(file.parent)
    owner = file.read_text(encoding="utf-8", errors="replace").strip() if file.exists() else ""
    if not owner:
        file.write_text(cluster_id + "\n", encoding="utf-8")
    if owner in ("", cluster_id):
        from gavelpy.runtime import snapshots  # here, because each agent's storage process would load tarfile

        identify(file.parent, is_new=True)
        _make_shared(file.parent / snapshots.DIRECTORY)
    return owner or cluster_id


def _make_shared(directory: Path) -> None:
    """Makes a directory in which every user can write, and change what is theirs."""
    try:
        directory.mkdir()
    except FileExistsError:
        return
    directory.chmod(SHARED_MODE)


def check_owner(root: str, cluster_id: str, owner: str) -> None:
    """Raises InvalidInput if `mark` returned another cluster."""
    if owner != cluster_id:
        raise InvalidInput(
            f"nodes.checkpoint_directory = {root!r} must be this cluster's; {Path(root) / MARKER_FILE} says it is of "
            f"{owner[:80]!r}"
        )


def identify(root: Path, *, is_new: bool) -> str:
    """The directory's id; created if it has none and `is_new`, or if its file is empty.

    Raises DirectoryUnknown if it has none otherwise, OSError if it cannot be read or written.
    """
    file = root / ID_FILE
    found = _read(file)
    if not found and is_new:
        _make(root)
        _link_new(file)
        found = _read(file)
    if found == "":  # created by an operator to declare the directory new
        write_text_whole(file, _new_id())
        found = _read(file)
    if not found:
        raise DirectoryUnknown(
            f"has no file {ID_FILE}, which it had before: is the file system mounted? "
            "(an empty file of this name makes it a new directory)"
        )
    if not _ID.fullmatch(found):
        raise DirectoryUnknown(f"has a file {ID_FILE} that holds no id: {found[:40]!r}")
    return found


def look(root: str, is_new: bool, bytes_min: int, is_for_owners: bool = False) -> dict[str, str]:
    """State of a node's checkpoint directory: `directory` and `cluster` (ids), and `trouble`, a message.

    `is_for_owners`: jobs run as their owners, who must be able to pass through it.
    """
    place = Path(root)
    try:
        directory = identify(place, is_new=is_new)
        return {
            "directory": directory,
            "cluster": marker(place),
            "trouble": shortage({"checkpoint": place}, bytes_min) or (closed_to_owners(place) if is_for_owners else ""),
        }
    except OSError as error:
        why = f"cannot be used: {error.strerror or 'unknown error'}"
    except RemoteViolation as unknown:
        why = str(unknown)
    return {"directory": "", "cluster": "", "trouble": f"the checkpoint directory ({root!r}) {why}"}


def closed_to_owners(place: Path) -> str:
    """Why the owners of jobs cannot use their directories below a place, or not safely; empty = they can."""
    for directory in (place, *place.parents):
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            return (
                f"the owners of jobs cannot pass through {str(directory)!r}, on the way to {str(place)!r} (chmod o+x)"
            )
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            return f"users can replace each other's directories in {str(directory)!r} (chmod +t, or go-w)"
    return ""


def whole_steps(directory: str, account: dict[str, Any] | None = None) -> float:
    """Steps of the newest complete checkpoint in a lease's directory, as its owner sees it; 0 = none."""
    with acting_as(account_of(account) if account is not None else None):
        whole = lease_files.whole_checkpoints(Path(directory))
    return float(whole[-1]) if whole else 0.0


def newest(directory: str) -> str:
    """The newest complete checkpoint in a lease's directory; empty = none."""
    return str(lease_files.newest_checkpoint(Path(directory)) or "")


def _read(file: Path) -> str | None:
    """The text; None if there is no such file."""
    try:
        text = read_text_whole(file)
    except RemoteViolation as violation:
        if isinstance(violation.__cause__, OSError):
            raise violation.__cause__ from None
        raise
    return None if text is None else text.strip()


def _make(root: Path) -> None:
    """Makes the root of checkpoints unless it exists; its mode does not depend on the umask."""
    if not root.is_dir():
        root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        root.chmod(DIRECTORY_MODE)


def _directories(place: Path) -> Iterator[str]:
    """Names of directories in a directory; none where there is none, or it was removed meanwhile."""
    try:
        with os.scandir(place) as found:
            yield from (entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return


def _link_new(file: Path) -> None:
    """Creates the file by one link, unless another node has."""
    temporary = file.with_name(f"{file.name}.{os.uname().nodename}-{os.getpid()}-{get_native_id()}")
    temporary.write_text(_new_id(), encoding="utf-8")
    try:
        os.link(temporary, file)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _new_id() -> str:
    return os.urandom(_ID_BYTES).hex() + "\n"


FILES_FREE_MIN: Final = 64
Look = Callable[[Path], os.statvfs_result]
_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shortage(directories: Mapping[str, Path], bytes_min: int, look: Look = os.statvfs) -> str:
    """Why the first of these directories, by name, cannot be written; empty = all can.

    For a directory that does not exist yet, its nearest parent is checked. The message is stable while the reason is.
    """
    problems = (_problem(name, directory, bytes_min, look) for name, directory in directories.items())
    return next((sentence for sentence in problems if sentence), "")


def _problem(name: str, directory: Path, bytes_min: int, look: Look) -> str:
    where = f"the {name} directory ({str(directory)!r})"
    try:
        there = next((place for place in (directory, *directory.parents) if place.exists()), directory)
        found = look(there)
    except OSError as error:
        return f"{where} cannot be used: {error.strerror or 'unknown error'}"
    if found.f_flag & os.ST_RDONLY:
        return f"{where} is read-only"
    if found.f_bavail * found.f_frsize < max(bytes_min, 1):
        return f"less than {in_units(bytes_min)} are free in {where}" if bytes_min else f"{where} is full"
    if found.f_files and found.f_favail < FILES_FREE_MIN:  # some file systems do not count files
        return f"less than {FILES_FREE_MIN} files can be made in {where}"
    return ""


def in_units(count: int) -> str:
    """Bytes for people: 64 MiB."""
    size, unit = next(((size, unit) for size, unit in _UNITS if count >= size), (1, "bytes"))
    return f"{count / size:.4g} {unit}"
