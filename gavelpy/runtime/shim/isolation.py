"""A mount namespace for a job: its own /tmp and /var/tmp, and a /proc without processes of other users.

The shim enters it before it starts the ranks, so all ranks share it; shared memory (/dev/shm) stays the node's. What is
mounted on the node later appears in the namespace, and nothing that is mounted here appears on the node. Standard
library only.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from gavelpy.runtime.accounts import Identity
from gavelpy.runtime.lease_files import Launch

TMP: Final = "tmp"  # in the lease directory, with one directory for each of REPLACED
REPLACED: Final = ("/tmp", "/var/tmp")
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_HIDING: Final = frozenset({"hidepid=invisible", "hidepid=2"})
_C = ctypes.CDLL(None, use_errno=True)


def isolate(directory: Path, launch: Launch) -> str:
    """Moves this process into the namespace of its lease; returns why that is impossible, empty = done.

    A container of podman has a /tmp of its own; its client needs that of the node, where an account's containers meet.
    """
    try:
        has_tmp = launch.private_tmp and not launch.hides_ranks
        enter(directory / TMP if has_tmp else None, launch.identity, hide_processes=launch.hide_processes)
    except OSError as error:
        return f"the job cannot be isolated: {error}"
    return ""


def is_possible() -> str:
    """Why a namespace cannot be made here, tried in a child; empty = it can. Call it before threads start."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enter(None, None, hide_processes=True)
        except OSError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    why = os.read(reading, 1_000).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return why


def are_processes_hidden(mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether /proc shows users only their own processes already, for example by ProtectProc= of the agent's unit."""
    lines = [line.split() for line in Path(mounts).read_text().splitlines()]
    options = [line[-1].split(",") for line in lines if line[4] == "/proc"]
    return bool(options) and not _HIDING.isdisjoint(options[-1])


def enter(tmp: Path | None, identity: Identity | None, *, hide_processes: bool) -> None:
    """Makes a namespace and mounts in it; raises OSError.

    `tmp`: where to make the directories that replace the node's; their parent must be closed to the job's user.
    """
    if tmp is None and not hide_processes:
        return
    _check(_C.unshare(_CLONE_NEWNS), "unshare")
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)
    for place in REPLACED if tmp is not None else ():
        assert tmp is not None, "there are no places without it"
        made = tmp / place.strip("/").replace("/", "-")
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        if identity is not None:
            os.chown(made, identity.uid, identity.gid)
        _mount(str(made), place, None, _MS_BIND)
    if hide_processes:
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "hidepid=invisible")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _check(_C.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
