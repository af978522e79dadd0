"""A substitute for nvidia-cuda-mps-control: a daemon that only exists, and answers by its pid file."""

from __future__ import annotations

from pathlib import Path

from gavelpy.runtime.shim.processes import process_facts

CONTROL = """#!/bin/sh
# As nvidia-cuda-mps-control: `-d` starts a daemon, and commands on stdin go to it.
pid="$CUDA_MPS_PIPE_DIRECTORY/control.pid"
case "$1" in
-d)
    echo "${CUDA_VISIBLE_DEVICES-all} $CUDA_DEVICE_ORDER" > "$CUDA_MPS_LOG_DIRECTORY/devices"
    setsid "$0" --serve > /dev/null 2>&1 < /dev/null &
    echo $! > "$pid"
    exit 0 ;;
--serve)
    while :; do sleep 1; done ;;
esac
read -r command
[ -f "$pid" ] && grep -qs '^State:[[:space:]]*[A-WY]' "/proc/$(cat "$pid")/status" || exit 1
[ "$command" = quit ] && kill "$(cat "$pid")"
exit 0
"""


def written(path: Path) -> None:
    """Writes the program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONTROL)
    path.chmod(0o755)


def daemon_of(state: Path) -> int:
    """The process of the daemon of an agent with this state directory; 0 = none."""
    file = state / "mps" / "pipe" / "control.pid"
    process = int(file.read_text()) if file.exists() else 0
    return process if process and process_facts(process) is not None else 0
