"""Metrics that a script reports: the file that it writes, what the agent takes of it, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gavelpy import LeaseIterator, report_metric
from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.iterator import metrics
from gavelpy.runtime.metric_files import (
    METRICS_MAX,
    MetricFiles,
    MetricPoint,
    MetricsRecord,
    metrics_file,
    read_metrics,
    write_metrics,
)


@pytest.fixture
def lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAVEL_LEASE_DIR", str(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(metrics, "_last", {})
    return tmp_path


def read(directory: Path) -> list[MetricPoint]:
    files = MetricFiles()
    for rank in range(4):
        files.read(rank, lambda _, read, place: read(place or directory), directory)
    return files.last


def test_the_last_value_of_each_name_is_in_the_file_of_the_rank(lease: Path) -> None:
    report_metric("loss", 0.5, step=10)
    report_metric("accuracy", 0.7, step=10)
    report_metric("loss", 0.25, step=20)

    assert read_metrics(lease, 2) == MetricsRecord(("loss", "accuracy"), (20.0, 10.0), (0.25, 0.7))
    assert read(lease) == [("loss", 20.0, 0.25), ("accuracy", 10.0, 0.7)]


def test_a_value_that_is_not_finite_keeps_the_last_one(lease: Path) -> None:
    report_metric("loss", 0.5, step=10)
    report_metric("loss", math.nan, step=20)

    assert read(lease) == [("loss", 10.0, 0.5)]


def test_outside_a_lease_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAVEL_LEASE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)

    report_metric("loss", 0.5, step=10)

    assert list(tmp_path.iterdir()) == []


def test_an_iterator_reports_the_step_in_progress(lease: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(
        "gavelpy.runtime.iterator.lease_iterator.report_metric", lambda name, value, *, step: seen.append(step)
    )
    monkeypatch.delenv("GAVEL_LEASE_DIR")

    for value in (batches := LeaseIterator(range(3))):
        batches.report_metric("loss", value)

    assert seen == [1, 2, 3]


@pytest.mark.parametrize(("name", "step"), [("a b", 1), ("", 1), ("x" * 64, 1), ("loss", -1), ("loss", math.nan)])
def test_a_report_that_cannot_be_is_refused(lease: Path, name: str, step: float) -> None:
    with pytest.raises(InvalidInput):
        report_metric(name, 0.5, step=step)


def test_names_are_bounded(lease: Path) -> None:
    for number in range(METRICS_MAX):
        report_metric(f"metric-{number}", 0.5, step=1)

    with pytest.raises(InvalidInput, match="at most 8 metrics"):
        report_metric("one-more", 0.5, step=1)
    report_metric("metric-3", 0.25, step=2)


@pytest.mark.parametrize(
    "content",
    [
        {"names": ["loss"], "steps": [1], "values": []},
        {"names": ["loss", "loss"], "steps": [1, 2], "values": [1, 2]},
        {"names": ["a b"], "steps": [1], "values": [1]},
        {"names": ["loss"], "steps": [-1], "values": [1]},
        {"names": ["loss"], "steps": [1], "values": ["1"]},
        {"names": [f"m{n}" for n in range(99)], "steps": [1] * 99, "values": [1] * 99},
        {"names": "loss", "steps": 1, "values": 1},
        [],
    ],
)
def test_a_file_of_a_job_that_cannot_be_is_a_violation(tmp_path: Path, content: object) -> None:
    (tmp_path / metrics_file(0)).write_text(json.dumps(content))

    with pytest.raises(RemoteViolation):
        read_metrics(tmp_path, 0)


@pytest.mark.parametrize(
    "text", ['{"names": ["loss"], "steps": [1], "values": [NaN]}', "{", "\0", '{"names": [' * 9999]
)
def test_a_file_that_is_not_json_is_a_violation(tmp_path: Path, text: str) -> None:
    (tmp_path / metrics_file(0)).write_text(text)

    with pytest.raises(RemoteViolation):
        read_metrics(tmp_path, 0)


def test_the_lowest_rank_that_reports_a_name_counts(tmp_path: Path) -> None:
    write_metrics(tmp_path, 1, MetricsRecord(("loss",), (5.0,), (0.5,)))
    write_metrics(tmp_path, 0, MetricsRecord(("other",), (5.0,), (0.25,)))
    write_metrics(tmp_path, 3, MetricsRecord(("loss",), (6.0,), (0.75,)))

    assert sorted(read(tmp_path)) == [("loss", 5.0, 0.5), ("other", 5.0, 0.25)]
