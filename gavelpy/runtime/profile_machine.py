"""This node in a throughput table: its GPU type, and the text of the column `source`."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.gpus import type_of_model

_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
_QUERY_S_MAX = 30.0


@dataclass(frozen=True)
class Machine:
    """The node of a measurement: its GPU type, and its hardware for users."""

    gpu_type: str
    hardware: str
    driver: str = ""

    def source(self, what: str, measure_s: float, now: datetime | None = None) -> str:
        """The text of the column `source`: job, hardware, versions, date."""
        day = (now or datetime.now(UTC)).date().isoformat()
        driver = [f"driver {self.driver}"] if self.driver else []
        known = [self.hardware, *driver, f"Python {platform.python_version()}", *_versions("torch", "gavelpy")]
        return f"gavel profile on {day}: {what}; {', '.join(known)}; {measure_s:g} s after the first steps"


def here(*, on_cpu: bool = False, gpu_type: str = "") -> Machine:
    """This node. Raises InvalidInput if the GPU type is neither given nor detected."""
    if on_cpu:
        return Machine(gpu_type or "cpu", _processor())
    products, driver = _local_gpus()
    found = sorted({type_of_model(product) for product in products})
    if not gpu_type and len(found) != 1:
        detected = ", ".join(found) or "no GPU known to nvidia-smi"
        raise InvalidInput(f"gpu_type must be given unless there is exactly one GPU type, found {detected}")
    return Machine(gpu_type or found[0], ", ".join(dict.fromkeys(products)) or _processor(), driver)


def _local_gpus() -> tuple[tuple[str, ...], str]:
    """Product names of the GPUs, in the driver's order, and the driver's version; empty without GPUs."""
    try:
        result = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver here, or one that does not answer: no GPU to measure on
        return (), ""
    rows = [line.rpartition(",") for line in result.stdout.splitlines() if line.strip()]
    return tuple(name.strip() for name, _, _ in rows), rows[0][2].strip() if rows else ""


def _processor() -> str:
    """Model name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.machine()


def _versions(*packages: str) -> list[str]:
    found: list[str] = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found
