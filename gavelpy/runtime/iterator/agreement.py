"""Ranks of a gang agree on a step without talking to each other: by files in a directory that all of them see.

Each rank proposes a step that it has not passed yet, once it wants to or once it sees that somebody has. The step
agreed on is the largest of all proposals. No rank goes past its own proposal before it has seen all of them, so nobody
has passed the agreed step; and as proposals are written by a thread beside the loop, a rank that waits inside a
collective operation for another proposes all the same.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Final

from gavelpy.runtime.lease_files import read_text_whole, write_text_whole

_NAME: Final = re.compile(r"rank-(\d{1,9})")


class Agreement:
    """One step to be agreed on by `world` ranks."""

    def __init__(self, directory: Path, rank: int, world: int) -> None:
        self._directory = directory
        self._rank = rank
        self._world = world
        self._lock = threading.Lock()
        self._own: int | None = None
        self._agreed: int | None = None

    def own(self) -> int | None:
        """What this rank has proposed; None where it has not."""
        return self._own

    def is_called(self) -> bool:
        """Whether any rank has proposed a step."""
        return self._own is not None or bool(self.proposals())

    def propose(self, step: int) -> None:
        """Says that this rank goes no further than this step alone; only its first proposal counts."""
        with self._lock:
            if self._own is not None:
                return
            self._directory.mkdir(parents=True, exist_ok=True)
            self._own = step
            write_text_whole(self._directory / f"rank-{self._rank}", str(step))

    def agreed(self) -> int | None:
        """The step at which all ranks meet; None while a proposal is missing."""
        if self._agreed is None:
            proposals = self.proposals()
            self._agreed = max(proposals.values()) if len(proposals) == self._world else None
        return self._agreed

    def missing(self) -> tuple[int, ...]:
        """Ranks that have not proposed."""
        return tuple(sorted(set(range(self._world)) - set(self.proposals())))

    def proposals(self) -> dict[int, int]:
        """Proposed steps by rank."""
        if not self._directory.is_dir():
            return {}
        found = ((_NAME.fullmatch(entry.name), entry) for entry in self._directory.iterdir())
        texts = ((int(match[1]), read_text_whole(entry) or "") for match, entry in found if match)
        return {rank: int(text) for rank, text in texts if rank < self._world and text.isdecimal()}
