"""Targets that rise with a level: what rate every class of jobs is owed as a filling goes on.

A class's target stops at its limit, the most that its own time allows: so a job at its own speed limit needs no round
of a filling. Rates are in units of each class's best rate, levels in the objective's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from gavelpy.model.arrays import Bools, Floats

AT_LIMIT = 1e-12  # relative: a rate so close to its limit is there
_REMEMBERED = 10_000_000  # figures of pieces that are kept


class Rise(Protocol):
    """How targets rise from here."""

    @property
    def start(self) -> float:
        """The level here."""
        ...  # a protocol's body

    @property
    def saturated(self) -> Bools:
        """Classes whose targets rise no more, whatever happens, (K,)."""
        ...  # a protocol's body

    @property
    def limit(self) -> Floats:
        """The most that each class's target can be, (K,)."""
        ...  # a protocol's body

    @property
    def speed(self) -> Floats:
        """Rise of each target with the level from here on, until something saturates, (K,)."""
        ...  # a protocol's body

    @property
    def first_limit(self) -> float:
        """The level at which the next class reaches its limit; infinite if none will."""
        ...  # a protocol's body

    def at(self, level: float) -> Floats:
        """The targets at a level, (K,); it may be infinite."""
        ...  # a protocol's body

    def slope(self, level: float) -> Floats:
        """How fast the targets rise there, (K,)."""
        ...  # a protocol's body

    def root(self, worth: Floats, budget: float) -> float:
        """The highest level at which Σ worth_k target_k is at most `budget`; infinite if it always is."""
        ...  # a protocol's body

    def advanced(self, level: float, saturated: Bools, limit: Floats) -> Self:
        """The rise from `level` on, when the classes `saturated` and all at their new limits (K,) rise no more."""
        ...  # a protocol's body


@dataclass(frozen=True, eq=False)
class Even:
    """target_k = min(speed_k x level, limit_k), whoever else is saturated: max-min in lexicographic order."""

    speed: Floats  # (K,) > 0; 0 for the saturated
    limit: Floats  # (K,)
    start: float
    held: Floats  # (K,) targets of the saturated
    saturated: Bools  # (K,)

    @classmethod
    def of(cls, speed: Floats, limit: Floats) -> Even:
        """The rise from level 0."""
        return cls(speed, limit, 0.0, np.zeros(len(speed)), np.zeros(len(speed), dtype=np.bool_))

    @property
    def first_limit(self) -> float:
        """See Rise."""
        rising = ~self.saturated
        return float((self.limit[rising] / self.speed[rising]).min(initial=np.inf))

    def at(self, level: float) -> Floats:
        """See Rise."""
        risen = np.multiply(self.speed, level, where=~self.saturated, out=np.zeros(len(self.speed)))
        return np.where(self.saturated, self.held, np.minimum(risen, self.limit))

    def slope(self, level: float) -> Floats:
        """See Rise."""
        return np.where(self.speed * level < self.limit, self.speed, 0.0)

    def root(self, worth: Floats, budget: float) -> float:
        """See Rise."""
        left = budget - float(worth[self.saturated] @ self.held[self.saturated])
        rising = np.flatnonzero(~self.saturated & (worth > 0))
        ends = self.limit[rising] / self.speed[rising]
        order = np.argsort(ends, kind="stable")
        rising, ends = rising[order], ends[order]
        slope = worth[rising] * self.speed[rising]
        ended = np.concatenate([[0.0], np.cumsum(worth[rising] * self.limit[rising])])
        still = np.concatenate([np.cumsum(slope[::-1])[::-1], [0.0]])  # slope of those that have not ended
        beyond = ended[:-1] + ends * still[:-1] > left  # increases along the ends
        if not beyond.any():
            return np.inf
        piece = int(np.argmax(beyond))
        return max(self.start, float((left - ended[piece]) / still[piece]))

    def advanced(self, level: float, saturated: Bools, limit: Floats) -> Even:
        """See Rise."""
        reached = self.at(level)
        limit = np.maximum(limit, reached)
        stopped = self.saturated | saturated | (reached >= limit * (1 - AT_LIMIT))
        return Even(np.where(stopped, 0.0, self.speed), limit, level, reached, stopped)


@dataclass(frozen=True, eq=False)
class _Piece:
    """A stretch of levels on which every speed stays as it is."""

    start: float
    end: float  # where the next class reaches its limit
    target: Floats  # (K,) at the start
    speed: Floats  # (K,)
    saturated: Bools  # (K,)


@dataclass(frozen=True, eq=False)
class Changing:
    """Targets whose speeds change whenever a class saturates."""

    speeds: Callable[[Bools], Floats]  # saturated (K,) -> speeds (K,) >= 0
    limit: Floats  # (K,)
    start: float
    target: Floats  # (K,) at the start
    saturated: Bools  # (K,)
    _pieces: list[_Piece] = field(default_factory=list)  # the first ones, found once

    def __post_init__(self) -> None:
        self._pieces.append(self._piece(self.start, self.target, self.saturated))

    @classmethod
    def of(cls, speeds: Callable[[Bools], Floats], limit: Floats) -> Changing:
        """The rise from level 0."""
        return cls(speeds, limit, 0.0, np.zeros(len(limit)), np.zeros(len(limit), dtype=np.bool_))

    @property
    def speed(self) -> Floats:
        """See Rise."""
        return self._pieces[0].speed

    @property
    def first_limit(self) -> float:
        """See Rise."""
        return self._pieces[0].end

    def at(self, level: float) -> Floats:
        """See Rise."""
        return self._at(self._piece_of(level), level)

    def slope(self, level: float) -> Floats:
        """See Rise."""
        return self._piece_of(level).speed

    def root(self, worth: Floats, budget: float) -> float:
        """See Rise."""
        for piece in self._walk():
            left, slope = budget - float(worth @ piece.target), float(worth @ piece.speed)
            if slope > 0 and piece.start + left / slope < piece.end:
                return max(piece.start, piece.start + left / slope)
        return np.inf

    def advanced(self, level: float, saturated: Bools, limit: Floats) -> Changing:
        """See Rise."""
        piece = self._piece_of(level)
        reached = self._at(piece, level)
        limit = np.maximum(limit, reached)
        stopped = piece.saturated | saturated | (reached >= limit * (1 - AT_LIMIT))
        return Changing(self.speeds, limit, level, reached, stopped)

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
            if len(self._pieces) * len(target) < _REMEMBERED:
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
