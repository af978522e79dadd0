"""The GPU catalogue has plausible figures and names their sources."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.workloads import GpuModel, catalogue

NAMES = ("k80", "p100", "v100", "t4", "a100", "a10", "h100", "l4", "mi300x", "h200", "b200")
FLAGSHIPS = ("k80", "p100", "v100", "a100", "h100", "h200", "b200")  # of one vendor
GPUS = catalogue()
SUCCESSORS = list(pairwise(FLAGSHIPS))
RISING = ("year", "bandwidth_gb_per_s", "fp32_tflops", "tf32_tflops", "tensor_tflops", "memory_gb")


def test_types_stand_oldest_first() -> None:
    assert tuple(GPUS) == NAMES
    assert [gpu.year for gpu in GPUS.values()] == sorted(gpu.year for gpu in GPUS.values())


@pytest.mark.parametrize("figure", RISING)
@pytest.mark.parametrize(("older", "newer"), SUCCESSORS)
def test_no_figure_falls_from_one_generation_to_the_next(older: str, newer: str, figure: str) -> None:
    assert getattr(GPUS[older], figure) <= getattr(GPUS[newer], figure)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_sources_are_named(gpu: GpuModel) -> None:
    assert gpu.spec_source.startswith(("NVIDIA", "AMD"))
    assert "20" in gpu.price_source  # a year
    assert gpu.price_usd_per_gpu_h > 0


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_units_are_plausible(gpu: GpuModel) -> None:
    assert 10 <= gpu.memory_gb <= 200
    assert 200 <= gpu.bandwidth_gb_per_s <= 8000
    assert 4 <= gpu.fp32_tflops <= 170
    assert gpu.tensor_tflops == 0 or gpu.tensor_tflops > gpu.fp32_tflops
    assert gpu.tf32_tflops == 0 or gpu.tf32_tflops == pytest.approx(gpu.tensor_tflops / 2.0, rel=0.01)
    assert (gpu.tf32_tflops > 0) == (gpu.year >= 2020)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[k80]\ntitle = 'x'\n", ": k80 must be a table with exactly the keys title, year"),
        ("k80 = 1\n", ": k80 must be a table"),
        ("[k80\n", ":1: text must be TOML"),
        ("k80 = " + "9" * 5000, ":1: text must be TOML"),
        ("k80 = " + "[" * 5000, ": text must be TOML"),
    ],
)
def test_bad_catalogue_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text(text)

    with pytest.raises(InvalidInput, match=f"gpus.toml{complaint}"):
        catalogue(file)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory_gb", "-1"),
        ("memory_gb", "nan"),
        ("memory_gb", "9" * 400),
        ("memory_gb", "'12'"),
        ("title", "''"),
        ("title", "3"),
    ],
)
def test_bad_figure_is_refused_by_name(tmp_path: Path, key: str, value: str) -> None:
    fields = {
        name: "'x'" if kind == "str" else "1" for name, kind in GpuModel.__annotations__.items() if name != "name"
    }
    file = tmp_path / "gpus.toml"
    file.write_text("[t4]\n" + "".join(f"{name} = {text}\n" for name, text in (fields | {key: value}).items()))

    with pytest.raises(InvalidInput, match=f"t4.{key} must be"):
        catalogue(file)
