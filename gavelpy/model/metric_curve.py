"""The metric of a simulated job by its steps: a named curve, as data.

    reciprocal   floor + (start − floor) / (1 + speed k)       sublinear convergence, as of SGD
    geometric    floor + (start − floor) (1 − speed)^k         linear convergence, as of gradient descent

k is the number of steps. The two families are those that SLAQ (Zhang et al., SoCC '17, section 4) fits to losses. With
`noise`, values vary by a normal relative error of that size, which a shell draws by the steps and `seed` only, so a run
can be repeated. Written `reciprocal:start=2.3:floor=0.2:speed=0.01:noise=0.02:seed=7`. A floor above the start is
allowed: the metric rises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from gavelpy.errors import InvalidInput


class CurveShape(StrEnum):
    """The family."""

    RECIPROCAL = "reciprocal"
    GEOMETRIC = "geometric"


@dataclass(frozen=True)
class MetricCurve:
    """One curve. Raises InvalidInput."""

    shape: CurveShape
    start: float  # before the first step
    floor: float  # after infinitely many
    speed: float  # > 0, and < 1 if geometric
    noise: float = 0.0  # relative to start − floor
    seed: float = 0.0  # a whole number

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.start, self.floor, self.speed, self.noise)):
            raise InvalidInput(f"values of a metric curve must be finite, got {self.text}")
        most = 1.0 if self.shape is CurveShape.GEOMETRIC else math.inf
        if not 0 < self.speed < most:
            raise InvalidInput(f"speed of a {self.shape} metric curve must be in (0, {most:g}), got {self.speed!r}")
        if not 0 <= self.noise <= 1 or self.seed < 0 or self.seed != int(self.seed):
            allowed = "noise in [0, 1] and a whole number as seed"
            raise InvalidInput(f"a metric curve must have {allowed}, got {self.noise!r} and {self.seed!r}")

    @property
    def text(self) -> str:
        """The curve as text, which `parse` reads."""
        rest = f":noise={self.noise!r}:seed={int(self.seed)}" if self.noise else ""
        return f"{self.shape}:start={self.start!r}:floor={self.floor!r}:speed={self.speed!r}{rest}"

    @classmethod
    def parse(cls, text: str) -> MetricCurve:
        """The curve that a text describes.

        >>> MetricCurve.parse("reciprocal:start=2:floor=1:speed=0.25").at(4)
        1.5
        """
        shape, *settings = text.split(":")
        names = [field.name for field in fields(cls)][1:]
        pairs = [setting.partition("=") for setting in settings]
        given = {name: value for name, _, value in pairs}
        if shape not in list(CurveShape) or len(given) < len(pairs) or not set(names[:3]) <= given.keys() <= set(names):
            allowed = f"{' or '.join(CurveShape)} with {', '.join(names)}, each once as NAME=NUMBER"
            raise InvalidInput(f"metric_curve must be {allowed}, got {text[:200]!r}")
        try:
            return cls(CurveShape(shape), **{name: float(value) for name, value in given.items()})
        except (ValueError, OverflowError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"metric_curve must have numbers, got {text[:200]!r}") from None

    def at(self, steps: float, error: float = 0.0) -> float:
        """The value after so many steps. `error`: of a standard normal distribution, which `noise` scales."""
        reciprocal = self.shape is CurveShape.RECIPROCAL
        left = 1.0 / (1.0 + self.speed * steps) if reciprocal else (1.0 - self.speed) ** steps
        return self.floor + (self.start - self.floor) * left * (1.0 + self.noise * error)
