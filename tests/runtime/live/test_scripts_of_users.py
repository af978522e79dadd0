"""Three users with accounts of their own submit the twelve scripts, and one of them attacks the jobs of the others.

The scheduler has tokens, and the agents run as root and start each job as its owner.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until
from gavelpy.runtime.security.tokens import Role, TokenFile
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub
from tests.conftest import PROJECT
from tests.runtime.agent.owners import open_place
from tests.runtime.live import hostile_user
from tests.runtime.live.cluster import OVER, jobs_of, submit
from tests.runtime.live.stage import Stage
from tests.runtime.live.test_scripts import EXPECTED, JOBS, PATIENCE_S, SCRIPTS, SETTINGS, daemons, log, outcome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts"),
]

ACCOUNTS = {"alice": "games", "bob": "news", "carol": "uucp"}  # nothing else runs as these
VICTIMS, ATTACKER = ("alice", "bob"), "carol"
NODES = (LocalNode("n0", "v100:2"), LocalNode("n1", "v100:2"), LocalNode("n2", "a100:3"))
PACKAGES = f"{PROJECT}:{sysconfig.get_path('purelib')}"  # for a Python that is not in root's home directory


class Caller(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpc has no types here
    """Adds a token to each call."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """The call, with the token."""
        return continuation(details._replace(metadata=hostile_user.bearer(self.token)), request)


@dataclass(eq=False)
class SharedCluster(LocalCluster):
    """A cluster whose callers have tokens; its own calls are those of `token`."""

    token: str = ""

    @contextmanager
    def client(self) -> Iterator[SchedulerServiceStub]:
        """A connection with the token."""
        with grpc.insecure_channel(self.address) as channel:
            yield SchedulerServiceStub(grpc.intercept_channel(channel, Caller(self.token)))


@dataclass(frozen=True)
class Users:
    """The cluster as an admin has it, and of each user the token and the directory."""

    stage: Stage
    tokens: dict[str, str]

    def directory(self, user: str) -> Path:
        return self.stage.witnessed / user

    def submit(self, user: str, *descriptions: pb.JobDescription) -> list[int]:
        """Submits with the token of a user."""
        cluster = replace(self.stage.cluster, token=self.tokens[user])  # type: ignore[type-var]  # SharedCluster
        return submit(cluster, list(descriptions), f"{user}-{descriptions[0].name}")

    def run(self, user: str, name: str, command: str, **environment: str) -> int:
        """Submits a job for the node of victims."""
        job = pb.JobDescription(
            name=name, command=command, steps_total=10.0, rates_steps_per_s={"a100": 1.0}, gpu_types=["a100"],
            working_directory=str(self.directory(user)), environment=environment,
        )  # fmt: skip
        (serial,) = self.submit(user, job)
        return serial


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    with open_place() as place:
        file = TokenFile(place / "tokens.json")
        roles = {**dict.fromkeys(ACCOUNTS, Role.USER), "admin": Role.ADMIN, **{n.node_id: Role.NODE for n in NODES}}
        tokens = {name: file.create(name, role, now_s=time.time()) for name, role in roles.items()}
        settings = {**SETTINGS, "security": {"tokens": str(file.path)}}
        with SharedCluster(place / "cluster", NODES, settings, token=tokens["admin"]) as cluster:
            cluster.directory.chmod(0o755)
            cluster.checkpoints.chmod(0o711)
            cluster.start_scheduler()
            for node in NODES:
                start_agent(cluster, node, place, tokens[node.node_id], monkeypatch)
            wait_until(lambda: cluster.nodes_up() == len(NODES), "all nodes are up")
            shared = Users(Stage(cluster, place / "users"), tokens)
            for user, account in ACCOUNTS.items():
                owned(shared.directory(user), account)
                token = owned(shared.directory(user) / "token", account, tokens[user])
                assert token.stat().st_mode & 0o077 == 0
            yield shared


def start_agent(cluster: LocalCluster, node: LocalNode, place: Path, token: str, patch: pytest.MonkeyPatch) -> None:
    """Starts an agent whose token only root can read."""
    secret = place / f"{node.node_id}.token"
    secret.touch(mode=0o600)
    secret.write_text(token)
    users = ", ".join(f'{user} = "{account}"' for user, account in ACCOUNTS.items())
    file = place / f"{node.node_id}.toml"
    file.write_text(f'[node]\nrun_as = "owner"\ntoken_file = "{secret}"\nusers = {{ {users} }}\n')
    patch.setenv("GAVEL_NODE_CONFIG", str(file))
    cluster.start_agent(node)


def owned(path: Path, account: str, text: str | None = None) -> Path:
    """A directory, or a file with this text, that only the account can use."""
    entry = pwd.getpwnam(account)
    if text is None:
        path.mkdir(mode=0o700, parents=True)
        path.parent.chmod(0o755)
    else:
        path.touch(mode=0o600)
        path.write_text(text)
    os.chown(path, entry.pw_uid, entry.pw_gid)
    return path


@pytest.fixture(scope="module")
def python() -> str:
    """A Python that the users can execute, and that can import what the scripts do."""
    entry = pwd.getpwnam(ACCOUNTS["alice"])
    for program in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [program, "-c", "import gavelpy.torch"]
        try:
            subprocess.run(
                command, user=entry.pw_uid, group=entry.pw_gid, env={"PYTHONPATH": PACKAGES}, cwd="/", check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    pytest.skip("the users can execute no Python that has torch")


def test_scripts_of_three_users_end_as_documented_and_a_hostile_job_reaches_no_other_user(
    users: Users, python: str
) -> None:
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    stage = users.stage

    victims = {user: users.run(user, f"{user}s-victim", f"bash {SCRIPTS}/victim.sh", API_KEY=f"{user}s-secret")
               for user in VICTIMS}  # fmt: skip
    scripts = {
        (user, name): serial
        for user in ACCOUNTS
        for name, serial in zip(JOBS, users.submit(user, *described(users, user, python)), strict=True)
    }
    targets = stage.witnessed / "targets.json"
    targets.write_text(json.dumps({"scheduler": stage.cluster.address, "victims": [
        target(users, user, job) for user, job in victims.items()]}))  # fmt: skip
    attack = f"{python} -m tests.runtime.live.hostile_user {targets} {users.directory(ATTACKER)}/token"
    hostile = users.run(ATTACKER, "hostile", attack, PYTHONPATH=PACKAGES)
    wait_until(lambda: stage.job(hostile).state in OVER, "the attacks end", PATIENCE_S)
    attacks = attacks_in(log(stage, hostile, users.tokens["admin"]))
    states = {user: stage.job(job).state for user, job in victims.items()}
    for user in VICTIMS:
        (users.directory(user) / "release").touch()
    wait_until(lambda: all(job.state in OVER for job in jobs_of(stage.cluster).values()), "all jobs end", PATIENCE_S)

    assert set(states.values()) == {pb.JOB_STATE_RUNNING}
    assert stage.job(hostile).state == pb.JOB_STATE_FINISHED
    assert {victim for victim, _ in attacks} == {f"{user}s-victim" for user in VICTIMS}
    assert {attack: found for attack, found in attacks.items() if not found.startswith("denied")} == {}
    assert_undisturbed(users, victims)
    found = {
        key: outcome(stage, serial, users.tokens[key[0]], is_counted=JOBS[key[1]].runs > 0)
        for key, serial in scripts.items()
    }
    assert found == {(user, name): EXPECTED[name] for user, name in scripts}
    for user, account in ACCOUNTS.items():
        results = users.directory(user) / "results"
        assert (results.read_text(), results.owner()) == ("complete", account)
        assert log(stage, scripts[user, "forking-daemon"], users.tokens[user])[-1] == "daemons 1"
    assert daemons() == []


def test_attacks_by_the_api_work_for_an_admin(users: Users) -> None:
    """So a denial is due to the caller, not to a mistake in the attack."""
    stage = users.stage
    job = users.run("alice", "alices-victim", f"bash {SCRIPTS}/victim.sh", API_KEY="alices-secret")
    at = target(users, "alice", job)

    attacks = hostile_user.job_attacks(stage.cluster.address, users.tokens["admin"], at)
    stage.wait(lambda: hostile_user.tried(attacks["list-usage"]) == "worked", "the usage of the job is booked")
    found = {name: hostile_user.tried(attack) for name, attack in attacks.items()}

    assert found.pop("explain-job-by-name") == "denied NOT_FOUND"  # a name is found among the caller's own jobs only
    assert found == dict.fromkeys(found, "worked")
    assert stage.job(job).state == pb.JOB_STATE_CANCELLED


def described(users: Users, user: str, python: str) -> list[pb.JobDescription]:
    """The twelve scripts in the directory of a user."""
    directory, environment = users.directory(user), {"PYTHONPATH": PACKAGES, "HOME": str(users.directory(user))}
    return [script.description(name, directory, python, **environment) for name, script in JOBS.items()]


def target(users: Users, user: str, job: int) -> dict[str, object]:
    """What an attacker could find out about a running job at best."""
    stage = users.stage
    cluster, place = stage.cluster, stage.cluster.directory.parent
    checkpoints, secret = cluster.checkpoints / str(job), f"{user}s-secret"
    stage.wait(lambda: any(path.read_text().strip() == secret for path in checkpoints.glob("*/secret")), "it runs")
    running = stage.job(job)
    (node,) = running.node_ids
    state = cluster.directory / node
    directory = lease_files.lease_directory(state / "leases", running.lease)
    shim, launch = lease_files.read_shim(directory), lease_files.read_launch(directory)
    assert shim is not None
    assert launch is not None
    set_uid = place / "id"
    shutil.copy("/usr/bin/id", set_uid)
    set_uid.chmod(0o4755)
    return {
        "name": running.name, "owner": user, "secret": secret, "job": job, "lease": running.lease, "node": node,
        "victim": shim.job_processes[0], "shim": shim.process, "agent": cluster.processes[node].pid,
        "state": str(state), "checkpoints": str(cluster.checkpoints), "cgroup": launch.cgroup,
        "job_directory": str(launch.directory_of_job(directory)), "token": str(place / f"{node}.token"),
        "set_uid": str(set_uid),
    }  # fmt: skip


def attacks_in(lines: list[str]) -> dict[tuple[str, str], str]:
    """Outcome by victim and attack."""
    parts = [line.split(" ", 2) for line in lines]
    return {(victim, attack): found for victim, attack, found in parts}


def assert_undisturbed(users: Users, victims: dict[str, int]) -> None:
    """Each victim began once, took its steps once and finished."""
    for user, job in victims.items():
        found = users.stage.job(job)
        assert (found.state, found.owner, found.restarts) == (pb.JOB_STATE_FINISHED, user, 0)
        assert log(users.stage, job, users.tokens[user]) == ["began", "step 1", f"{user}s-secret", "step 2"]
