"""The data that ships with the package: catalogue of GPU types, costs of steps of job families, published throughputs.

Catalogue and costs are also the specs of the roofline model (`estimator.roofline`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import GpuSpecs, Precision, StepCost
from gavelpy.model.throughput import ThroughputTable
from gavelpy.model.toml_text import parsed_toml
from gavelpy.traces.csv_format import read_csv_throughputs
from gavelpy.traces.fields import Place, read_text

_LARGE = 1e300  # far above any spec, safely below the float maximum


@dataclass(frozen=True)
class GpuModel:
    """Vendor specs and price of one GPU type. Peak rates are dense (no sparsity); 0 = the GPU has no such units."""

    name: str  # as in clusters and throughput tables
    title: str
    year: int
    memory_gb: float
    bandwidth_gb_per_s: float
    fp32_tflops: float
    fp16_tflops: float  # without tensor cores
    tf32_tflops: float  # of tensor cores on single precision rounded to 19 bits
    tensor_tflops: float  # half precision (FP16 or BF16) with FP32 accumulation, on tensor or matrix cores
    price_usd_per_gpu_h: float  # on demand, list price
    spec_source: str
    price_source: str


def workloads_directory() -> Path:
    """Directory of the data files: in the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "_workloads", package.parent / "workloads"):
        if (directory / "gpus.toml").is_file():
            return directory
    raise InvalidInput(f"workload data are missing in {package / '_workloads'}: reinstall gavelpy")


def catalogue(path: str | Path | None = None) -> dict[str, GpuModel]:
    """The GPU types by name, oldest first, from `path` (default: workloads/gpus.toml).

    >>> list(catalogue())
    ['k80', 'p100', 'v100', 't4', 'a100', 'a10', 'h100', 'l4', 'mi300x', 'h200', 'b200']
    """
    source = workloads_directory() / "gpus.toml" if path is None else path
    place = Place(str(source))
    entries = parsed_toml(read_text(source), place.file)
    return {name: _gpu_model(name, entry, place) for name, entry in entries.items()}


def published_throughputs() -> ThroughputTable:
    """Published rates of seven job families on five GPU types; workloads/README.md states their accuracy."""
    return read_csv_throughputs(workloads_directory() / "throughputs.csv")


def _gpu_model(name: str, entry: object, place: Place) -> GpuModel:
    wanted = {f.name: f.type for f in fields(GpuModel) if f.name != "name"}
    if not isinstance(entry, dict) or entry.keys() != wanted.keys():
        raise place.error(name, f"a table with exactly the keys {', '.join(wanted)}", entry)
    values: dict[str, Any] = {}  # strings and numbers, by field of GpuModel
    for key, kind in wanted.items():
        value = entry[key]
        if kind == "str":
            if not isinstance(value, str) or not value:
                raise place.error(f"{name}.{key}", "a non-empty string", value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGE:
            raise place.error(f"{name}.{key}", "a finite number >= 0", value)
        values[key] = float(value) if kind == "float" else value
    return GpuModel(name=name, **values)


_TEXTS = ("sample", "source")
_NUMBERS = tuple(field.name for field in fields(StepCost) if field.name != "precision")


def job_types(path: str | Path | None = None) -> dict[str, StepCost]:
    """Cost of a step of each job family, from `path` (default: workloads/job_types.toml).

    >>> job_types()["ResNet-50"].gflop_per_sample
    24.6
    """
    source = workloads_directory() / "job_types.toml" if path is None else path
    place = Place(str(source))
    entries = parsed_toml(read_text(source), place.file)
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
