"""Limits of jobs on the command line, against a running scheduler and node."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST, LONG, LONG_STEPS, submit


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (LocalNode("n1", "v100:1"),), FAST) as started:
        started.start()
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    """The command line, configured for the cluster."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    return gavel


def test_job_is_over_at_its_time_limit_and_says_so(cli: Gavel) -> None:
    submit(cli, "long", LONG, "--time", "2s", "--constraint", "v100|p100", steps=LONG_STEPS)

    assert cli("wait", "long").code == 1

    explained = cli("explain", "long").out
    assert re.search(r"Limits: runs on v100 or p100 only; running time [1-9]\S* s of at most 2\.0 s\.", explained)
    assert "Last failure: time limit reached (2 s); not retried." in explained
    (job,) = cli("status", "long", "-o", "json").json["jobs"]
    assert (job["state"], job["failure_class"]) == ("failed", "time-limit")
    assert job["ran_s"] >= 1.0


def test_job_whose_types_are_missing_waits_with_a_warning_and_the_reason(cli: Gavel) -> None:
    answer = cli(
        "submit", "--name", "picky", "--steps", "10", "--rate", "v100:1,p100:2", "--constraint", "p100", "--", "true"
    )
    (job,) = cli("status", "picky", "-o", "json").json["jobs"]
    cli("cancel", "picky")

    why = "its constraint allows p100; the cluster has v100"
    assert why in answer.err
    assert (job["state"], job["reason_kind"], job["reason"]) == ("waiting", "runs-on-no-type", why)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--time", "90"), "--time must be a time span such as 90m"),
        (("--stall", "0s"), "--stall must be a time span such as 90m"),
        (("--constraint", "v100,p100"), "constraint must be GPU types such as v100|p100"),
        (("--constraint", "k80"), "gpu_types must be a type for which the job has a rate, got 'k80'"),
    ],
)
def test_bad_limits_are_one_line_and_exit_code_2(cli: Gavel, options: tuple[str, str], complaint: str) -> None:
    answer = cli("submit", "--steps", "1", "--rate", "v100:1", *options, "--", "true")

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert complaint in answer.err
