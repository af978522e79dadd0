"""Clusters of real processes for tests, which end with the test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.journal.conftest import postgres_server, postgres_url  # noqa: F401 fixtures
from tests.runtime.live.stage import Settings, Stage, StartStage


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartStage]:
    """Starts a cluster of these nodes."""
    with contextlib.ExitStack() as stack:

        def started(*nodes: LocalNode, settings: Settings | None = None) -> Stage:
            cluster = stack.enter_context(LocalCluster(tmp_path / "cluster", nodes, settings or {}))
            witnessed = tmp_path / "evidence"
            witnessed.mkdir()
            cluster.start()
            return Stage(cluster, witnessed)

        yield started
