"""What a machine is called in a throughput table: its GPU type, and a line for people about where figures come from."""

from __future__ import annotations

import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gavelpy.errors import InvalidInput

_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
_QUERY_S_MAX = 30.0
# Words of a product's name that do not tell a type: the vendor, the family, how it is mounted, its memory.
_NOISE = re.compile(r"nvidia|tesla|geforce|quadro|graphics|device|sxm\d*|pcie|hbm\d*e?|nvl|\d+gb", re.IGNORECASE)


@dataclass(frozen=True)
class Machine:
    """What is measured on: its column in a table, and what people should know of it."""

    gpu_type: str
    hardware: str
    driver: str = ""

    def source(self, what: str, measure_s: float, now: datetime | None = None) -> str:
        """For the column `source`: what was measured, on what, with which versions, when."""
        day = (now or datetime.now(UTC)).date().isoformat()
        driver = [f"driver {self.driver}"] if self.driver else []
        known = [self.hardware, *driver, f"Python {platform.python_version()}", *_versions("torch", "gavelpy")]
        return f"gavel profile on {day}: {what}; {', '.join(known)}; {measure_s:g} s after the first steps"


def here(*, on_cpu: bool = False, gpu_type: str = "") -> Machine:
    """This machine. InvalidInput where its type of GPU is not given and cannot be told."""
    if on_cpu:
        return Machine(gpu_type or "cpu", _processor())
    products, driver = _local_gpus()
    found = sorted({gpu_type_of(product) for product in products})
    if not gpu_type and len(found) != 1:
        told = ", ".join(found) or "no GPU that nvidia-smi knows"
        raise InvalidInput(f"gpu_type must be given where there is not exactly one type of GPU, found {told}")
    return Machine(gpu_type or found[0], ", ".join(dict.fromkeys(products)) or _processor(), driver)


def gpu_type_of(product: str) -> str:
    """The name of a type in clusters and tables.

    >>> gpu_type_of("Tesla V100-SXM2-16GB"), gpu_type_of("NVIDIA H200"), gpu_type_of("NVIDIA A100 80GB PCIe")
    ('v100', 'h200', 'a100')
    """
    words = [word for word in re.split(r"[\s_-]+", product) if word and not _NOISE.fullmatch(word)]
    return "-".join(words).lower() or product.lower()


def _local_gpus() -> tuple[tuple[str, ...], str]:
    """Product names of the GPUs, in the driver's order, and the driver's version; nothing where there are none."""
    try:
        asked = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver here, or one that does not answer: no GPU to measure on
        return (), ""
    rows = [line.rpartition(",") for line in asked.stdout.splitlines() if line.strip()]
    return tuple(name.strip() for name, _, _ in rows), rows[0][2].strip() if rows else ""


def _processor() -> str:
    """What the CPU calls itself."""
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
