"""How long a job waited because free GPUs were not in one place: its fragmentation delay."""

from __future__ import annotations

from typing import NamedTuple

NOT_NOW = -1.0


class Apart(NamedTuple):
    """The waiting of one job for GPUs in one place; times in seconds, or NOT_NOW."""

    held_s: float = NOT_NOW  # since when it has been held back, since its last lease
    open_s: float = NOT_NOW  # since when the present delay counts
    delay_s: float = 0.0  # all delays that are over

    def until(self, now_s: float) -> float:
        """Its fragmentation delay up to now."""
        return self.delay_s + (now_s - self.open_s if self.open_s >= 0 else 0.0)

    def closed(self, now_s: float) -> Apart:
        """The same, while it is not delayed."""
        return Apart(self.held_s, NOT_NOW, self.until(now_s))
