"""The commands of docs/json.md run in order on a real cluster and print the fields and types of the examples."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.main import main
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.conftest import PROJECT

PAGE = (PROJECT / "docs" / "json.md").read_text(encoding="utf-8")
PARTS = re.findall(r"^    (gavel [^\n]*)$|^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NUMBER = "number or null"


def shape(value: Any) -> str:  # Any: JSON values
    return (
        NUMBER
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        else type(value).__name__
    )


def differences(example: Any, found: Any, place: str = "$") -> list[str]:
    """Differences of two documents in fields and types. {} and [] in the example match any object and list."""
    if shape(example) != shape(found):
        return [f"{place}: {shape(example)} in the example, {shape(found)} printed"]
    if isinstance(example, dict) and example:
        names = [f"{place}.{name} is on one side only" for name in set(example) ^ set(found)]
        return names + [d for n in set(example) & set(found) for d in differences(example[n], found[n], f"{place}.{n}")]
    if isinstance(example, list) and example and found:
        return differences(example[0], found[0], f"{place}[0]")
    return []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    settings = {"nodes": {"heartbeat_interval_s": 0.1, "grace_s": 0.5}, "mechanism": {"round_s": 2.0}}
    settings["teams.vision"] = {"members": ["local"]}
    settings["teams.vision.quota"] = {"v100": 2}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with LocalCluster(tmp_path / "cluster", (LocalNode("n1", "v100:2"),), settings) as started:
        started.start()
        monkeypatch.setenv("GAVEL_SCHEDULER", started.address)
        monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
        yield started


def wait_for_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Waits until the job has printed a line, as in the examples."""
    for _ in range(300):
        main(["logs", "train"])
        if "hello" in capsys.readouterr().out:
            return
        time.sleep(0.1)


def test_examples_have_the_fields_of_the_real_output(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    checked, found = 0, {}

    for command, block in PARTS:
        if command:
            assert main(shlex.split(command)[1:]) == (1 if " wait " in command else 2 if "nothing" in command else 0)
            printed = capsys.readouterr()
            found = json.loads(printed.out or printed.err.splitlines()[-1])
            assert next(iter(found)) == "version"
        else:
            assert differences(json.loads(block), found) == [], command
            checked += 1
        if command.startswith("gavel submit --name train"):
            wait_for_the_first_line(capsys)

    assert checked == 19


def test_page_names_every_error_code() -> None:
    from gavelpy.cli.output import NAMES

    documented = dict(re.findall(r"^\| `(\w+)` \| (\d+)", PAGE, re.MULTILINE))

    assert documented == {name: str(code) for code, name in NAMES.items()}
