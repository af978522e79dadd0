"""Warm state that a caller may keep between solves. It carries no meaning: answers are the same without it."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Solver:
    """One HiGHS object to use again, and a count of which rung answered and which fell. Not for two threads at once."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()  # path of the certificate -> answers
        self.falls: Counter[str] = Counter()  # rung -> answers it could not certify
        self._highs: Any = None  # highspy has no types

    def highs(self) -> Any:  # highspy has no types
        """The HiGHS object, loaded on first need."""
        if self._highs is None:
            import highspy

            self._highs = highspy.Highs()
            self._highs.setOptionValue("output_flag", False)
        return self._highs
