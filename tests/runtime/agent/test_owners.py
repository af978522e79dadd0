"""Jobs run as their owners: accounts, files, and owners that a node does not know."""

from __future__ import annotations

import os
import pwd
import signal
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.shim import processes
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.owners import ALICE, AS_ALICE, BOB, OWNERS, PYTHON, open_place, owners_node
from tests.runtime.agent.peer import Peer, order, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts")


@pytest.fixture
def place() -> Iterator[Path]:
    with open_place() as directory:
        yield directory


@pytest.fixture
def node(place: Path, port: int) -> Iterator[Node]:
    with owners_node(place / "state", port) as started:
        yield started


def test_job_runs_with_uid_gid_groups_and_home_of_its_owner(peer: Peer, node: Node) -> None:
    account = pwd.getpwnam(ALICE)
    shown = "sh -c 'id -u; id -g; id -G; echo $HOME $USER; umask; grep NoNewPrivs /proc/self/status'"

    peer.order(order(1, shown, owner="alice"))
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    lines = [line.split(" ", 1)[1] for line in node.log_text(1).splitlines()]
    groups = " ".join(map(str, os.getgrouplist(ALICE, account.pw_gid)))
    assert lines == [
        str(account.pw_uid), str(account.pw_gid), groups, f"{account.pw_dir} {ALICE}", "0022", "NoNewPrivs:\t1",
    ]  # fmt: skip


def test_owner_without_an_account_is_refused(peer: Peer, node: Node) -> None:
    peer.order(order(1, "true", owner="carol"))
    report = peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    assert (report.outcome, report.failure) == (pb.LEASE_OUTCOME_FAILED, pb.FAILURE_CLASS_REFUSED)
    assert report.detail == "node n0 does not know user 'carol'"


def test_owner_whose_account_is_root_is_refused_unless_allowed(peer: Peer, node: Node, place: Path, port: int) -> None:
    peer.order(order(1, "id -u", owner="boss"))
    refused = peer.until_phase(1, pb.LEASE_PHASE_ENDED)
    node.send(signal.SIGTERM)
    peer.orders.clear()
    with owners_node(place / "other", port, OWNERS + "allow_root = true\n") as other:
        peer.order(order(2, "id -u", owner="boss"))
        allowed = peer.until_phase(2, pb.LEASE_PHASE_ENDED)
        printed = other.log_text(2)

    assert refused.detail == "node n0 runs no job as root (allow_root = false); user 'boss' is root there"
    assert allowed.outcome == pb.LEASE_OUTCOME_FINISHED
    assert printed.split() == [printed.split()[0], "0"]


def test_agent_without_root_runs_jobs_of_its_own_account_only(place: Path, peer: Peer, port: int) -> None:
    state, uid = place / "state", pwd.getpwnam(ALICE).pw_uid
    state.mkdir()
    os.chown(state, uid, uid)
    with ExitStack() as stack:
        node = Node(state, f"127.0.0.1:{port}", more=OWNERS)
        node.start(AS_ALICE)
        stack.callback(node.close)
        peer.order(order(1, "id -u", owner="alice"))
        peer.order(order(2, "id -u", owner="bob", job=1, gpus=(1,)))
        own, others = (peer.until_phase(lease, pb.LEASE_PHASE_ENDED) for lease in (1, 2))
        log = node.log.read_text()

    assert own.outcome == pb.LEASE_OUTCOME_FINISHED
    assert others.failure == pb.FAILURE_CLASS_REFUSED
    assert others.detail == f"node n0 runs jobs of {ALICE!r} only, because its agent is not root; the owner is 'bob'"
    assert "it runs jobs of its own account only" in log


def test_command_and_working_directory_are_found_with_the_rights_of_the_owner(
    peer: Peer, node: Node, place: Path
) -> None:
    hidden = place / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "run").write_text("#!/bin/sh\n")
    (hidden / "run").chmod(0o755)

    peer.order(order(1, str(hidden / "run"), owner="alice"))
    peer.order(order(2, "true", owner="alice", job=1, gpus=(1,), working_directory=str(hidden / ".")))

    command, directory = (peer.until_phase(lease, pb.LEASE_PHASE_ENDED) for lease in (1, 2))
    assert (command.outcome, command.exit_code) == (pb.LEASE_OUTCOME_FAILED, 126)
    assert directory.outcome == pb.LEASE_OUTCOME_FAILED
    assert "the working directory" in directory.detail


def test_checkpoints_and_lease_are_the_owners_and_closed_to_others(peer: Peer, node: Node) -> None:
    account = pwd.getpwnam(ALICE)
    shown = (
        "sh -c 'stat -c \"%a %u\" $GAVEL_CHECKPOINT_DIR/.. $GAVEL_CHECKPOINT_DIR $GAVEL_LEASE_DIR $GAVEL_LEASE_DIR/*'"
    )

    peer.order(order(1, shown, owner="alice"))
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    lines = [line.split(" ", 1)[1] for line in node.log_text(1).splitlines()]
    assert lines == [f"700 {account.pw_uid}"] * 3 + [f"600 {account.pw_uid}"] * 2


def test_secrets_of_a_lease_are_0600_and_its_environment_is_not_in_the_jobs_copy(peer: Peer, node: Node) -> None:
    peer.order(order(1, "sleep 60", owner="alice", environment={"API_KEY": "s3cret"}))
    peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
    lease = node.lease(1)

    modes = {stat.S_IMODE((lease / name).stat().st_mode) for name in ("launch.json", "assignment.json", "lease.json")}
    assert modes == {0o600}
    assert "s3cret" in (lease / "launch.json").read_text()
    copy = lease_files.read_launch(node.state / "jobs" / lease.name)
    assert copy is not None
    assert (copy.environment, copy.rank_environments, copy.grace_s) == ({}, (), 5.0)


def test_job_that_left_session_environment_and_parent_is_dead_after_its_lease(
    peer: Peer, node: Node, place: Path
) -> None:
    (place / "out").mkdir()
    (place / "out").chmod(0o777)
    witness = place / "out" / "pid"
    script = place / "daemon.py"
    script.write_text(
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        os.execve('/bin/sh', ['sh', '-c', 'echo $$ > {witness}; trap \"\" TERM; sleep 100 & wait'], {{}})\n"
        "    os._exit(0)\n"
        "time.sleep(100)\n"
    )
    peer.order(order(1, f"{PYTHON} {script}", owner="alice", grace_s=0.2))
    escaped = int(until(lambda: witness.exists() and witness.read_text().strip()))
    assert Path(f"/proc/{escaped}").stat().st_uid == pwd.getpwnam(ALICE).pw_uid

    peer.wish(1, pb.LEASE_WISH_STOP)
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    assert processes.process_facts(escaped) is None


def test_links_and_pipes_in_the_jobs_directory_harm_the_job_only(peer: Peer, node: Node, place: Path) -> None:
    canary = place / "canary"
    canary.write_text("untouched")
    script = (
        f"cd $GAVEL_LEASE_DIR; rm -f lease.json; ln -s {canary} lease.json; ln -s {canary} progress.0.json; "
        "rm launch.json; mkfifo launch.json; echo spoiled; sleep 100"
    )
    peer.order(order(1, f'sh -c "{script}"', owner="alice"))
    until(lambda: "spoiled" in node.log_text(1))

    peer.orders[1].until_clock_s = clock_s() + 120
    peer.push()
    until(lambda: not (node.state / "jobs/00000001/lease.json").is_symlink())
    peer.until_heard_anew(3)

    assert canary.read_text() == "untouched"
    assert canary.stat().st_uid == 0
    assert peer.report(1).phase == pb.LEASE_PHASE_RUNNING
    assert "must be a plain file" in node.log.read_text() or "cannot be read" in node.log.read_text()


def test_link_in_place_of_a_checkpoint_directory_leads_nowhere_that_the_owner_may_not_go(
    peer: Peer, node: Node, place: Path
) -> None:
    peer.order(order(1, "sh -c 'echo secret > $GAVEL_CHECKPOINT_DIR/secret'", owner="bob", job=7))
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)
    victim = node.checkpoints / "7" / "lease-00000001"
    plant = f"sh -c 'ln -s {victim} $GAVEL_CHECKPOINT_DIR/../lease-00000003'"
    peer.order(order(2, plant, owner="alice", job=8))
    assert peer.until_phase(2, pb.LEASE_PHASE_ENDED).outcome == pb.LEASE_OUTCOME_FINISHED

    peer.order(order(3, "true", owner="alice", job=8))
    report = peer.until_phase(3, pb.LEASE_PHASE_ENDED)

    assert report.outcome == pb.LEASE_OUTCOME_LOST
    assert "cannot use the checkpoint directory" in report.detail
    assert [entry.name for entry in victim.iterdir()] == ["secret"]


def test_checkpoint_directory_that_another_user_made_first_is_not_used(peer: Peer, node: Node, place: Path) -> None:
    peer.until_heard_anew(1)
    taken = node.checkpoints / "7"
    taken.mkdir(parents=True)
    os.chown(taken, pwd.getpwnam(BOB).pw_uid, -1)

    peer.order(order(1, "true", owner="alice", job=7))
    report = peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    assert report.outcome == pb.LEASE_OUTCOME_FAILED
    assert f"must be a directory of {ALICE!r}" in report.detail
    assert list(taken.iterdir()) == []


def test_directory_of_a_job_is_removed_with_its_lease(peer: Peer, node: Node) -> None:
    peer.order(order(1, "true", owner="alice"))
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)
    made = node.state / "jobs/00000001"
    assert made.is_dir()

    peer.forget.append(1)
    peer.drop(1)

    until(lambda: not made.exists())


def test_next_agent_finds_a_running_job_of_an_owner(peer: Peer, node: Node) -> None:
    peer.order(order(1, "sh -c 'echo up; sleep 100'", owner="alice"))
    peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
    shim = node.shim(1)
    node.process.kill()
    node.process.wait()
    node.start()

    until(lambda: len(peer.nodes) == 2 and peer.report(1).phase == pb.LEASE_PHASE_RUNNING)
    peer.wish(1, pb.LEASE_WISH_STOP)
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    assert not processes.is_shim_alive(shim)
    assert processes.process_facts(shim.job_processes[0]) is None
