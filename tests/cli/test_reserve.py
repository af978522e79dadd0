"""Reservations on the command line, against a running scheduler and two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST, LONG, LONG_STEPS, submit
from tests.runtime.client.serving import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    nodes = (LocalNode("n1", "v100:1"), LocalNode("n2", "v100:1"))
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes, FAST) as started:
        started.start()
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gavel]:
    """The command line, configured for the cluster; reservations are deleted afterwards."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    yield gavel
    for found in gavel("reservations", "-o", "json").json["reservations"]:
        gavel("reserve", found["name"], "--delete")


def state_of(cli: Gavel, name: str) -> str:
    state: str = cli("status", name, "-o", "json").json["jobs"][0]["state"]
    return state


def test_running_job_leaves_its_node_at_the_begin_and_returns_after_the_end(cli: Gavel) -> None:
    submit(cli, "mover", LONG, "--preemptible", steps=LONG_STEPS)
    until(lambda: state_of(cli, "mover") == "running", "it runs")

    reserved = cli("reserve", "move", "--nodes", "n1,n2", "--from", "+2s", "--for", "5s", "--reason", "new floor")
    until(lambda: "reserved" in cli("nodes").out, "the reservation is in force")
    until(lambda: state_of(cli, "mover") == "waiting", "the job has left")
    (job,) = cli("status", "mover", "-o", "json").json["jobs"]
    nodes = cli("nodes", "-o", "json").json["nodes"]
    listed = cli("reservations").out
    until(lambda: state_of(cli, "mover") == "running", "it runs again")
    cli("cancel", "mover")

    assert reserved.code == 0
    assert "coming" in reserved.out
    assert job["reason_kind"] == "nodes-away"
    assert "(reserved by 'move': new floor)" in job["reason"]
    assert [node["state"] for node in nodes] == ["reserved"] * 2
    assert all(node["detail"].startswith("reserved by 'move': new floor") for node in nodes)
    assert "in force" in listed
    assert cli("reservations", "-o", "json").json["reservations"] == []
    assert "reservation 'move' of n1, n2: new floor" in cli("events").out


def test_deleted_reservation_is_gone(cli: Gavel) -> None:
    cli("reserve", "later", "--nodes", "n1", "--from", "+1h", "--to", "+2h")
    (found,) = cli("reservations", "-o", "json").json["reservations"]

    answer = cli("reserve", "later", "--delete")

    assert (found["name"], found["node_ids"], found["in_force"]) == ("later", ["n1"], False)
    assert found["end_at_s"] - found["begin_at_s"] == pytest.approx(3_600.0, abs=1.0)
    assert answer.code == 0
    assert cli("reservations", "-o", "json").json["reservations"] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("x", "--nodes", "n7", "--for", "1h"), "n7"),
        (("x", "--nodes", "n1,", "--for", "1h"), "--nodes must name one or more nodes"),
        (("x", "--nodes", "n1"), "either --to TIME or --for SPAN"),
        (("x", "--nodes", "n1", "--for", "1h", "--to", "+1h"), "either --to TIME or --for SPAN"),
        (("x", "--nodes", "n1", "--from", "soon", "--for", "1h"), "--from must be a time such as"),
        (("x", "--nodes", "n1", "--from", "+2h", "--to", "+1h"), "must end after its begin"),
        (("x y", "--nodes", "n1", "--for", "1h"), "name must be"),
        (("x", "--delete"), "name must be that of a reservation (there is none), got 'x'"),
        (("x", "--delete", "--nodes", "n1"), "--delete takes the name of a reservation"),
    ],
)
def test_bad_reservations_are_one_line_and_exit_code_2(cli: Gavel, arguments: tuple[str, ...], complaint: str) -> None:
    answer = cli("reserve", *arguments)

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert complaint in answer.err
