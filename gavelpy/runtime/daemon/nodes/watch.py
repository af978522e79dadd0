"""Delays declaring nodes unreachable when nearly all of them become so at once.

Nodes fail one by one. If nearly all stop reporting at the same time, they share the cause: a switch, or a scheduler
that was suspended and has not read its messages. Declaring them unreachable would end their leases for no reason, so
their deadline is extended for a bounded time; when they return, the others have the usual time.

A single node, and nodes that were unreachable before, are no evidence of such an event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

NODES_MIN: Final = 2
SHARE_MIN: Final = 0.8  # of the nodes that are expected to report
_QUIET: Final = 0.5  # of `silent_after_s`: longer than the interval of a healthy node


class SilenceJudge:
    """Decides by the ages of the nodes' last messages. `extension_s`: the longest delay."""

    def __init__(self, silent_after_s: float, extension_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._extension_s = extension_s
        self._began_s = math.inf  # of a common event
        self._excused_until_s = -math.inf

    def is_excused(self, now_s: float) -> bool:
        """Whether no node may be declared unreachable now."""
        return now_s < self._excused_until_s

    def look(self, ages_s: Sequence[float], now_s: float) -> bool:
        """Takes the ages of all nodes that are expected to report; returns whether a common event has just begun."""
        quiet = sum(age_s >= _QUIET * self._silent_after_s for age_s in ages_s)
        overdue = any(age_s >= self._silent_after_s for age_s in ages_s)
        if quiet < NODES_MIN or quiet < SHARE_MIN * len(ages_s) or not overdue:
            self._began_s = math.inf
            return False
        is_new = math.isinf(self._began_s)
        self._began_s = min(self._began_s, now_s)
        self._excused_until_s = min(now_s + self._silent_after_s, self._began_s + self._extension_s)
        return is_new and self._extension_s > 0
