"""A secret on its way from `gavel secret set` to a job: no file, answer, command line or log of gavel contains it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path

import pytest

from gavelpy.cli.main import main
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until

VALUE = "s3cret-value-7f1c"
SCRIPT = """
import hashlib, os, time
print("digest", hashlib.sha256(os.environ["TRACKER"].encode()).hexdigest(), flush=True)
time.sleep(600)
"""


def found_in(directory: Path) -> list[str]:
    files = [each for each in directory.rglob("*") if each.is_file()]
    return [str(each) for each in files if VALUE.encode() in each.read_bytes()]


def command_lines() -> str:
    found = ""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found += file.read_bytes().decode(errors="replace")
    return found


def test_value_of_a_secret_reaches_the_job_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gavel(*arguments: str) -> str:
        assert main(list(arguments)) == 0, capsys.readouterr()
        printed = capsys.readouterr()
        return printed.out + printed.err

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(VALUE.encode())))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with LocalCluster(tmp_path / "cluster", (LocalNode("n1", "v100:1"),), {"nodes": {"grace_s": 0.5}}) as cluster:
        cluster.start()
        monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
        monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
        shown = gavel("secret", "set", "WANDB")
        shown += gavel("submit", "--name", "j", "--steps", "1", "--rate", "v100:1", "--secret", "WANDB=TRACKER",
                       "--env", "LR=0.1", "--", "python", str(script))  # fmt: skip
        wait_until(lambda: "digest" in gavel("logs", "j"), "the job has printed")
        printed = gavel("logs", "j")
        explained = gavel("explain", "j")
        described = json.loads(gavel("explain", "j", "-o", "json"))["description"]
        running = command_lines()
        shown += (environment := gavel("explain", "j", "--environment"))
        shown += explained + json.dumps(described) + gavel("jobs", "-o", "json") + gavel("events", "-o", "json")
        files = found_in(tmp_path / "cluster")
        gavel("cancel", "j")

    assert hashlib.sha256(VALUE.encode()).hexdigest() in printed
    assert VALUE not in shown + printed + running
    assert files == []
    assert environment == "LR=0.1\n# TRACKER from the secret WANDB\n"
    assert described["secrets"] == {"TRACKER": "WANDB"}
    assert "Variables: LR=***, TRACKER from the secret WANDB." in explained
