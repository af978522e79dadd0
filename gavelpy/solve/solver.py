"""Warm state that a caller may keep between solves. It carries no meaning: answers are the same without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_SMALL: Mapping[str, Any] = {  # HiGHS's own names
    "output_flag": False,
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
    "presolve": "off",
    "solver": "simplex",
    "simplex_scale_strategy": 0,
    "small_matrix_value": 1e-12,
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
}


class Solver:
    """One HiGHS object to use again, and a count of which rung answered and which fell. Not for two threads at once."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()  # path of the certificate -> answers
        self.falls: Counter[str] = Counter()  # rung -> answers it could not certify
        self.points: dict[tuple[str, int], Any] = {}  # prices that the next search of a kind on so many types starts at
        self._highs: Any = None  # highspy has no types
        self._small_highs: Any = None

    def highs(self) -> Any:  # highspy has no types
        """The HiGHS object, loaded on first need."""
        if self._highs is None:
            import highspy

            self._highs = highspy.Highs()
            self._highs.setOptionValue("output_flag", False)
        return self._highs

    def small_highs(self) -> Any:  # highspy has no types
        """A second HiGHS object, with its options for programs of some hundred columns set once."""
        if self._small_highs is None:
            import highspy

            self._small_highs = highspy.Highs()
            for name, value in _SMALL.items():
                self._small_highs.setOptionValue(name, value)
        return self._small_highs
