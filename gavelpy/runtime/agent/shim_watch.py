"""Notices at once when a shim ends, also one that an earlier agent had started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable


class ShimWatch:
    """Calls `ended` when a process that is followed ends. A process that has ended already is not followed."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._descriptors: dict[int, int] = {}

    def follow(self, processes: Iterable[int]) -> None:
        """Follows these from now on and no others; 0 stands for none."""
        wanted = set(processes) - {0}
        for process in set(self._descriptors) - wanted:
            self._forget(process)
        for process in wanted - set(self._descriptors):
            try:
                descriptor = os.pidfd_open(process)
            except OSError:
                continue  # it is gone already, which the next look sees
            self._descriptors[process] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._see_end, descriptor)

    def close(self) -> None:
        """Follows none any more."""
        self.follow(())

    def _see_end(self, descriptor: int) -> None:
        """Once: what has ended stays so."""
        asyncio.get_running_loop().remove_reader(descriptor)
        self._ended()

    def _forget(self, process: int) -> None:
        descriptor = self._descriptors.pop(process)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
