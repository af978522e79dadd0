"""A job that attacks another user's job, the agent and its files: run as a script with a file of targets.

Each attack prints `<name> worked` or `<name> denied <reason>`. An attack does no harm if it works.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17


def trace(process: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, process, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    libc.ptrace(PTRACE_DETACH, process, None, None)


def listed(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def write(path: Path, text: str = "") -> None:
    """Opens a file for writing; leaves it as it was."""
    is_there = path.exists()
    with path.open("a") as file:
        file.write(text)
    if not is_there:
        path.unlink()


def run_as_root(program: str) -> None:
    """Executes a set-uid file of root that prints its effective user."""
    uid = subprocess.run([program, "-u"], capture_output=True, text=True, check=True).stdout.strip()
    if uid != "0":
        raise PermissionError(0, f"runs as {uid}")


def replaced(directory: Path) -> None:
    """Replaces a directory by another, and back."""
    away = directory.with_name("away")
    directory.rename(away)
    away.rename(directory)


def made(directory: Path) -> None:
    directory.mkdir()
    directory.rmdir()


def attacks(at: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """By name. `at`: processes, paths, job and lease of the victim, its shim, the agent and this job's own lease."""
    proc, shim, agent = Path("/proc") / str(at["victim"]), at["shim"], at["agent"]
    state, checkpoints, victims = Path(at["state"]), Path(at["checkpoints"]), Path(at["job_directory"])
    names = f"{at['lease']:08d}", f"{at['own_lease']:08d}"
    lease, own = (state / "leases" / name for name in names)
    saved = checkpoints / str(at["job"])
    found: dict[str, Callable[[], object]] = {
        "read-environment": (proc / "environ").read_bytes,
        "read-command": (proc / "cmdline").read_bytes,
        "see-process": lambda: listed(proc),
        "read-memory": lambda: (proc / "mem").open("rb").close(),
        "read-descriptors": lambda: listed(proc / "fd"),
        "enter-root": lambda: listed(proc / "root"),
        "enter-working-directory": lambda: listed(proc / "cwd"),
        "trace-job": lambda: trace(at["victim"]),
        "trace-shim": lambda: trace(shim),
        "signal-job": lambda: os.kill(at["victim"], 0),
        "signal-group": lambda: os.killpg(at["victim"], 0),
        "signal-shim": lambda: os.kill(shim, 0),
        "signal-own-shim": lambda: os.kill(os.getppid(), 0),
        "signal-agent": lambda: os.kill(agent, 0),
        "read-environment-of-agent": lambda: Path(f"/proc/{agent}/environ").read_bytes(),
        "read-environment-of-shim": lambda: Path(f"/proc/{shim}/environ").read_bytes(),
        "read-token-of-agent": lambda: Path(at["token"]).read_bytes(),
        "read-identity-of-agent": lambda: (state / "node.json").read_bytes(),
        "list-state": lambda: listed(state),
        "list-leases": lambda: listed(state / "leases"),
        "read-launch": lambda: (lease / "launch.json").read_bytes(),
        "read-assignment": lambda: (lease / "assignment.json").read_bytes(),
        "read-log": lambda: (lease / "log/rank-0.out").read_bytes(),
        "list-job-directory": lambda: listed(victims),
        "read-terms": lambda: (victims / "lease.json").read_bytes(),
        "falsify-terms": lambda: write(victims / "lease.json"),
        "falsify-progress": lambda: write(victims / "progress.0.json"),
        "falsify-own-end": lambda: write(own / "end.json"),
        "falsify-own-log": lambda: write(own / "log/rank-0.out"),
        "extend-own-lease": lambda: write(own / "lease.json"),
        "list-checkpoints": lambda: listed(saved),
        "read-checkpoint": lambda: (saved / f"lease-{names[0]}/secret").read_bytes(),
        "write-checkpoint": lambda: made(saved / f"lease-{names[0]}/step-000000000099"),
        "replace-checkpoints": lambda: replaced(saved),
        "take-checkpoints-of-next-job": lambda: made(checkpoints / "9999"),
        "execute-set-uid-file": lambda: run_as_root(at["set_uid"]),
    }
    if at["cgroup"]:
        group = Path(at["cgroup"])
        found |= {
            "leave-control-group": lambda: write(group.parent.parent / "cgroup.procs"),
            "join-control-group": lambda: write(group / "cgroup.procs"),
            "kill-control-group": lambda: write(group / "cgroup.kill"),
            "make-control-group": lambda: made(group / "own"),
        }
    return found


def tried(attack: Callable[[], object]) -> str:
    try:
        attack()
    except OSError as error:
        return f"denied {error.strerror}"
    return "worked"


def main() -> None:
    for name, attack in attacks(json.loads(Path(sys.argv[1]).read_text())).items():
        sys.stdout.write(f"{name} {tried(attack)}\n")


if __name__ == "__main__":
    main()
