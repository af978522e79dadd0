"""Reservations for users on the command line: an admin and two users with tokens, a scheduler and two nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until
from gavelpy.runtime.security.tokens import Role, TokenFile
from tests.cli.commands import Answer, Gavel
from tests.cli.test_cluster import FAST, LONG, submit
from tests.cli.test_tunnels import ClusterWithTokens

USERS = {"alice": Role.USER, "bob": Role.USER, "root": Role.ADMIN, "n1": Role.NODE, "n2": Role.NODE}
NODES = (LocalNode("n1", "v100:1"), LocalNode("n2", "v100:1"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tokens of the scheduler, and a file for each user and node."""
    directory = tmp_path_factory.mktemp("tokens")
    known = TokenFile(directory / "tokens.json")
    for name, role in USERS.items():
        (directory / name).write_text(known.create(name, role, now_s=time.time()))
    return directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Iterator[LocalCluster]:
    settings = {**FAST, "security": {"tokens": str(tokens / "tokens.json")}}
    with (
        pytest.MonkeyPatch.context() as patch,
        ClusterWithTokens(tmp_path_factory.mktemp("cluster"), NODES, settings) as started,
    ):
        started.start_scheduler()
        for node in NODES:
            config = tokens / f"{node.node_id}.toml"  # users of this test have no accounts
            config.write_text(f'[node]\nrun_as = "agent"\ntoken_file = "{tokens / node.node_id}"\n')
            patch.setenv("GAVEL_NODE_CONFIG", str(config))
            started.start_agent(node)
        yield started


class People:
    """The command line of each user."""

    def __init__(self, gavel: Gavel, tokens: Path, patch: pytest.MonkeyPatch) -> None:
        self._gavel, self._tokens, self._patch = gavel, tokens, patch

    def __call__(self, user: str, *arguments: str) -> Answer:
        self.become(user)
        return self._gavel(*arguments)

    def become(self, user: str) -> Gavel:
        self._patch.setenv("GAVEL_TOKEN_FILE", str(self._tokens / user))
        return self._gavel

    def submit(self, user: str, name: str, *arguments: str) -> None:
        submit(self.become(user), name, LONG, *arguments, steps="1e9")

    def job(self, name: str) -> Any:  # Any: JSON values
        return next(job for job in self("root", "jobs", "-o", "json").json["jobs"] if job["name"] == name)

    def until(self, name: str, state: str, why: str = "") -> Any:
        """The job, once it is in this state for this reason."""
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [self.job(name)]
            return bool(found[0]["state"] == state and found[0]["reason_kind"] == why)

        wait_until(holds, f"{name} is {state} {why}")
        return found[0]

    def forecast(self, user: str, *arguments: str) -> Any:
        """The forecast of a job, once it could be computed in time."""
        found: list[Any] = []

        def holds() -> bool:
            job = ("--rate", "v100:10", "--steps", "100", "-o", "json", "--", "true")
            found[:] = self(user, "submit", "--dry-run", *arguments, *job).json["jobs"]
            return found[0]["reason"] == ""

        wait_until(holds, "a forecast")
        return found[0]

    def node(self, name: str) -> Any:
        nodes = self("root", "nodes", "-o", "json").json["nodes"]
        return next(node for node in nodes if node["node_id"] == name)


@pytest.fixture
def people(gavel: Gavel, cluster: LocalCluster, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[People]:
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    found = People(gavel, tokens, monkeypatch)
    wait_until(lambda: found("root", "nodes", "-o", "json").out.count('"state": "up"') == 2, "the nodes are up")
    yield found
    for one in found("root", "reservations", "-o", "json").json["reservations"]:
        found("root", "reserve", one["name"], "--delete")
    for job in found("root", "jobs", "-o", "json").json["jobs"]:
        found("root", "cancel", str(job["job"]))


def test_reserved_node_goes_to_its_users_at_the_begin_and_back_when_the_reservation_is_deleted(people: People) -> None:
    for name in ("one", "two"):
        people.submit("bob", name, "--preemptible")
        people.until(name, "running")
    reserved = people("root", "reserve", "course", "--nodes", "n1", "--user", "alice", "--from", "+4s", "--for", "10m")
    people.submit("alice", "lab", "--preemptible", "--reservation", "course")
    early = people.until("lab", "waiting", "awaits-reservation")
    people.submit("alice", "plain", "--preemptible")
    inside = people.until("lab", "running")
    listed = people("bob", "reservations", "-o", "json").json["reservations"]
    node, explained = people.node("n1"), people("alice", "explain", "lab").out
    waits = next(job for name in ("one", "two", "plain") if (job := people.job(name))["state"] == "waiting")
    people("root", "reserve", "course", "--delete")
    held = people.until("lab", "waiting", "held")
    wait_until(lambda: people.node("n1")["gpus_in_use"] == 1, "the node is used by others")
    again = people("alice", "release", "lab")
    people("bob", "cancel", "one", "two")
    after = people.until("lab", "running")

    assert reserved.code == 0
    assert early["reason"].startswith("its reservation 'course' begins at 2")
    assert (inside["node_ids"], inside["reservation"]) == (["n1"], "course")
    assert [(one["users"], one["gpus"], one["gpus_in_use"], one["in_force"]) for one in listed] == [
        (["alice"], 1, 1, True)
    ]
    assert node["state"] == "reserved"
    assert node["detail"].startswith("reserved for alice by 'course'")
    assert "runs within reservation course only" in explained
    assert "n1 reserved for alice by 'course' until 2" in waits["reason"]
    assert "its reservation 'course' is over, so it is held" in held["reason"]
    assert again.code == 0
    assert after["reservation"] == ""


def test_idle_reservation_is_visible_and_forecasts_do_not_promise_its_nodes(people: People) -> None:
    people("root", "reserve", "course", "--nodes", "n1,n2", "--user", "alice,bob", "--for", "1h")

    table = people("alice", "reservations").out
    bobs = people.forecast("bob")
    alices = people.forecast("alice", "--reservation", "course")

    assert "0/2" in table
    assert "alice, bob" in table
    assert 3_500.0 < bobs["start_in_s"] < 3_700.0
    assert 0.0 <= alices["start_in_s"] < 60.0


def test_reservation_over_a_job_that_cannot_be_preempted_is_refused_by_name_without_force(people: People) -> None:
    people.submit("bob", "rigid", "--nodes", "n1", "--no-preempt")
    people.submit("bob", "short", "--nodes", "n2", "--no-preempt", "--time", "30m")
    people.until("rigid", "running")
    people.until("short", "running")
    common = ("--user", "alice", "--from", "+1h", "--for", "1h")

    refused = people("root", "reserve", "course", "--nodes", "n1,n2", *common)
    allowed = people("root", "reserve", "later", "--nodes", "n2", *common)
    forced = people("root", "reserve", "course", "--nodes", "n1", *common, "--force")

    assert (refused.code, allowed.code, forced.code) == (2, 0, 0)
    assert "(rigid) cannot be preempted and may still run there when it begins" in refused.err
    assert "short" not in refused.err
    assert "(rigid) runs on; the reservation gets its GPUs when it ends" in forced.err


@pytest.mark.parametrize(
    ("user", "name", "complaint"),
    [
        ("bob", "course", "reservation must be one for 'bob' (there is none), got 'course', which is for others"),
        (
            "alice",
            "curse",
            "reservation must be one for 'alice' (course), got 'curse', which does not exist or is over",
        ),
        ("alice", "disks", "reservation must be one for 'alice' (course), got 'disks', which is for maintenance"),
    ],
    ids=["of-others", "unknown", "maintenance"],
)
def test_reservation_that_a_job_may_not_use_is_refused_by_name(
    people: People, user: str, name: str, complaint: str
) -> None:
    people("root", "reserve", "course", "--nodes", "n1", "--user", "alice", "--from", "+1h", "--for", "1h")
    people("root", "reserve", "disks", "--nodes", "n2", "--from", "+1h", "--for", "1h")

    for extra in ((), ("--dry-run",)):
        answer = people(user, "submit", "--reservation", name, "--steps", "1", *extra, "--", "true")
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert complaint in answer.err


def test_users_do_not_make_reservations(people: People) -> None:
    answer = people("alice", "reserve", "mine", "--nodes", "n1", "--user", "alice", "--for", "1h")

    assert answer.code != 0
    assert "not allowed" in answer.err
    assert people("root", "reservations", "-o", "json").json["reservations"] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--user", "alice,"), "--user must name one or more users, each once, such as alice,bob, got 'alice,'"),
        (("--user", ""), "--user must name one or more users"),
        (("--force",), "--force needs --user"),
        (("--user", "bob", "--from", "+1h"), "must not overlap others for users: n1 is in 'course' at that time"),
    ],
)
def test_bad_reservations_for_users_are_one_line_and_exit_code_2(
    people: People, arguments: tuple[str, ...], complaint: str
) -> None:
    people("root", "reserve", "course", "--nodes", "n1", "--user", "alice", "--for", "3h")

    answer = people("root", "reserve", "other", "--nodes", "n1", "--for", "1h", *arguments)

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert complaint in answer.err
