"""Commands about the order of jobs against a running scheduler: hold, release, begin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST, LONG, QUICK, submit
from tests.runtime.client.serving import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (LocalNode("n1", "v100:2"),), FAST) as started:
        started.start()
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    """The command line, configured for the cluster."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    return gavel


def test_held_job_starts_after_its_release(cli: Gavel) -> None:
    submit(cli, "held", QUICK, "--hold")
    assert cli("wait", "held", "--for", "1").code == 124
    (job,) = cli("status", "held", "-o", "json").json["jobs"]
    assert (job["reason_kind"], job["held_by"]) == ("held", "owner")
    assert "the job is held, and starts only after its release" in cli("explain", "held").out

    assert cli("release", "held").out.endswith("\theld\twaiting\n")

    assert cli("wait", "held").code == 0
    history = cli("explain", "held").out
    assert "released" in history


def test_running_job_that_is_held_runs_on_with_a_note(cli: Gavel) -> None:
    submit(cli, "goes-on", LONG, steps="1e9")
    until(lambda: "running" in cli("status", "goes-on").out, "it runs")

    answer = cli("hold", "goes-on")

    assert "held" in answer.out
    assert "it is held as soon as it is preempted or fails" in answer.err
    assert cli("cancel", "goes-on").code == 0
    assert "it is over (cancelled): nothing changes" in cli("release", "goes-on").err


def test_job_begins_at_its_time(cli: Gavel) -> None:
    submit(cli, "later", QUICK, "--begin", "+4s")
    (job,) = cli("status", "later", "-o", "json").json["jobs"]
    assert job["reason_kind"] == "begins-later"
    assert job["reason"].startswith("begins at 20")

    assert cli("wait", "later").code == 0

    (job,) = cli("status", "later", "-o", "json").json["jobs"]
    assert job["begin_at_s"] - 0.1 <= job["started_at_s"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("hold", "no-such-job"), "job must be the number or name of one of yours"),
        (("submit", "--steps", "1", "--begin", "soon", "--", "true"), "begin must be a time such as"),
    ],
)
def test_bad_orders_are_one_line_and_exit_code_2(cli: Gavel, arguments: tuple[str, ...], complaint: str) -> None:
    answer = cli(*arguments)

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert complaint in answer.err
