"""What an agent remembers over its restarts, and the lock that keeps its state directory to one agent."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime import lease_files

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
MEMORY_FILE: Final = "node.json"
KEY_BYTES: Final = 32


@dataclass(frozen=True)
class Memory:
    """The contents of node.json."""

    node_id: str
    boot_id: str
    cluster_id: str = ""  # whose leases are here; empty = nobody's, or of a scheduler that does not say
    incarnation: int = 0  # the newest of this cluster's scheduler that was obeyed
    job_service_port: int = 0  # running jobs know it
    state_id: str = ""  # of this state directory, made up once: tells agents of one name apart
    identity_key: str = ""  # secret, made up once: the scheduler keeps its hash and takes no other agent for this node
    peer_port: int = 0  # other agents know it
    checkpoints: str = ""  # path of the checkpoint directory that was seen last
    directory: str = ""  # its id


def completed(memory: Memory, boot_id: str) -> Memory:
    """The memory of an agent that starts under this boot, with what is made up once."""
    state_id = memory.state_id or secrets.token_hex(8)
    return replace(
        memory, boot_id=boot_id, state_id=state_id, identity_key=memory.identity_key or secrets.token_hex(KEY_BYTES)
    )


def check_node(known: Memory | None, state: Path, node_id: str) -> None:
    """Raises InvalidInput where a state directory is another node's memory."""
    if known is not None and known.node_id != node_id:
        raise InvalidInput(
            f"node_id must be {known.node_id!r} in state_dir {str(state)!r}, which is that node's memory, "
            f"got {node_id!r}"
        )


def seeing(state: Path, memory: Memory, checkpoints: Path, directory: str) -> Memory:
    """The memory of a node that sees the directory of this id at a path, written; empty = it sees none."""
    if not directory or (memory.checkpoints, memory.directory) == (str(checkpoints), directory):
        return memory
    seen = replace(memory, checkpoints=str(checkpoints), directory=directory)
    try:
        remember(state, seen)
    except OSError as error:  # it is written with the next thing to remember
        logger.warning("the state directory cannot be written: %s", error)
    return seen


def lock_state(state: Path) -> int:
    """Makes the state directory, readable by its owner only, and keeps it to this process.

    Returns the open lock; it is let go when the process ends. InvalidInput where another agent has it.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.chmod(0o700)
        lock = os.open(state / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidInput(f"state_dir must be a directory that can be written, got {str(state)!r} ({error})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InvalidInput(f"state_dir {str(state)!r} is in use by another gavel-node: each needs its own") from None
    return lock


def recall(state: Path) -> Memory | None:
    """What an earlier agent of this directory remembered; None = there was none. InvalidInput for a damaged file."""
    file = state / MEMORY_FILE
    try:
        text = lease_files.read_text_whole(file)
        return msgspec.json.decode(text, type=Memory) if text is not None else None
    except (RemoteViolation, msgspec.DecodeError) as error:
        raise InvalidInput(
            f"it is damaged ({error}); make sure that no job of this node runs and remove it", file=str(file)
        ) from None


def remember(state: Path, memory: Memory) -> None:
    """Writes node.json; it is there after a crash of the machine, too."""
    file = state / MEMORY_FILE
    lease_files.write_text_whole(file, msgspec.json.encode(memory).decode())
    for path in (file, state):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
