"""The small process that runs one lease on one node and outlives the agent; standard library only."""

from __future__ import annotations

import sys
from pathlib import Path

SHIM_SCRIPT = Path(__file__).with_name("__main__.py")  # what runs as a shim has it among its arguments


def shim_argv(directory: Path, python: str = sys.executable) -> list[str]:
    """Command of the shim of a lease directory, in which launch.json and lease.json are already.

    Start it with its input and output closed. It makes a session of its own.
    """
    return [python, "-I", "-S", str(SHIM_SCRIPT), str(directory)]
