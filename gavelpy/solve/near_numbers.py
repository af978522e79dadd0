"""Numbers that are nearly equal: how many there are, and each replaced by the least of its group (see `ladder`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats

BLUR = 2.2e-9  # relative: numbers that are this close are treated as equal
STEP = 1e-9  # relative: largest distance to the next number of a group
EQUAL = 1e-14  # relative: numbers this close differ by rounding; program.py already treats most of them as equal
WORTHWHILE = 0.25  # least part of the distinct numbers with such a neighbour; random numbers have some by chance
_PART = 8192  # numbers


@dataclass(frozen=True)
class Nearness:
    """How many of the neighbours in a sequence of sorted numbers are nearly equal."""

    near: int  # of those that differ
    differs: int

    def changes_left(self) -> int:
        """So many numbers may come or go, and still few are near; below zero if many are.

        Each changes either count by two at most.
        """
        return math.floor((WORTHWHILE * self.differs - self.near) / (2.0 + 2.0 * WORTHWHILE))


def nearness(figures: Floats) -> Nearness:
    """The counts of these numbers."""
    sorted_figures = np.sort(figures, axis=None)
    rise, above = sorted_figures[1:] - sorted_figures[:-1], sorted_figures[1:]
    differs = rise > EQUAL * above
    return Nearness(int(((rise <= STEP * above) & differs).sum()), int(differs.sum()))


def merged_numbers(figures: Floats) -> Floats | None:
    """These numbers, each replaced by the least within BLUR of it; None if few are that close."""
    sorted_figures = np.sort(figures, axis=None)
    if _most_pairs_are_apart(sorted_figures):
        return None
    rise = sorted_figures[1:] - sorted_figures[:-1]
    is_near = rise <= STEP * sorted_figures[1:]
    differs = rise > EQUAL * sorted_figures[1:]
    if not (is_near & differs).sum() > WORTHWHILE * differs.sum():
        return None
    order = np.argsort(figures, axis=None, kind="stable")
    starts = np.concatenate([[True], ~is_near])
    first = sorted_figures[np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))]
    above = np.divide(sorted_figures - first, first, out=np.zeros(len(first)), where=first > 0)
    bucket = np.floor(above / BLUR)  # a long chain of close numbers is divided
    starts = starts | np.concatenate([[True], np.diff(bucket) > 0])
    least = sorted_figures[np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))]
    merged = np.empty(len(order))
    merged[order] = least
    return merged.reshape(figures.shape)


def most_are_apart(figures: Floats) -> bool:
    """Whether few of these numbers are equal or nearly equal to another."""
    return _most_pairs_are_apart(np.sort(figures, axis=None))


def _most_pairs_are_apart(sorted_figures: Floats) -> bool:
    pairs = max(len(sorted_figures) - 1, 0)
    parts = (sorted_figures[at : at + _PART + 1] for at in range(0, pairs, _PART))  # in the processor's cache
    near = sum(int(np.count_nonzero(part[1:] - part[:-1] <= STEP * part[1:])) for part in parts)
    return near <= WORTHWHILE * (pairs - near)
