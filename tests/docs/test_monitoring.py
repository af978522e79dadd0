"""Alert rules and the dashboard use only metrics and labels that the scheduler exports."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import NodeJoined
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.metrics import SchedulerMetrics
from tests.conftest import PROJECT

ALERTS = (PROJECT / "deploy" / "alerts.yml").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((PROJECT / "deploy" / "dashboard.json").read_text(encoding="utf-8"))
PAGE = (PROJECT / "docs" / "monitoring.md").read_text(encoding="utf-8")
REFERENCE = (PROJECT / "docs" / "scheduler.md").read_text(encoding="utf-8")
EXPRESSIONS = [
    *re.findall(r"expr: (?:>-\n\s+)?((?:.+\n)(?:\s{10,}and .+\n)?)", ALERTS),
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
]
NAME = re.compile(r"\bgavel_\w+")


def exported() -> str:
    """The text that a scheduler with one node serves at /metrics."""
    metrics, core = SchedulerMetrics(), SchedulerCore(MechanismSettings())
    event = NodeJoined(NodeId("n0"), "v100", 1)
    core.handle(event, 0.0)
    metrics.count_event(event)
    for what in ("commit", "plan", "solve", "snapshot"):
        metrics.measured(what, 0.01)
    return metrics.read(core, 0, 0).decode()


SAMPLES = set(re.findall(r"^(gavel_\w+)", exported(), re.MULTILINE))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_uses_exported_metrics(expression: str) -> None:
    assert set(NAME.findall(expression)) - SAMPLES == set()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_matches_states_that_are_exported(expression: str) -> None:
    text = exported()

    for metric, states in re.findall(r'(gavel_\w+)\{[^}]*state=~?"([\w|]+)"', expression):
        for state in states.split("|"):
            assert f'{metric}{{state="{state}"}}' in text


def test_every_exported_metric_is_in_the_reference_and_on_the_dashboard() -> None:
    samples = {name for name in SAMPLES if not name.endswith(("_count", "_sum", "_created"))}
    families = {name.removesuffix("_bucket") for name in samples}

    assert families - set(NAME.findall(REFERENCE)) == set()
    assert samples - set(NAME.findall(json.dumps(DASHBOARD))) == set()


def test_every_alert_is_documented() -> None:
    assert re.findall(r"alert: (\w+)", ALERTS)
    assert set(re.findall(r"^\| `(Gavel\w+)` \|", PAGE, re.MULTILINE)) == set(re.findall(r"alert: (\w+)", ALERTS))
