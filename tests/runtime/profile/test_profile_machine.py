"""GPU type and source of a measured rate profile, from the machine it ran on."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.gpus import gpus_of
from gavelpy.runtime.profile import Machine, here


@pytest.mark.parametrize(
    ("product", "gpu_type"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA TITAN Xp", "titanxp"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla K80", "k80"),
    ],
)
def test_a_profile_and_an_agent_name_the_same_type(
    product: str, gpu_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_driver(tmp_path, monkeypatch, f"{product}, 570.1")

    profiled, (offered,) = here(), gpus_of({"0": product})

    assert profiled.gpu_type == offered.gpu_type == gpu_type


def pretend_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    """A fake driver program that reports these GPUs."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\ncat <<'ROWS'\n" + "\n".join(rows) + "\nROWS\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_type_is_detected_by_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_driver(tmp_path, monkeypatch, "NVIDIA H200, 570.1", "NVIDIA H200, 570.1")

    assert here() == Machine("h200", "NVIDIA H200", "570.1")


def test_type_must_be_given_where_gpus_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_driver(tmp_path, monkeypatch, "NVIDIA H200, 570.1", "Tesla K80, 570.1")

    with pytest.raises(InvalidInput, match="found h200, k80"):
        here()


def test_type_must_be_given_where_there_is_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(InvalidInput, match="no GPU known to nvidia-smi"):
        here()


def test_cpu_is_a_type_of_its_own() -> None:
    assert here(on_cpu=True).gpu_type == "cpu"
    assert here(on_cpu=True, gpu_type="old-cpu").gpu_type == "old-cpu"


def test_source_names_job_hardware_versions_and_date() -> None:
    machine = Machine("h200", "NVIDIA H200", "570.1")

    line = machine.source("python train.py", 20.0, datetime(2026, 3, 1, tzinfo=UTC))

    assert line.startswith("gavel profile on 2026-03-01: python train.py; NVIDIA H200, driver 570.1, Python 3.")
    assert line.endswith("; 20 s after the first steps")
