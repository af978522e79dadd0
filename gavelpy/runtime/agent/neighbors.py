"""Watches processes of other agents on this host, and reports to the scheduler which of them have ended.

The scheduler names the processes: agents on the same boot of the same machine, and their shims. An end counts only if
this agent has seen the process alive before, by id and start time. So an agent that cannot see it, because it runs in
another process namespace or /proc is restricted, reports nothing. The kernel reports the end at once (pidfd).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Final

from gavelpy.runtime.shim.processes import process_facts

NEIGHBORS_MAX: Final = 4_096  # processes
ProcessStart = tuple[int, int]  # id of a process, and its start time in clock ticks since boot


class NeighborWatch:
    """Call `follow` with all processes again and again; `changed` is called when one of them has ended."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._descriptors: dict[ProcessStart, int] = {}  # of living processes
        self._ended: set[ProcessStart] = set()

    @property
    def ended(self) -> list[ProcessStart]:
        """Followed processes that were alive once and have ended."""
        return sorted(self._ended)

    def follow(self, processes: Iterable[ProcessStart]) -> None:
        """Follows these processes and no others."""
        wanted = set(list(processes)[:NEIGHBORS_MAX])
        for process in self._descriptors.keys() - wanted:
            self._close(process)
        self._ended &= wanted
        for process in wanted - self._descriptors.keys() - self._ended:
            self._open(process)

    def close(self) -> None:
        """Follows nothing any more."""
        self.follow(())

    def _open(self, process: ProcessStart) -> None:
        if not _is_alive(process):
            return
        try:
            descriptor = os.pidfd_open(process[0])
        except OSError:
            return  # it has just ended, or the kernel cannot watch it: nothing is known of it
        if not _is_alive(process):  # it may have ended before, and its id may be another process's
            os.close(descriptor)
            return
        self._descriptors[process] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._report_end, process)

    def _report_end(self, process: ProcessStart) -> None:
        self._close(process)
        self._ended.add(process)
        self._changed()

    def _close(self, process: ProcessStart) -> None:
        descriptor = self._descriptors.pop(process)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


def _is_alive(process: ProcessStart) -> bool:
    facts = process_facts(process[0])
    return facts is not None and facts.start_ticks == process[1]
