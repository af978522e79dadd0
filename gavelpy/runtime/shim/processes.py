"""Who a process is: a process id says nothing alone, for the kernel gives it out again.

Read from /proc. A process that has ended but was not waited for is gone, as far as anybody here is concerned.
Standard library only: the shim loads this.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gavelpy.runtime.lease_files import LEASE_DIRECTORY_VARIABLE, ShimState

_PROC = Path("/proc")
_GONE = frozenset("ZXx")


@dataclass(frozen=True)
class ProcessFacts:
    """What /proc/<process>/stat says of a process that has not ended."""

    process: int
    parent: int
    group: int
    session: int
    start_ticks: int  # since boot


def this_process() -> ProcessFacts:
    """The facts of the one that asks."""
    facts = process_facts(os.getpid())
    assert facts is not None, "who asks has not ended"
    return facts


def boot_id() -> str:
    """Names this boot of this machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def process_facts(process: int) -> ProcessFacts | None:
    """None where there is no such process, or it has ended."""
    try:
        text = (_PROC / str(process) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    rest = text[text.rindex(")") + 2 :].split()  # the name in parentheses may hold anything
    if rest[0] in _GONE:
        return None
    return ProcessFacts(process, int(rest[1]), int(rest[2]), int(rest[3]), int(rest[19]))


def all_processes() -> list[ProcessFacts]:
    """Every process that this one may see."""
    ids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [facts for facts in map(process_facts, ids) if facts is not None]


def is_shim_alive(state: ShimState) -> bool:
    """Whether this very shim still runs (or is stopped): not a later process of its number, nor one of another boot."""
    facts = process_facts(state.process)
    return facts is not None and facts.start_ticks == state.process_start_ticks and state.boot_id == boot_id()


def lease_processes(state: ShimState, directory: Path) -> tuple[int, ...]:
    """Processes left of a lease, its shim not among them: of its session, with its environment, or below its shim.

    The number of a session is not given out again while any process is in it. Below the shim is whatever descends
    from it, as it adopts all orphans; once it is gone, who has left both session and environment cannot be told any
    more. Members of another boot are none.
    """
    if state.boot_id != boot_id():
        return ()
    marker = f"{LEASE_DIRECTORY_VARIABLE}={directory.resolve()}".encode()
    found = [facts for facts in all_processes() if facts.start_ticks >= state.process_start_ticks]
    below = _descendants(found, state)
    return tuple(
        facts.process
        for facts in found
        if facts.process not in (state.process, os.getpid())
        and (facts.session == state.process or facts.process in below or marker in _environment(facts.process))
    )


def kill_lease(state: ShimState, directory: Path) -> bool:
    """Sends SIGKILL to all that is left of a lease but its shim; whether nothing was left. Call until it is True."""
    left = lease_processes(state, directory)
    for process in left:
        send(process, signal.SIGKILL)
    return not left


def send(process: int, number: int) -> None:
    """Sends a signal to a process, or with a negative number to a group; one that is gone has had it."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def _descendants(found: Sequence[ProcessFacts], state: ShimState) -> set[int]:
    """What descends from the shim, if this very shim is there."""
    children: dict[int, list[int]] = {}
    for facts in found:
        children.setdefault(facts.parent, []).append(facts.process)
    is_there = any((facts.process, facts.start_ticks) == (state.process, state.process_start_ticks) for facts in found)
    below: set[int] = set()
    todo = [state.process] if is_there else []
    while todo:
        new = [child for child in children.get(todo.pop(), ()) if child not in below]
        below.update(new)
        todo += new
    return below


def _environment(process: int) -> list[bytes]:
    try:
        return (_PROC / str(process) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
