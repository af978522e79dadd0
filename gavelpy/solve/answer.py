"""What a rung of the ladder hands up, and how good it has to be."""

from __future__ import annotations

from dataclasses import dataclass

from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats

GAP_MAX = 1e-8
GAP_MAX_CONCAVE = 1e-6
VIOLATION_MAX = 1e-9


@dataclass(frozen=True, eq=False)
class Answer:
    """Shares with their proof."""

    share: Floats  # (C, T)
    prices: Floats  # (T,) objective gained by one more GPU of each type
    certificate: Certificate
