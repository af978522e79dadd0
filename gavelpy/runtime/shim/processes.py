"""Find and kill the processes of a lease, from /proc.

The kernel reuses process ids, so a process is identified by id and start time. A zombie counts as ended. Standard
library only: the shim loads this.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gavelpy.runtime.lease_files import LEASE_DIRECTORY_VARIABLE, ShimState
from gavelpy.runtime.shim import cgroups

_PROC = Path("/proc")
_GONE = frozenset("ZXx")
_SERVICES = (b"nvidia-cuda-mps-control", b"nvidia-cuda-mps-server")  # of the agent, also after it adopted them
_OURS = f"{Path(__file__).parents[1]}/".encode()  # shims, and helpers that are run by their path
_PR_SET_CHILD_SUBREAPER = 36
_adopting: set[int] = set()  # the id of this process if it adopts orphans


@dataclass(frozen=True)
class ProcessFacts:
    """Fields of /proc/<process>/stat of a process that has not ended."""

    process: int
    parent: int
    group: int
    session: int
    start_ticks: int  # since boot


def this_process() -> ProcessFacts:
    """The calling process."""
    facts = process_facts(os.getpid())
    assert facts is not None, "the calling process has not ended"
    return facts


def boot_id() -> str:
    """Identifies the current boot of this node."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def process_facts(process: int) -> ProcessFacts | None:
    """None if there is no such process or it has ended."""
    try:
        text = (_PROC / str(process) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    rest = text[text.rindex(")") + 2 :].split()  # the name in parentheses can contain anything
    if rest[0] in _GONE:
        return None
    return ProcessFacts(process, int(rest[1]), int(rest[2]), int(rest[3]), int(rest[19]))


def arguments(process: int) -> list[bytes]:
    """The command line of a process; empty if it has ended."""
    return _parts(process, "cmdline")


def all_processes() -> list[ProcessFacts]:
    """All processes that are visible to this one."""
    ids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [facts for facts in map(process_facts, ids) if facts is not None]


def is_shim_alive(state: ShimState) -> bool:
    """Whether this shim runs or is paused: the same id, start time and boot."""
    facts = process_facts(state.process)
    return facts is not None and facts.start_ticks == state.process_start_ticks and state.boot_id == boot_id()


def find_shim_process(directory: Path) -> int:
    """The process with this lease directory among its arguments: its shim; 0 = none."""
    wanted = str(directory).encode()
    found = (facts.process for facts in all_processes() if wanted in arguments(facts.process))
    return next(found, 0)


def lease_processes(state: ShimState, directory: Path, cgroup: str = "") -> tuple[int, ...]:
    """Processes of a lease other than its shim: of its control group, session or environment, or below its shim.

    A session id is not reused while a process is in it. The shim adopts all orphans, so descendants stay below it. When
    the shim has ended, the agent that started it has adopted them: they started after the shim, are below this process,
    in another session, and not below another shim. None after a reboot.
    """
    if state.boot_id != boot_id():
        return ()
    marker = f"{LEASE_DIRECTORY_VARIABLE}={directory.resolve()}".encode()
    found = [facts for facts in all_processes() if facts.start_ticks >= state.process_start_ticks]
    below = _descendants(found, state) | _adopted(found, state)
    held = frozenset(cgroups.members(cgroup)) if cgroup else frozenset()
    return tuple(
        facts.process
        for facts in found
        if facts.process not in (state.process, os.getpid())
        and (
            facts.session == state.process
            or facts.process in below
            or facts.process in held
            or marker in _environment(facts.process)
        )
    )


def kill_lease(state: ShimState, directory: Path, cgroup: str = "") -> bool:
    """Sends SIGKILL to all processes of a lease except its shim; True if there were none. Call until it is True."""
    if cgroup:
        cgroups.kill(cgroup)
    left = lease_processes(state, directory, cgroup)
    for process in left:
        send(process, signal.SIGKILL)
    return not left


def send(process: int, number: int) -> None:
    """Sends a signal to a process or, with a negative id, to a group; ignores one that has ended."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def detach(log: Path) -> None:
    """Makes a session, redirects output to a log and adopts orphans."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (null, 1), (output, 2)):
        os.dup2(source, target)
    os.chdir("/")
    adopt_orphans()


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs (PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _adopting.add(os.getpid())


def reap_adopted(own: Collection[int]) -> None:
    """Reaps adopted children that have ended. `own`: children that other code waits for."""
    session = os.getsid(0)
    for listing in _PROC.glob("self/task/*/children"):
        for child in map(int, _text(listing).split()):
            stat = _text(_PROC / str(child) / "stat").rpartition(")")[2].split()
            if child not in own and stat and stat[0] in _GONE and int(stat[3]) != session:
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)


def _descendants(found: Sequence[ProcessFacts], state: ShimState) -> set[int]:
    """The descendants of the shim, if it runs."""
    is_there = any((facts.process, facts.start_ticks) == (state.process, state.process_start_ticks) for facts in found)
    return _below(found, [state.process]) if is_there else set()


def _adopted(found: Sequence[ProcessFacts], state: ShimState) -> set[int]:
    """Processes that this process adopted from ended shims, without shims and helpers, which run by their path."""
    if os.getpid() not in _adopting or state.process_start_ticks <= 0 or is_shim_alive(state):
        return set()
    me, session = os.getpid(), os.getsid(0)
    near = [facts.process for facts in found if facts.parent == me and facts.session != session]
    adopted = [process for process in near if not _is_of_agent(arguments(process))]
    return _below(found, adopted) | set(adopted)


def _is_of_agent(words: Sequence[bytes]) -> bool:
    """Whether this is the command line of a shim, a helper or a service of the agent."""
    is_service = any(word.rpartition(b"/")[2] in _SERVICES for word in words[:2])
    return is_service or any(word.startswith(_OURS) for word in words)


def _below(found: Sequence[ProcessFacts], roots: Sequence[int]) -> set[int]:
    """All descendants of these processes."""
    children: dict[int, list[int]] = {}
    for facts in found:
        children.setdefault(facts.parent, []).append(facts.process)
    below: set[int] = set()
    todo = list(roots)
    while todo:
        new = [child for child in children.get(todo.pop(), ()) if child not in below]
        below.update(new)
        todo += new
    return below


def _environment(process: int) -> list[bytes]:
    return _parts(process, "environ")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _parts(process: int, name: str) -> list[bytes]:
    try:
        return (_PROC / str(process) / name).read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
