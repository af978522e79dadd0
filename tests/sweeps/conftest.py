"""Fixtures of tests of sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Gavel


@pytest.fixture
def gavel(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gavel:
    monkeypatch.chdir(tmp_path)
    return Gavel(tmp_path, capsys)
