"""The README's commands for real jobs run as written, on one machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from gavelpy.runtime.local_cluster import free_port, processes_below
from tests.house.project import ROOT

PATIENCE_S = 120.0  # on a busy machine; about 10 s otherwise
PLACE = "/tmp/gavel"  # in the configuration of the README; the test replaces it by its own directory


def block_under(title: str) -> str:
    """The first indented block of a section of the README."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {title}\n", 1)[1]
    found = re.search(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert found, f"no commands under {title!r}"
    return re.sub(r"^    ", "", found[0], flags=re.MULTILINE)


def test_commands_for_real_jobs_run_as_written(tmp_path: Path) -> None:
    port, bin_directory = free_port(), Path(sys.executable).parent
    laptop = (ROOT / "deploy" / "scheduler-laptop.toml").read_text(encoding="utf-8")
    configuration = tmp_path / "scheduler-laptop.toml"
    own = laptop.replace(PLACE, str(tmp_path)).replace("[scheduler]", f'[scheduler]\nlisten = "127.0.0.1:{port}"')
    configuration.write_text(own, encoding="utf-8")
    commands = block_under("Real jobs").replace(". .venv/bin/activate\n", "")
    commands = commands.replace("deploy/scheduler-laptop.toml", str(configuration)).replace(PLACE, str(tmp_path))
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "GAVEL_SCHEDULER": f"127.0.0.1:{port}",
        "GAVEL_TIMEOUT_S": "60",
    }
    script = f"set -e\n{commands.replace('127.0.0.1:7077', f'127.0.0.1:{port}')}"

    process = subprocess.Popen(
        ["bash", "-c", script], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(PATIENCE_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        for number in processes_below(tmp_path):
            os.kill(number, signal.SIGKILL)
    out, errors = process.communicate()

    assert code == 0, errors
    assert re.search(r"first +\S+ +finished", out), out
