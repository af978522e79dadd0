"""Runs training jobs in this process: puts their folder on the path, and restores global settings afterwards."""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.workloads.leases import JOBS

CLASSES = {
    "image_classification": "ImageClassification",
    "language_model": "LanguageModelling",
    "translation": "Translation",
    "recommender": "Recommender",
    "gan": "Gan",
    "actor_critic": "Balancing",
}
Train = Callable[..., dict[str, Any]]  # Any: JSON values


@pytest.fixture
def train(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Train]:
    """Runs a job of this name with these arguments; returns its last line."""
    torch = pytest.importorskip("torch", reason="torch comes with gavelpy[torch]")
    monkeypatch.syspath_prepend(str(JOBS))
    training = importlib.import_module("training")
    before = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # --deterministic sets it
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")

    def run(job: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        trained = getattr(importlib.import_module(job), CLASSES[job])
        with monkeypatch.context() as leased:
            for name, value in (environment or {}).items():
                leased.setenv(name, value)
            code = training.main(trained, ["--device=cpu", *arguments])
        assert code == 0
        return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))

    yield run
    signal.signal(signal.SIGTERM, before[0])
    torch.set_num_threads(before[1])
    torch.use_deterministic_algorithms(False)
