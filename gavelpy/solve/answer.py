"""What a rung of the ladder hands up, how good it has to be, and which answer is given where none is good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    unproved: int = 0  # jobs whose own gap is above what is promised, where gaps are of jobs


def best_of(answers: Sequence[Answer], fallen: Mapping[str, str], gap_max: float) -> Answer:
    """The answer of the least gap, with a warning that says why no rung (name -> reason) was accepted."""
    best = min(answers, key=lambda answer: answer.certificate.gap)
    c = best.certificate
    reasons = "; ".join(f"{rung}: {reason}" for rung, reason in fallen.items())
    jobs = f", for {best.unproved} jobs" if best.unproved else ""
    warning = f"feasible, but proved to a gap of {c.gap:.1e} only, not to {gap_max:.0e}{jobs} ({reasons})"
    return replace(best, certificate=replace(c, warning=warning))
