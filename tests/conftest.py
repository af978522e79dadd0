"""What every test may ask for: the reference data, and the settings of Hypothesis."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded: tests run side by side
PROJECT = Path(__file__).resolve().parents[1]

# Examples are drawn anew on every run. A failure prints the blob that reproduces it, and is kept as a test of its own.
# Time says nothing about a test on a busy machine: no deadline, no complaint about slow generation.
_DRAWN = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("local", _DRAWN, max_examples=50)
settings.register_profile("ci", _DRAWN, max_examples=100, database=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


@pytest.fixture(scope="session")
def reference_directory() -> Path:
    """The folder of reference data: see `locate_reference`."""
    return locate_reference(os.environ)


def locate_reference(environment: Mapping[str, str]) -> Path:
    """The folder named by GAVELPY_REFERENCE_DIR, by default `shared` beside the project.

    Without it the tests that need it are skipped, as in a stranger's clone, or fail where CI is "true".
    """
    folder = Path(environment.get("GAVELPY_REFERENCE_DIR") or PROJECT.parent / "shared")
    if (folder / "golden").is_dir():
        return folder
    complaint = f"no reference data at {folder}; GAVELPY_REFERENCE_DIR says where they are"
    if environment.get("CI") == "true":
        pytest.fail(complaint)
    pytest.skip(complaint)
