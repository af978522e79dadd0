"""What a policy keeps between calls: as JSON of a limited size, and labelled, so that no other policy reads it."""

from __future__ import annotations

import json
from typing import Any

from gavelpy.model.allocation import MEMORY_BYTES_MAX
from gavelpy.policies.base import Policy


def as_memory(kept: Any, *of_jobs: dict[Any, Any]) -> bytes:  # Any: JSON
    """`kept` as JSON. While it is too large, the older half of the first of the tables `of_jobs` in it is left out.

    Answers are then as for jobs that are new: better than no answer at all. Tables have the oldest job first.

    >>> jobs = {f"job-{i}": "x" * 2**18 for i in range(5)}
    >>> sorted(json.loads(as_memory({"jobs": jobs}, jobs))["jobs"])
    ['job-3', 'job-4']
    """
    while len(text := json.dumps(kept, separators=(",", ":")).encode()) > MEMORY_BYTES_MAX:
        table = next(table for table in of_jobs if table)
        for job in list(table)[: (len(table) + 1) // 2]:
            del table[job]
    return text


def labelled(policy: Policy, memory: bytes) -> bytes:
    """The memory with the policy's name, for a scheduler that may run another policy next."""
    return policy.name.encode() + b"\n" + memory if memory else b""


def own(policy: Policy, memory: bytes) -> bytes:
    """The memory without the name; empty if it is of another policy.

    >>> from gavelpy.policies.fifo import Fifo
    >>> kept = labelled(Fifo(), b"[1]")
    >>> kept, own(Fifo(), kept), own(Fifo(), b"other\\n[1]")
    (b'fifo\\n[1]', b'[1]', b'')
    """
    name, _, kept = memory.partition(b"\n")
    return kept if name == policy.name.encode() else b""
