"""What it is worth to finish a job at some time: a named function of the time since its submission, as data.

    linear     worth (1 − t / time_s), at least 0
    sigmoid    worth / (1 + exp(decay_per_s (t − time_s)));   OASiS (Bao et al., INFOCOM '18), section V
    step       worth up to time_s, then 0

In a problem, the values of all jobs are rows of `AllocationProblem.completion_value`; a policy of your own computes
with `values_at`. Written `sigmoid:worth=10:time_s=3600:decay_per_s=0.002`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX, Floats

COLUMNS = 4  # number of the shape, worth, time_s, decay_per_s; all 0 = no value is given


class ValueShape(StrEnum):
    """The function's name."""

    LINEAR = "linear"
    SIGMOID = "sigmoid"
    STEP = "step"


_NUMBER = {shape: k for k, shape in enumerate(ValueShape, 1)}


@dataclass(frozen=True)
class CompletionValue:
    """The value of one job by the time from its submission to its end. Raises InvalidInput."""

    shape: ValueShape
    worth: float  # > 0, at most, in any unit that is the same for all jobs
    time_s: float  # > 0
    decay_per_s: float = 0.0  # > 0 for a sigmoid, else 0

    def __post_init__(self) -> None:
        for name in ("worth", "time_s"):
            if not 0 < (value := getattr(self, name)) <= VALUE_MAX:
                raise InvalidInput(f"{name} of a completion value must be > 0 and at most {VALUE_MAX:g}, got {value!r}")
        is_sigmoid = self.shape is ValueShape.SIGMOID
        if not (0 < self.decay_per_s <= VALUE_MAX if is_sigmoid else self.decay_per_s == 0):
            allowed = "> 0" if is_sigmoid else "left out"
            raise InvalidInput(f"decay_per_s of a {self.shape} completion value must be {allowed}")

    @classmethod
    def parse(cls, text: str) -> CompletionValue:
        """The value that a text describes.

        >>> CompletionValue.parse("linear:worth=5:time_s=600").row
        (1.0, 5.0, 600.0, 0.0)
        """
        name, *settings = text.split(":")
        given: dict[str, float] = {}
        for setting in settings:
            parameter, equals, value = setting.partition("=")
            if parameter not in ("worth", "time_s", "decay_per_s") or not equals or parameter in given:
                raise InvalidInput(f"completion_value must have worth, time_s and decay_per_s, each once, got {text!r}")
            try:
                given[parameter] = float(value)
            except ValueError:
                given[parameter] = math.nan
        if name not in list(ValueShape):
            raise InvalidInput(f"completion_value must begin with one of {', '.join(ValueShape)}, got {text!r}")
        return cls(ValueShape(name), *(given.pop(name, 0.0) for name in ("worth", "time_s", "decay_per_s")))

    @property
    def row(self) -> tuple[float, float, float, float]:
        """The function as a row of a problem."""
        return float(_NUMBER[self.shape]), self.worth, self.time_s, self.decay_per_s


def text_of(row: Floats) -> str:
    """A row of a problem as text."""
    number, worth, time_s, decay_per_s = row.tolist()
    shape = list(ValueShape)[int(number) - 1]
    decay = f":decay_per_s={decay_per_s!r}" if decay_per_s else ""
    return f"{shape}:worth={worth!r}:time_s={time_s!r}{decay}"


def rows_of(texts: Sequence[str]) -> Floats:
    """The values that these texts describe, (J, 4); "" = none."""
    rows = [CompletionValue.parse(text).row if text else (0.0,) * COLUMNS for text in texts]
    return np.array(rows, dtype=np.float64).reshape(-1, COLUMNS)


def values_at(rows: Floats, time_s: Floats) -> Floats:
    """The value of each job if it ends so long after its submission, (J,); 0 of jobs without one. `rows`: (J, 4).

    >>> values_at(np.array([CompletionValue.parse("linear:worth=5:time_s=600").row]), np.array([120.0])).tolist()
    [4.0]
    """
    shape, worth, scale_s, decay_per_s = rows.T
    scale_s = np.where(scale_s > 0, scale_s, 1.0)
    steepness = np.clip(decay_per_s * (time_s - scale_s), -700.0, 700.0)
    found = [
        np.maximum(worth * (1.0 - time_s / scale_s), 0.0),
        worth / (1.0 + np.exp(steepness)),
        np.where(time_s <= scale_s, worth, 0.0),
    ]
    return np.asarray(np.select([shape == number for number in _NUMBER.values()], found, 0.0))
