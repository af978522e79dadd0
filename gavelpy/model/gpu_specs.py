"""What the roofline needs: a GPU's peak figures, and what a step of a job costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX


class Precision(StrEnum):
    """In which numbers a job computes."""

    SINGLE = "single"
    HALF = "half"


@dataclass(frozen=True)
class GpuSpecs:
    """Peaks of one GPU."""

    memory_gb: float
    bandwidth_gb_per_s: float
    single_tflops: float
    half_tflops: float  # by its fastest units

    def __post_init__(self) -> None:
        _positive(self)

    def tflops(self, precision: Precision) -> float:
        """Peak in this precision."""
        return self.half_tflops if precision is Precision.HALF else self.single_tflops


@dataclass(frozen=True)
class StepCost:
    """What one step costs: a part for every sample of the batch, and a part of its own (weights, optimizer)."""

    gflop_per_sample: float  # forward and backward
    gb_per_sample: float  # moved between memory and chip
    gb_per_step: float
    memory_gb: float  # held whatever the batch
    memory_gb_per_sample: float
    precision: Precision

    def __post_init__(self) -> None:
        _positive(self)

    def memory_needed_gb(self, batch: float) -> float:
        """Memory of one GPU that a batch of so many samples takes."""
        return self.memory_gb + batch * self.memory_gb_per_sample


def _positive(figures: GpuSpecs | StepCost) -> None:
    for field in fields(figures):
        value = getattr(figures, field.name)
        if not isinstance(value, Precision) and not (math.isfinite(value) and 0 < value <= VALUE_MAX):
            raise InvalidInput(f"{field.name} must be > 0 and at most {VALUE_MAX:g}, got {value!r}")
