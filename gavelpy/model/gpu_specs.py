"""Inputs of the roofline model: the specs of a GPU type, and the cost of a step of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX


class Precision(StrEnum):
    """Floating-point precision of a job."""

    SINGLE = "single"
    HALF = "half"


@dataclass(frozen=True)
class GpuSpecs:
    """Peak rates and memory of one GPU."""

    memory_gb: float
    bandwidth_gb_per_s: float
    single_tflops: float
    half_tflops: float  # of the fastest units

    def __post_init__(self) -> None:
        _positive(self)

    def tflops(self, precision: Precision) -> float:
        """Peak rate in this precision."""
        return self.half_tflops if precision is Precision.HALF else self.single_tflops


@dataclass(frozen=True)
class StepCost:
    """Cost of one step: a part per sample of the batch, and a constant part (weights, optimizer)."""

    gflop_per_sample: float  # forward and backward
    gb_per_sample: float  # moved between memory and chip
    gb_per_step: float
    memory_gb: float  # independent of the batch
    memory_gb_per_sample: float
    precision: Precision

    def __post_init__(self) -> None:
        _positive(self)

    def memory_needed_gb(self, batch: float) -> float:
        """Memory needed on one GPU with `batch` samples."""
        return self.memory_gb + batch * self.memory_gb_per_sample


def _positive(specs: GpuSpecs | StepCost) -> None:
    for field in fields(specs):
        value = getattr(specs, field.name)
        if not isinstance(value, Precision) and not (math.isfinite(value) and 0 < value <= VALUE_MAX):
            raise InvalidInput(f"{field.name} must be > 0 and at most {VALUE_MAX:g}, got {value!r}")
