"""Limits of a lease by its control group: memory, processes, CPUs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.config import node_config
from gavelpy.runtime.agent.leases import containment
from gavelpy.runtime.agent.leases.containment import (
    AGENT_GROUP,
    CGROUP_1,
    CGROUP_2,
    Containment,
    JobLimits,
    find_containment,
)
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.owners import PYTHON
from tests.runtime.agent.peer import Peer, order, until
from tests.runtime.shim.driver import started

MEMORY, PROCESSES = 64 << 20, 20
LIMITS = f"memory_bytes_per_gpu = {MEMORY}\nprocesses_per_gpu = {PROCESSES}\n"
HOARD = "held = [bytearray(1 << 20) for _ in range(400)]"
FORK = """
import os, sys
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            signal = os.read(0, 1); os._exit(0)
        made += 1
except OSError as error:
    print("refused", made, error.strerror)
sys.stdout.flush()
os.killpg(0, 9)
"""


@pytest.fixture
def limited(make_node: Callable[..., Node]) -> Node:
    found = find_containment(f"limits-{os.getpid()}")
    found.close()
    if not {"memory", "pids"} <= set(found.limiters):
        pytest.skip(f"this machine has no control groups with limits that can be written: {found.text}")
    return make_node(more=LIMITS)


def test_job_that_uses_more_memory_than_its_gpus_allow_is_killed(peer: Peer, limited: Node) -> None:
    peer.order(order(1, f"{PYTHON} -c '{HOARD}'"))
    peer.order(order(2, f"{PYTHON} -c 'held = bytearray(80 << 20)'", job=1, gpus=(1, 2), one_process_a_node=True))

    one, two = (peer.until_phase(lease, pb.LEASE_PHASE_ENDED) for lease in (1, 2))

    assert (one.outcome, one.exit_code) == (pb.LEASE_OUTCOME_FAILED, -signal.SIGKILL)
    assert one.failure == pb.FAILURE_CLASS_OUT_OF_MEMORY
    assert "lack of memory" in one.detail
    assert two.outcome == pb.LEASE_OUTCOME_FINISHED


def test_job_that_uses_more_memory_than_it_declared_is_killed_and_the_limit_is_named(peer: Peer, limited: Node) -> None:
    peer.order(order(1, f"{PYTHON} -c '{HOARD}'", memory_gib_per_gpu=0.03125))

    one = peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    assert one.failure == pb.FAILURE_CLASS_OUT_OF_MEMORY
    assert "lack of memory; its limit on this node is 0.03 GiB" in one.detail


def test_job_gets_no_more_time_of_cpus_than_it_declared(peer: Peer, limited: Node) -> None:
    spin = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass\nprint(time.process_time())"
    peer.order(order(1, f'{PYTHON} -c "{spin}"', cpus_per_gpu=0.25))
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    assert float(limited.log_text(1).split()[-1]) < 0.75


def test_job_cannot_have_more_processes_than_its_gpus_allow(peer: Peer, limited: Node, tmp_path: Path) -> None:
    (tmp_path / "fork.py").write_text(FORK)
    peer.order(order(1, f"{PYTHON} {tmp_path / 'fork.py'}"))
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    words = limited.log_text(1).split()
    assert words[1] == "refused"
    assert PROCESSES // 2 < int(words[2]) < PROCESSES


def test_groups_of_limits_are_removed_with_the_lease(peer: Peer, limited: Node) -> None:
    peer.order(order(1, "sleep 100"))
    peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
    launch = lease_files.read_launch(limited.lease(1))
    assert launch is not None
    groups = [Path(group) for group in (launch.cgroup, *launch.limit_groups)]
    process = str(limited.shim(1).job_processes[0])
    assert all(process in (group / "cgroup.procs").read_text().split() for group in groups)

    peer.wish(1, pb.LEASE_WISH_STOP)
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)

    until(lambda: not any(group.exists() for group in groups))


def test_node_shows_what_it_can_limit_and_cpus_are_divided_by_gpus(peer: Peer, limited: Node) -> None:
    peer.order(order(1, "sleep 100", gpus=(0, 1), one_process_a_node=True))
    peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
    launch = lease_files.read_launch(limited.lease(1))
    assert launch is not None

    assert peer.nodes[-1].containment.endswith("limits: memory, pids, cpu")
    weights = {"cpu.shares": "2048", "cpu.weight": "200"}
    (file,) = [Path(file) for file in launch.limits if Path(file).name in weights]
    assert file.read_text().strip() == weights[file.name]


def test_job_does_not_run_without_its_limits(tmp_path: Path) -> None:
    missing = str(tmp_path / "lease-00000007" / "memory.max")
    with started(tmp_path, "print('ran')", limits={missing: "1"}) as shim:
        end = shim.end()

    assert end.outcome is lease_files.LeaseOutcome.LOST
    assert "a limit of the job's control group cannot be set" in end.detail
    assert not shim.lines()


def test_limits_of_both_versions_for_each_gpu() -> None:
    limiters = {"memory": (CGROUP_2, "/a"), "pids": (CGROUP_1, "/b"), "cpu": (CGROUP_2, "/a")}
    found = Containment(CGROUP_2, "/a", limiters, JobLimits(memory_bytes=10, processes=0))

    assert found.limits_of(7, gpus=2) == {
        "/a/lease-00000007/memory.max": "20",
        "/a/lease-00000007/cpu.weight": "200",
    }
    assert found.limit_groups_of(7, gpus=2) == ()
    assert found.text == "cgroup v2, limits: memory, pids, cpu"


def test_group_of_a_unit_is_above_that_of_its_agent() -> None:
    mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    own = "0::/system.slice/gavel-node.service/gavel-agent\n"

    assert list(containment._places(mounts, own)) == [
        (CGROUP_2, Path("/sys/fs/cgroup/system.slice/gavel-node.service"))
    ]


@pytest.fixture
def scope() -> Iterator[Path]:
    """A group of version 2 like that of `systemd-run --scope -p Delegate=yes`."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    group = next((Path(point) / f"scope-{os.getpid()}" for _, point, kind, *_ in mounts if kind == "cgroup2"), None)
    try:
        if group is None:
            raise OSError("none is mounted")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this machine has no control groups of version 2 that can be written: {error}")
    yield group
    for below in (*group.glob("gavel-*/agent-*"), *group.glob("gavel-*"), group):
        below.rmdir()


@pytest.mark.parametrize("is_alone", [True, False])
def test_agent_that_is_alone_in_its_scope_moves_to_a_group_below(scope: Path, is_alone: bool) -> None:
    program = (
        "from gavelpy.runtime.agent.leases.containment import find_containment; found = find_containment('x'); "
        "print(open('/proc/self/cgroup').read(), found.kind, found.root)"
    )
    start = f"echo $$ > {scope}/cgroup.procs; {'exec ' if is_alone else ''}{PYTHON} -c {shlex.quote(program)}; :"

    done = subprocess.run(["/bin/sh", "-c", start], capture_output=True, text=True, timeout=60.0, check=True)

    groups, _, found = done.stdout.strip().rpartition("\n")
    own = next(line.split("::")[1] for line in groups.splitlines() if line.startswith("0::"))
    assert own.endswith(f"/{scope.name}/{AGENT_GROUP}" if is_alone else f"/{scope.name}")
    assert found.split() == ["cgroup", "v2", f"{scope}/gavel-x"]


def test_agent_that_starts_keeps_the_groups_of_a_living_one_and_removes_those_of_a_dead_one(scope: Path) -> None:
    find = "from gavelpy.runtime.agent.leases.containment import find_containment; print(find_containment({!r}).root)"
    living = f"{find.format('living')}; print(flush=True); input()"
    join = f'echo $$ > {scope}/cgroup.procs; exec "$@"'
    alone = ["/bin/sh", "-c", join, "sh", PYTHON, "-c"]

    subprocess.run([*alone, find.format("dead")], timeout=60.0, check=True)
    with subprocess.Popen([*alone, living], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline().strip() == f"{scope}/gavel-living"
        subprocess.run([*alone, find.format("next")], timeout=60.0, check=True)

        assert {group.name for group in scope.glob("gavel-*")} == {AGENT_GROUP, "gavel-living", "gavel-next"}
        agent.communicate("\n", timeout=60.0)


def test_limit_without_a_controller_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("")
    (tmp_path / "own").write_text("0::/\n")

    with pytest.raises(InvalidInput, match=r"processes_per_gpu = 5 cannot be applied.*no limits"):
        find_containment("x", str(tmp_path / "mounts"), str(tmp_path / "own"), JobLimits(processes=5))


def test_limit_without_control_groups_is_refused() -> None:
    with pytest.raises(InvalidInput, match="memory_bytes_per_gpu needs control_groups = true, got 5 with false"):
        node_config({"memory_bytes_per_gpu": 5, "control_groups": False}, None)
