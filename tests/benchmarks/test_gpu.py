"""The benchmark for machines with a GPU runs its phases on CPUs, too, and keeps what a phase has found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.gpu import phases
from benchmarks.gpu.stage import Target


def test_a_phase_that_fails_is_a_result_and_the_next_ones_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Target) -> dict[str, object]:
        raise ValueError("no such device")

    played: Mapping[str, phases.Phase] = {"first": fails, "second": lambda target: {"type": target.gpu_type}}
    monkeypatch.setattr(phases, "PHASES", played)

    phases.run(["--device=cpu", f"--out={tmp_path}", "--phases=first,second"])

    results = json.loads((tmp_path / "results.json").read_text())
    assert "no such device" in results["first"]["error"]
    assert results["second"]["type"] == "cpu"
    assert "first: " in capsys.readouterr().out


@pytest.mark.slow
def test_state_ranks_and_detection_are_checked_on_cpus(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch comes with gavelpy[torch]")

    phases.run(["--device=cpu", f"--out={tmp_path}", "--phases=detect,torch"])

    results = json.loads((tmp_path / "results.json").read_text())
    torch = results["torch"]
    assert json.loads(torch["random_state"]) == {"device": "cpu", "equal": True}
    assert json.loads(torch["training_state"])["equal"] is True
    assert [json.loads(rank)["gradient"] for rank in torch["two_ranks_on_one_gpu"]] == [[[3.0] * 4]] * 2
    assert results["detect"]["gpus"][0]["gpu_type"] == "cpu"


@pytest.mark.slow
def test_pairs_and_the_cost_of_leases_are_measured_on_cpus(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch comes with gavelpy[torch]")

    phases.run(["--device=cpu", f"--out={tmp_path}", "--phases=rates", "--seconds=1"])

    results = json.loads((tmp_path / "results.json").read_text())["rates"]
    assert len(results["jobs"]) == 6
    assert all(job["leased_to_bare"] > 0 and job["checkpoint_bytes"] > 0 for job in results["jobs"].values())
    assert len(results["pairs"]) == 15
    assert all(rate > 0 for pair in results["pairs"] for rate in pair["rates"])
