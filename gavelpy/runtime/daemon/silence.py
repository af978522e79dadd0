"""Which silent nodes count as dead or cut off, and which are silent because of the network, or of the scheduler itself.

Nodes die one by one. When nearly all fall silent at the same time, the cause is something that they share: a switch,
a hung server, or a scheduler that was stopped for a while and has not read its messages. Declaring them silent would
take their leases for nothing, so their deadline is extended, for a bounded time; and when they return, the others get
as long as a node usually has.

A single node gives no such evidence: if it is the only one, its silence is taken for its own. So is the silence of
nodes that the scheduler declared silent before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

NODES_MIN: Final = 2
SHARE_MIN: Final = 0.8  # of the nodes that should be heard
_QUIET: Final = 0.5  # of `silent_after_s`: nobody who is well talks so seldom


class SilenceJudge:
    """Decides by the ages of all nodes' last messages. `extension_s`: how long silence of nearly all is excused."""

    def __init__(self, silent_after_s: float, extension_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._extension_s = extension_s
        self._began_s = math.inf  # of an event that nearly all nodes share
        self._excused_until_s = -math.inf

    def is_excused(self, now_s: float) -> bool:
        """Whether no node is declared silent now, however old its last message is."""
        return now_s < self._excused_until_s

    def look(self, ages_s: Sequence[float], now_s: float) -> bool:
        """Takes the ages of all nodes that are expected to report; whether an event of nearly all has just begun."""
        quiet = sum(age_s >= _QUIET * self._silent_after_s for age_s in ages_s)
        overdue = any(age_s >= self._silent_after_s for age_s in ages_s)
        if quiet < NODES_MIN or quiet < SHARE_MIN * len(ages_s) or not overdue:
            self._began_s = math.inf
            return False
        is_new = math.isinf(self._began_s)
        self._began_s = min(self._began_s, now_s)
        self._excused_until_s = min(now_s + self._silent_after_s, self._began_s + self._extension_s)
        return is_new and self._extension_s > 0
