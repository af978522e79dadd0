"""Whether the operating system lets the scheduler have as many connections as its limits allow.

Each connection is an open file. A service starts with a soft limit of 1,024 files in most distributions, and may raise
it up to the hard limit. New connections wait in the accept queue of the port, which is as long as `somaxconn`; when all
agents and clients connect again after an outage, those beyond it are dropped and try again a second later.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from gavelpy.runtime.daemon.config_sections import LimitSettings

FILES_RESERVED = 500  # journal, logs, workers, and the standard library
AGENT_FILES = 4_000  # connections of agents: one each, and one for logs that are read
ACCEPT_QUEUE_MIN = 1_024
_SOMAXCONN = Path("/proc/sys/net/core/somaxconn")


def shortages(limits: LimitSettings) -> list[str]:
    """Raises the limit of open files as far as it may; returns what is too small, and what to do."""
    needed = files_needed(limits)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return list(too_small(needed, soft, _accept_queue()))


def files_needed(limits: LimitSettings) -> int:
    """Open files with as many connections as users and agents may have."""
    return limits.calls_max + AGENT_FILES + FILES_RESERVED


def too_small(needed: int, files: int, accept_queue: int) -> Iterator[str]:
    """A message for each limit of the system that is too small."""
    if files != resource.RLIM_INFINITY and files < needed:
        connections = max(files - AGENT_FILES - FILES_RESERVED, 0)
        yield (
            f"the limit of open files is {files:,}, and limits.calls_max with as many connections needs {needed:,}: "
            f"raise the hard limit (systemd: LimitNOFILE={needed}; shell: ulimit -n {needed}), or set calls_max to "
            f"{connections:,} at most" + ("" if connections else ", which leaves none")
        )
    if accept_queue < ACCEPT_QUEUE_MIN:
        yield (
            f"the accept queue has {accept_queue} places, and after an outage all agents and clients connect at once: "
            f"raise it (sysctl -w net.core.somaxconn={4 * ACCEPT_QUEUE_MIN})"
        )


def _accept_queue() -> int:
    try:
        return int(_SOMAXCONN.read_text())
    except (OSError, ValueError):  # not visible in this container
        return ACCEPT_QUEUE_MIN
