"""The data files are found in a checkout and are included in the wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from gavelpy.errors import InvalidInput
from gavelpy.traces import workloads
from gavelpy.traces.workloads import workloads_directory

PROJECT = Path(__file__).resolve().parents[2]
FILES = ("README.md", "gpus.toml", "throughputs.csv")


@pytest.mark.parametrize("name", FILES)
def test_checkout_has_the_file(name: str) -> None:
    assert (workloads_directory() / name).is_file()


def test_wheel_has_the_files(tmp_path: Path) -> None:
    builder = WheelBuilder(str(PROJECT))

    (wheel,) = builder.build(directory=str(tmp_path), versions=["standard"])

    names = zipfile.ZipFile(wheel).namelist()
    assert {f"gavelpy/_workloads/{name}" for name in FILES} <= set(names)
    assert {f"gavelpy/runtime/daemon/web/static/{name}" for name in ("index.html", "page.css", "page.js")} <= set(names)


def test_missing_data_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "__file__", str(tmp_path / "gavelpy" / "traces" / "workloads.py"))

    with pytest.raises(InvalidInput, match=r"workload data are missing in .*_workloads"):
        workloads_directory()
