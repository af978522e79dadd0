"""GPU memory of leases: from the table of nvidia-smi, by the shim below which a process runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.runtime.agent.gpu_processes import GpuProcess, find_tool, gpu_processes, measured, parsed, used_by

TABLE = """71, GPU-aaa, 2048
72, GPU-aaa, 1024
72, GPU-bbb, 512
80, GPU-bbb, [N/A]
[Insufficient Permissions], GPU-bbb, 100
"""


@pytest.fixture
def below() -> Iterator[int]:
    """A process below this one."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process.pid
        process.kill()


def tool(directory: Path, text: str, code: int = 0) -> str:
    """A program in place of nvidia-smi that prints this."""
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_only_lines_with_a_process_and_an_amount_count() -> None:
    assert parsed(TABLE) == [
        GpuProcess(71, "GPU-aaa", 2.0),
        GpuProcess(72, "GPU-aaa", 1.0),
        GpuProcess(72, "GPU-bbb", 0.5),
    ]


def test_processes_of_a_lease_count_together_on_each_gpu_and_the_fullest_gpu_counts() -> None:
    parents = {71: 61, 72: 61, 61: 50, 73: 51, 50: 1, 51: 1}

    found = used_by(
        [50, 51], [*parsed(TABLE), GpuProcess(73, "GPU-bbb", 0.25), GpuProcess(99, "GPU-bbb", 9.0)], parents
    )

    assert found == {50: 3.0, 51: 0.25}


def test_a_circle_of_parents_ends() -> None:
    assert used_by([50], [GpuProcess(71, "GPU-aaa", 2.0)], {71: 72, 72: 71}) == {}


def test_memory_is_that_of_the_process_above(tmp_path: Path, below: int) -> None:
    assert measured(tool(tmp_path, f"{below}, GPU-aaa, 3072\n"), [os.getpid()]) == {os.getpid(): 3.0}


def test_a_tool_that_fails_shows_nothing(tmp_path: Path) -> None:
    assert gpu_processes(tool(tmp_path, TABLE, code=9)) == []
    assert gpu_processes(str(tmp_path / "missing")) == []


def test_the_tool_is_looked_for_on_nodes_with_gpus_of_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tool(tmp_path, TABLE)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert (find_tool("nvidia"), find_tool("amd")) == (path, "")
