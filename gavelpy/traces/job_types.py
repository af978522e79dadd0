"""Specs for the roofline model: cost per step of job families (workloads/job_types.toml), peak rates of GPU types."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import GpuSpecs, Precision, StepCost
from gavelpy.traces.fields import Place, read_text
from gavelpy.traces.workloads import catalogue, workloads_directory

_TEXTS = ("sample", "source")
_NUMBERS = tuple(field.name for field in fields(StepCost) if field.name != "precision")


def job_types(path: str | Path | None = None) -> dict[str, StepCost]:
    """Cost of a step of each job family, from `path` (default: workloads/job_types.toml).

    >>> job_types()["ResNet-50"].gflop_per_sample
    24.6
    """
    source = workloads_directory() / "job_types.toml" if path is None else path
    place = Place(str(source))
    try:
        entries = tomllib.loads(read_text(source))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"text must be TOML, got {error}", file=place.file) from error
    return {name: _step_cost(name, entry, place) for name, entry in entries.items()}


def gpu_specs() -> dict[str, GpuSpecs]:
    """Peak rates of the catalogue's GPU types; half precision is at least as fast as single precision.

    Single precision is TF32 if the GPU has it, as common frameworks use it for convolutions by default.
    """
    return {
        name: GpuSpecs(
            gpu.memory_gb,
            gpu.bandwidth_gb_per_s,
            max(gpu.fp32_tflops, gpu.tf32_tflops),
            max(gpu.fp32_tflops, gpu.fp16_tflops, gpu.tensor_tflops),
        )
        for name, gpu in catalogue().items()
    }


def _step_cost(name: str, entry: object, place: Place) -> StepCost:
    keys = {*_NUMBERS, *_TEXTS, "precision"}
    if not isinstance(entry, dict) or entry.keys() != keys:
        raise place.error(name, f"a table with exactly the keys {', '.join(sorted(keys))}", entry)
    for key in _TEXTS:
        if not isinstance(entry[key], str) or not entry[key]:
            raise place.error(f"{name}.{key}", "a non-empty string", entry[key])
    if entry["precision"] not in list(Precision):
        raise place.error(f"{name}.precision", f"one of {', '.join(Precision)}", entry["precision"])
    numbers: dict[str, Any] = {}
    for key in _NUMBERS:
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e18:
            raise place.error(f"{name}.{key}", "a number > 0 and at most 1e+18", value)
        numbers[key] = float(value)
    return StepCost(**numbers, precision=Precision(entry["precision"]))
