"""How long gangs wait for GPUs in one place: what they accept meanwhile, and their fragmentation delay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gavelpy.mechanism.topology import PlaceLevel, best_levels, groups

if TYPE_CHECKING:
    from gavelpy.mechanism.leases import LeaseBook
    from gavelpy.mechanism.settings import MechanismSettings

NOT_NOW = -1.0
ROUNDING = 1e-9  # a time that was computed as the end of patience counts as such


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


class Move(NamedTuple):
    """The last move of a job that made a place for a gang; see `defragmentation`."""

    at_s: float
    gang: int  # serial
    gpus: int  # of the gang
    worth_gpu_s: float  # of all moves for the gang
    cost_gpu_s: float


def steps(held_s: float, now_s: float, settings: MechanismSettings) -> int:
    """How many levels worse than the first a gang accepts, which has been held back since then."""
    return math.floor((now_s - held_s) / settings.consolidate_s + ROUNDING)


def worst_level(leases: LeaseBook, row: int, best: PlaceLevel, now_s: float) -> PlaceLevel:
    """The level that a gang should not exceed now, of which `best` is the first."""
    levels = [level for level in groups(leases.pool) if level >= best]
    held_s = leases.jobs.apart.get(row, Apart()).held_s
    return levels[min(0 if held_s < 0 else steps(held_s, now_s, leases.settings), len(levels) - 1)]


def best_of(leases: LeaseBook, row: int, domain: int) -> PlaceLevel:
    """The best level at which a job would fit if all usable GPUs of a domain were free."""
    return best_levels(leases.pool, domain, [int(leases.jobs.gpus[row])])[0]
