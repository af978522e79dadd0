"""Alert rules and the dashboard use only metrics and labels that a real scheduler exports.

promtool, of Debian's package `prometheus`, checks the rules, the names of the metrics, and when each alert fires.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.local_cluster import CALL_S, LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.conftest import PROJECT

RULES = PROJECT / "deploy" / "alerts.yml"
ALERTS = RULES.read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((PROJECT / "deploy" / "dashboard.json").read_text(encoding="utf-8"))
PAGE = (PROJECT / "docs" / "monitoring.md").read_text(encoding="utf-8")
REFERENCE = (PROJECT / "docs" / "scheduler.md").read_text(encoding="utf-8")
ALERT_NAMES = re.findall(r"alert: (\w+)", ALERTS)
EXPRESSIONS = [
    *re.findall(r"expr: (?:>-\n\s+)?((?:.+\n)(?:\s{10,}(?:and|>) .+\n)*)", ALERTS),
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
]
HEAD, *BLOCKS = re.split(r"^(?= +- alert: )", ALERTS, flags=re.MULTILINE)  # one block for each alert
BLOCK_OF = dict(zip(ALERT_NAMES, BLOCKS, strict=True))
NAME = re.compile(r"\bgavel_\w+")
STEP_S, POINTS = 30, 240  # of the series in the tests of alerts: two hours

Series = Mapping[str, str]  # values of each series, in promtool's notation
UP = 'gavel_nodes{instance="h",state="up"}'
SILENT = 'gavel_nodes{instance="h",state="silent"}'
WAITING, RUNNING = (f'gavel_jobs{{instance="h",state="{state}"}}' for state in ("waiting", "running"))
PREEMPTED, LOST = (f'gavel_preemptions_total{{instance="h",reason="{why}"}}' for why in ("other_jobs", "node_lost"))
FAILED, FINISHED = (f'gavel_leases_ended_total{{instance="h",outcome="{how}"}}' for how in ("failed", "finished"))


def bucket(name: str, le: str, *, per_step: int) -> tuple[str, str]:
    """Buckets of a histogram with growing counts."""
    return f'gavel_{name}_seconds_bucket{{instance="h",le="{le}"}}', f"0+{per_step}x{POINTS}"


def constant(value: float) -> str:
    return f"{value}x{POINTS}"


def slow(name: str) -> Series:
    return dict([bucket(name, "0.1", per_step=0), bucket(name, "60", per_step=3), bucket(name, "+Inf", per_step=3)])


def fast(name: str) -> Series:
    return dict([bucket(name, "0.1", per_step=3), bucket(name, "60", per_step=3), bucket(name, "+Inf", per_step=3)])


def single(name: str, value: float) -> Series:
    return {f'gavel_{name}{{instance="h"}}': constant(value)}


FIRES: dict[str, Series] = {
    "GavelDown": {'up{job="gavel",instance="h"}': constant(0)},
    "GavelNoNodes": {UP: constant(2), SILENT: constant(2)},
    "GavelNodesSilent": {SILENT: constant(1)},
    "GavelHeartbeatsStopped": {'gavel_heartbeats_total{instance="h"}': constant(9), UP: constant(1)},
    "GavelJournalSlow": slow("journal_commit"),
    "GavelPlanningSlow": slow("round_planning"),
    "GavelAllocationSlow": slow("solve"),
    "GavelEngineRestarting": {'gavel_engine_restarts_total{instance="h"}': f"0+1x{POINTS}"},
    "GavelGpusIdle": {
        'gavel_gpus{instance="h",gpu_type="v100"}': constant(4),
        'gavel_gpus_in_use{instance="h",gpu_type="v100"}': constant(3),
        WAITING: constant(1),
    },
    "GavelJobsFailing": {'gavel_jobs{instance="h",state="failed"}': f"0+1x{POINTS}"},
    "GavelNotReady": single("scheduler_ready", 0),
    "GavelSchedulerRestarting": {'gavel_scheduler_incarnation{instance="h"}': f"0+1x{POINTS}"},
    "GavelNodeReportsOld": single("node_report_age_seconds", 61) | {SILENT: constant(0)},
    "GavelNodesUnhealthy": {'gavel_nodes{instance="h",state="unhealthy"}': constant(1)},
    "GavelJobsBehind": single("lag_worst_seconds", 7 * 3600),
    "GavelWaitLong": single("longest_wait_seconds", 86_401),
    "GavelPreemptionsMany": {PREEMPTED: f"0+1x{POINTS}", RUNNING: constant(20)},  # 120 an hour for 20 jobs
    "GavelNodesLosingJobs": {LOST: f"0+1x{POINTS}"},
    "GavelLeasesFailing": {FAILED: f"0+1x{POINTS}", FINISHED: f"0+0x{POINTS}"},
}
RESTS: dict[str, Series] = {
    "GavelDown": {'up{job="gavel",instance="h"}': constant(1)},
    "GavelNoNodes": {UP: constant(2), SILENT: constant(1)},
    "GavelNodesSilent": {SILENT: constant(0)},
    "GavelHeartbeatsStopped": {'gavel_heartbeats_total{instance="h"}': f"0+30x{POINTS}", UP: constant(1)},
    "GavelJournalSlow": fast("journal_commit"),
    "GavelPlanningSlow": fast("round_planning"),
    "GavelAllocationSlow": fast("solve"),
    "GavelEngineRestarting": {'gavel_engine_restarts_total{instance="h"}': constant(3)},
    "GavelGpusIdle": {
        'gavel_gpus{instance="h",gpu_type="v100"}': constant(4),
        'gavel_gpus_in_use{instance="h",gpu_type="v100"}': constant(4),
        WAITING: constant(1),
    },
    "GavelJobsFailing": {'gavel_jobs{instance="h",state="failed"}': constant(1_000)},
    "GavelNotReady": single("scheduler_ready", 1),
    "GavelSchedulerRestarting": {'gavel_scheduler_incarnation{instance="h"}': constant(40)},
    "GavelNodeReportsOld": single("node_report_age_seconds", 300) | {SILENT: constant(1)},  # another alert has it
    "GavelNodesUnhealthy": {'gavel_nodes{instance="h",state="unhealthy"}': constant(0)},
    "GavelJobsBehind": single("lag_worst_seconds", 3600),
    "GavelWaitLong": single("longest_wait_seconds", 3600),
    "GavelPreemptionsMany": {PREEMPTED: f"0+1x{POINTS}", RUNNING: constant(100)},
    "GavelNodesLosingJobs": {LOST: constant(5)},
    "GavelLeasesFailing": {FAILED: f"0+1x{POINTS}", FINISHED: f"0+2x{POINTS}"},
}


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' checker; without it its tests are skipped, or fail if CI is "true"."""
    found = shutil.which("promtool")
    if found is None:
        complaint = "no promtool here (Debian: apt-get install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(complaint)
        pytest.skip(complaint)
    return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a real scheduler serves at /metrics after a job ran on its node, a restart and a snapshot."""
    directory = tmp_path_factory.mktemp("monitored")
    job = pb.JobDescription(steps_total=1.0, rates_steps_per_s={"v100": 1.0}, command=f"{sys.executable} -c pass")
    with LocalCluster(directory, (LocalNode("n0", "v100:1"),), serves_http=True) as cluster:
        cluster.start_scheduler()
        cluster.processes["scheduler"].terminate()
        cluster.processes["scheduler"].wait(60.0)
        cluster.start()
        with cluster.client() as client:
            client.SubmitJobs(pb.SubmitJobsRequest(idempotency_key="k", jobs=[job]), timeout=CALL_S)
        wait_until(lambda: 'outcome="finished"} 1.0' in scraped(cluster), "the end of the job is counted")
        return scraped(cluster)


def scraped(cluster: LocalCluster) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http_port}/metrics", timeout=CALL_S) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def samples(exported: str) -> set[str]:
    return set(re.findall(r"^(gavel_\w+)", exported, re.MULTILINE))


def firing(promtool: str, directory: Path, name: str, series: Series) -> subprocess.CompletedProcess[str]:
    """Runs promtool on one alert: it must fire at the end of these series.

    The other alerts are left out, because promtool computes every rule at each step of the series.
    """
    rules = directory / "alerts.yml"
    rules.write_text(HEAD + BLOCK_OF[name], encoding="utf-8")
    expectation = {
        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
        "eval_time": f"{STEP_S * (POINTS - 1)}s",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "interval": f"{STEP_S}s",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "promql_expr_test": [expectation],
            }
        ],
    }
    file = directory / "test.yml"
    file.write_text(json.dumps(document), encoding="utf-8")
    return subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60.0)


def test_the_rules_are_valid(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60.0)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(ALERT_NAMES)} rules found" in done.stdout


def test_metrics_are_named_by_the_rules_of_prometheus(promtool: str, exported: str) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=exported, capture_output=True, text=True, timeout=60.0)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_rests() -> None:
    assert list(FIRES) == list(RESTS) == ALERT_NAMES


@pytest.mark.parametrize("name", FIRES)
def test_alert_fires(name: str, promtool: str, tmp_path: Path) -> None:
    done = firing(promtool, tmp_path, name, FIRES[name])

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", RESTS)
def test_alert_rests(name: str, promtool: str, tmp_path: Path) -> None:
    done = firing(promtool, tmp_path, name, RESTS[name])

    assert done.returncode == 1
    assert re.search(r"got:\s*nil", done.stdout + done.stderr), done.stdout


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_uses_exported_metrics(expression: str, samples: set[str]) -> None:
    assert set(NAME.findall(expression)) - samples == set()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_matches_labels_that_are_exported(expression: str, exported: str) -> None:
    for metric, label, values in re.findall(r'(gavel_\w+)\{[^}]*\b(state|reason|outcome)=~?"([\w|]+)"', expression):
        for value in values.split("|"):
            assert f'{metric}{{{label}="{value}"}}' in exported


def test_every_exported_metric_is_in_the_reference_and_on_the_dashboard(samples: set[str]) -> None:
    samples = {name for name in samples if not name.endswith(("_count", "_sum"))}
    families = {name.removesuffix("_bucket") for name in samples}

    assert families - set(NAME.findall(REFERENCE)) == set()
    assert samples - set(NAME.findall(json.dumps(DASHBOARD))) == set()


def test_every_alert_is_documented() -> None:
    assert ALERT_NAMES
    assert set(re.findall(r"^\| `(Gavel\w+)` \|", PAGE, re.MULTILINE)) == set(ALERT_NAMES)


def test_a_job_that_ran_is_counted(exported: str) -> None:
    assert "gavel_wait_seconds_count 1.0" in exported
    assert "gavel_lost_steps_total 0.0" in exported
    assert 'gavel_node_usable{node="n0"} 1.0' in exported
    assert "gavel_scheduler_incarnation 2.0" in exported
