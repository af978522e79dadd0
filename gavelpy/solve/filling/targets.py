"""Targets that rise with a level: the rate that each class of jobs should have at each level of a filling.

A class's target stops at its limit, the highest rate in its own time: so a job at its best rate needs no level of its
own. Rates are in units of each class's best rate, levels in units of the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from gavelpy.model.arrays import Bools, Floats

AT_LIMIT = 1e-12  # relative: a rate this close to its limit has reached it
_STORED_MAX = 10_000_000  # numbers in stored pieces


class Targets(Protocol):
    """Targets as functions of the level, from a start."""

    @property
    def start(self) -> float:
        """The level at the start."""
        ...  # a protocol's body

    @property
    def saturated(self) -> Bools:
        """Classes whose targets no longer rise, (K,)."""
        ...  # a protocol's body

    @property
    def limit(self) -> Floats:
        """Upper limit of each class's target, (K,)."""
        ...  # a protocol's body

    @property
    def speed(self) -> Floats:
        """Slope of each target from the start until a class saturates, (K,)."""
        ...  # a protocol's body

    @property
    def first_limit(self) -> float:
        """The level at which the next class reaches its limit; infinite if none does."""
        ...  # a protocol's body

    def at(self, level: float) -> Floats:
        """The targets at a level, (K,); it may be infinite."""
        ...  # a protocol's body

    def slope(self, level: float) -> Floats:
        """Slopes of the targets at a level, (K,)."""
        ...  # a protocol's body

    def root(self, worth: Floats, budget: float) -> float:
        """The highest level at which Σ worth_k target_k is at most `budget`; infinite if it always is."""
        ...  # a protocol's body

    def advanced(self, level: float, saturated: Bools, limit: Floats) -> Self:
        """The targets from `level` on, if the classes `saturated` and all at their new limits (K,) stop."""
        ...  # a protocol's body


@dataclass(frozen=True, eq=False)
class EvenTargets:
    """target_k = min(speed_k x level, limit_k), whichever classes are saturated: lexicographic max-min."""

    speed: Floats  # (K,) > 0; 0 for the saturated
    limit: Floats  # (K,)
    start: float
    held: Floats  # (K,) targets of the saturated
    saturated: Bools  # (K,)

    @classmethod
    def of(cls, speed: Floats, limit: Floats) -> EvenTargets:
        """The targets from level 0."""
        return cls(speed, limit, 0.0, np.zeros(len(speed)), np.zeros(len(speed), dtype=np.bool_))

    @property
    def first_limit(self) -> float:
        """See Targets."""
        rising = ~self.saturated
        return float((self.limit[rising] / self.speed[rising]).min(initial=np.inf))

    def at(self, level: float) -> Floats:
        """See Targets."""
        risen = np.multiply(self.speed, level, where=~self.saturated, out=np.zeros(len(self.speed)))
        return np.where(self.saturated, self.held, np.minimum(risen, self.limit))

    def slope(self, level: float) -> Floats:
        """See Targets."""
        return np.where(self.speed * level < self.limit, self.speed, 0.0)

    def root(self, worth: Floats, budget: float) -> float:
        """See Targets."""
        left = budget - float(worth[self.saturated] @ self.held[self.saturated])
        rising = np.flatnonzero(~self.saturated & (worth > 0))
        ends = self.limit[rising] / self.speed[rising]
        order = np.argsort(ends, kind="stable")
        rising, ends = rising[order], ends[order]
        slope = worth[rising] * self.speed[rising]
        ended = np.concatenate([[0.0], np.cumsum(worth[rising] * self.limit[rising])])
        still = np.concatenate([np.cumsum(slope[::-1])[::-1], [0.0]])  # slope of the classes below their limits
        beyond = ended[:-1] + ends * still[:-1] > left  # increases along the ends
        if not beyond.any():
            return np.inf
        piece = int(np.argmax(beyond))
        return max(self.start, float((left - ended[piece]) / still[piece]))

    def advanced(self, level: float, saturated: Bools, limit: Floats) -> EvenTargets:
        """See Targets."""
        reached = self.at(level)
        limit = np.maximum(limit, reached)
        stopped = self.saturated | saturated | (reached >= limit * (1 - AT_LIMIT))
        return EvenTargets(np.where(stopped, 0.0, self.speed), limit, level, reached, stopped)


@dataclass(frozen=True, eq=False)
class _Piece:
    """An interval of levels with constant speeds."""

    start: float
    end: float  # at which the next class reaches its limit
    target: Floats  # (K,) at the start
    speed: Floats  # (K,)
    saturated: Bools  # (K,)


@dataclass(frozen=True, eq=False)
class PiecewiseTargets:
    """Targets whose speeds change when a class saturates."""

    speeds: Callable[[Bools], Floats]  # saturated (K,) -> speeds (K,) >= 0
    limit: Floats  # (K,)
    start: float
    target: Floats  # (K,) at the start
    saturated: Bools  # (K,)
    _pieces: list[_Piece] = field(default_factory=list)  # the first pieces, computed once

    def __post_init__(self) -> None:
        self._pieces.append(self._piece(self.start, self.target, self.saturated))

    @classmethod
    def of(cls, speeds: Callable[[Bools], Floats], limit: Floats) -> PiecewiseTargets:
        """The targets from level 0."""
        return cls(speeds, limit, 0.0, np.zeros(len(limit)), np.zeros(len(limit), dtype=np.bool_))

    @property
    def speed(self) -> Floats:
        """See Targets."""
        return self._pieces[0].speed

    @property
    def first_limit(self) -> float:
        """See Targets."""
        return self._pieces[0].end

    def at(self, level: float) -> Floats:
        """See Targets."""
        return self._at(self._piece_of(level), level)

    def slope(self, level: float) -> Floats:
        """See Targets."""
        return self._piece_of(level).speed

    def root(self, worth: Floats, budget: float) -> float:
        """See Targets."""
        for piece in self._walk():
            left, slope = budget - float(worth @ piece.target), float(worth @ piece.speed)
            if slope > 0 and piece.start + left / slope < piece.end:
                return max(piece.start, piece.start + left / slope)
        return np.inf

    def advanced(self, level: float, saturated: Bools, limit: Floats) -> PiecewiseTargets:
        """See Targets."""
        piece = self._piece_of(level)
        reached = self._at(piece, level)
        limit = np.maximum(limit, reached)
        stopped = piece.saturated | saturated | (reached >= limit * (1 - AT_LIMIT))
        return PiecewiseTargets(self.speeds, limit, level, reached, stopped)

    def _at(self, piece: _Piece, level: float) -> Floats:
        if not piece.speed.any():
            return piece.target
        return np.asarray(np.minimum(piece.target + piece.speed * (level - piece.start), self.limit))

    def _piece_of(self, level: float) -> _Piece:
        return next(piece for piece in self._walk() if level < piece.end or piece.end == np.inf)

    def _walk(self) -> Iterator[_Piece]:
        yield from self._pieces
        piece = self._pieces[-1]
        while piece.end < np.inf:
            ended = self._ends(piece.start, piece.target, piece.speed) <= piece.end * (1 + AT_LIMIT)
            target = np.where(ended, self.limit, self._at(piece, piece.end))
            piece = self._piece(piece.end, target, piece.saturated | ended)
            if len(self._pieces) * len(target) < _STORED_MAX:
                self._pieces.append(piece)
            yield piece

    def _piece(self, start: float, target: Floats, saturated: Bools) -> _Piece:
        speed = np.where(saturated, 0.0, self.speeds(saturated))
        end = float(self._ends(start, target, speed).min(initial=np.inf))
        return _Piece(start, end, target, speed, saturated)

    def _ends(self, start: float, target: Floats, speed: Floats) -> Floats:
        """Levels at which the classes reach their limits at these speeds, (K,)."""
        rising = speed > 0
        lasting = np.divide(self.limit - target, speed, where=rising, out=np.full(len(rising), np.inf))
        return np.asarray(start + np.maximum(lasting, 0.0))
