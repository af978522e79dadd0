"""What an agent stores across restarts (node.json), and the lock of its state directory."""

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
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.whole_files import read_text_whole, write_text_whole

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
STATE_FILE: Final = "node.json"
KEY_BYTES: Final = 32


@dataclass(frozen=True)
class AgentState:
    """The contents of node.json."""

    node_id: str
    boot_id: str
    cluster_id: str = ""  # the cluster of the leases here; empty = none, or of a scheduler that sends none
    incarnation: int = 0  # of the newest scheduler of this cluster that this agent has obeyed
    job_service_port: int = 0  # known to running jobs
    state_id: str = ""  # random id of this state directory: distinguishes agents of one name
    identity_key: str = ""  # random secret: the scheduler stores its hash and accepts no other agent for this node
    peer_port: int = 0  # known to other agents
    checkpoints: str = ""  # path of the checkpoint directory that was available last
    directory: str = ""  # its id


def read_state(state: Path) -> AgentState | None:
    """The state of an earlier agent; None if there was none. Raises InvalidInput for a damaged file."""
    file = state / STATE_FILE
    try:
        text = read_text_whole(file)
        return msgspec.json.decode(text, type=AgentState) if text is not None else None
    except (RemoteViolation, msgspec.DecodeError) as error:
        raise InvalidInput(
            f"is damaged ({error}); make sure that no job of this node runs and remove it", file=str(file)
        ) from None


def write_state(state: Path, content: AgentState) -> None:
    """Writes node.json and syncs it to disk."""
    file = state / STATE_FILE
    write_text_whole(file, msgspec.json.encode(content).decode())
    for path in (file, state):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def initial_state(known: AgentState | None, config: NodeConfig, boot_id: str) -> AgentState:
    """The state of an agent that starts, with ids made up on the first start. InvalidInput for another node's."""
    if known is not None and known.node_id != config.node_id:
        raise InvalidInput(
            f"node_id must be {known.node_id!r} in state_dir {str(config.state)!r}, which belongs to that node, "
            f"got {config.node_id!r}"
        )
    known = known or AgentState(config.node_id, "")
    return replace(
        known,
        boot_id=boot_id,
        state_id=known.state_id or secrets.token_hex(8),
        identity_key=known.identity_key or secrets.token_hex(KEY_BYTES),
    )


def with_checkpoint_directory(config: NodeConfig, state: AgentState, directory: str) -> AgentState:
    """The state with the id of the node's checkpoint directory, written; unchanged if the id is empty."""
    checkpoints = str(config.checkpoints)
    if not directory or (state.checkpoints, state.directory) == (checkpoints, directory):
        return state
    state = replace(state, checkpoints=checkpoints, directory=directory)
    try:
        write_state(config.state, state)
    except OSError as error:  # it is written with the next change
        logger.warning("cannot write the state directory: %s", error)
    return state


def lock_state(state: Path, mode: int = 0o700) -> int:
    """Creates the state directory, readable by its owner only, and locks it for this process.

    With mode 0711, owners of jobs can pass through it to their jobs' directories. Returns the open lock, which is
    released when the process ends. Raises InvalidInput if another agent holds it.
    """
    try:
        state.mkdir(mode=mode, parents=True, exist_ok=True)
        state.chmod(mode)
        lock = os.open(state / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidInput(f"state_dir must be a directory that can be written, got {str(state)!r} ({error})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InvalidInput(f"state_dir {str(state)!r} is in use by another gavel-node: each needs its own") from None
    return lock
