"""The nodes that jobs may use, on the command line, against a running scheduler and three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST, LONG, LONG_STEPS, submit
from tests.runtime.client.serving import until

NODES = tuple(LocalNode(f"n{k}", "v100:1") for k in (1, 2, 3))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), NODES, FAST) as started:
        started.start()
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    """The command line, configured for the cluster."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    return gavel


def job_of(cli: Gavel, name: str) -> Any:  # Any: JSON values
    (job,) = cli("status", name, "-o", "json").json["jobs"]
    return job


def test_jobs_run_where_their_owner_allows_and_others_wait(cli: Gavel) -> None:
    submit(cli, "only", LONG, "--nodes", "n2", steps=LONG_STEPS)
    submit(cli, "not", LONG, "--exclude", "n2,n3", steps=LONG_STEPS)
    for name in ("only", "not"):
        until(lambda name=name: job_of(cli, name)["state"] == "running", f"{name} runs")
    submit(cli, "second", LONG, "--nodelist", "n2", steps=LONG_STEPS)
    until(lambda: job_of(cli, "second")["reason_kind"] == "behind-unsaved", "it waits for its node")

    jobs = {name: job_of(cli, name) for name in ("only", "not", "second")}
    explained = cli("explain", "not").out
    described = cli("explain", "second", "-o", "json").json["description"]
    free = [node["node_id"] for node in cli("nodes", "-o", "json").json["nodes"] if not node["gpus_in_use"]]
    cli("cancel", *jobs)

    assert [jobs[name]["node_ids"] for name in jobs] == [["n2"], ["n1"], []]
    assert [jobs[name]["nodes"] for name in jobs] == [["n2"], [], ["n2"]]
    assert jobs["not"]["exclude"] == described["exclude"] + ["n2", "n3"]
    assert jobs["second"]["reason"].endswith("; runs on n2 only by its owner")
    assert free == ["n3"]
    assert "Limits: excluded from n2, n3." in explained


def test_array_of_a_file_runs_on_its_nodes_only(cli: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(
        '[[job]]\nname = "sweep"\narray = "0-3"\ncommand = "sh -c \'echo on $GAVEL_NODE_ID\'"\nsteps_total = 1\n'
        'rates_steps_per_s.v100 = 10\nnodes = ["n1", "n3"]\nexclude = "n1"\n',
        encoding="utf-8",
    )

    cli("submit", str(tmp_path / "jobs.toml"))
    for index in range(4):
        assert cli("wait", f"sweep-{index}").code == 0

    assert {cli("logs", f"sweep-{index}").out.strip().rpartition(" ")[2] for index in range(4)} == {"n3"}


def test_unknown_node_is_a_warning_and_a_job_that_can_run_nowhere_waits(cli: Gavel) -> None:
    plain = ("--steps", "10", "--rate", "v100:1")
    strange = cli("submit", "--name", "strange", *plain, "--exclude", "n9", "--hold", "--", "true")
    nowhere = cli("submit", "--name", "nowhere", *plain, "--nodes", "n7,n8", "--", "true")
    until(lambda: job_of(cli, "nowhere")["reason_kind"] == "nodes-excluded", "it has the reason")
    job, explained = job_of(cli, "nowhere"), cli("explain", "nowhere").out
    cli("cancel", "strange", "nowhere")

    why = "needs 1 GPU, with none there: runs on n7 or n8 only by its owner; n7 and n8 have not joined"
    assert (strange.code, nowhere.code) == (0, 0)
    assert "no node has the name n9 now; the cluster has n1, n2, n3" in strange.err
    assert f"cannot run on this cluster as it is: {why}" in nowhere.err
    assert (job["state"], job["reason"]) == ("waiting", why)
    assert f"Why: {why}." in explained


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--nodes", "n1,"), "--nodes must be names of nodes such as n1,n2, each once, got 'n1,'"),
        (("--exclude", "n1,n1"), "--exclude must be names of nodes such as n1,n2, each once, got 'n1,n1'"),
        (("--exclude", "n[1-3]"), "--exclude must be names of nodes such as n1,n2, each once, got 'n[1-3]'"),
        (("--nodes", "n1", "--exclude", "n1"), "exclude of job"),
    ],
)
def test_bad_choice_is_one_line_and_exit_code_2(cli: Gavel, options: tuple[str, ...], complaint: str) -> None:
    answer = cli("submit", "--steps", "1", "--rate", "v100:1", *options, "--", "true")

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert complaint in answer.err
