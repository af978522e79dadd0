"""A process that has left its session and environment ends with its lease, even if the shim was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.runtime import storage
from gavelpy.runtime.agent.leases import containment
from gavelpy.runtime.agent.leases.containment import Containment
from gavelpy.runtime.lease_files import ShimPhase, ShimState
from gavelpy.runtime.shim import cgroups, processes
from gavelpy.runtime.shim.processes import kill_lease, process_facts
from tests.runtime.shim.driver import started, wait_for

HIERARCHIES = ("cgroup2", "freezer", "pids")
STRANGER = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        told = f"echo $$ >&{write}; exec sleep 60"
        os.set_inheritable(write, True)
        os.execve("/bin/sh", ["sh", "-c", told], {})
    os._exit(0)
print(os.read(read, 100).decode().strip())
time.sleep(60)
"""


def writable(hierarchy: str, name: str, mounts: Path) -> Containment:
    """The groups of one hierarchy of this machine; skips the test if it cannot be written."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    kind = "cgroup2" if hierarchy == "cgroup2" else "cgroup"
    wanted = [line for line in lines if f" - {kind} " in line and (kind == "cgroup2" or f",{hierarchy}" in line)]
    mounts.write_text("\n".join(wanted))
    found = containment.find_containment(name, str(mounts))
    if not found.root:
        pytest.skip(f"{hierarchy} cannot be written here")
    return found


@pytest.fixture(params=HIERARCHIES)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Containment]:
    found = writable(request.param, f"test-{os.getpid()}", tmp_path / "mounts")
    yield found
    found.close()


def test_process_that_leaves_session_and_environment_ends_with_a_lease_whose_shim_was_killed(
    tmp_path: Path, groups: Containment
) -> None:
    group = groups.group_of(7)
    with started(tmp_path, STRANGER, cgroup=group) as shim:
        (line,) = wait_for(shim.lines)
        stranger, state = int(line), shim.state()
        assert {stranger, *state.job_processes} == set(cgroups.members(group))

        os.kill(state.process, signal.SIGKILL)
        shim.process.wait()
        is_left = process_facts(stranger) is not None
        wait_for(lambda: kill_lease(state, tmp_path, group))

    assert is_left
    assert process_facts(stranger) is None
    wait_for(lambda: not cgroups.members(group))
    cgroups.remove(group)
    assert not Path(group).exists()


def test_a_lease_that_ends_leaves_no_group(tmp_path: Path, groups: Containment) -> None:
    with started(tmp_path, "print('done')", cgroup=groups.group_of(7)) as shim:
        shim.end()

    assert not Path(groups.group_of(7)).exists()


def test_job_runs_without_a_group_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with started(tmp_path, "print('done')", cgroup=str(tmp_path / "file" / "lease-00000007")) as shim:
        end = shim.end()

    assert end.exit_code == 0
    assert "control group" in (tmp_path / "shim.log").read_text()


def test_groups_are_found_through_the_mounts_of_a_namespace() -> None:
    mounts = (
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "31 23 0:27 /docker/x /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "32 23 0:28 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
    )
    own = "2:freezer:/a\n1:pids:/docker/x/b\n0::/system.slice/gavel-node.service\n"

    assert list(containment._places(mounts, own)) == [
        ("cgroup v2", Path("/sys/fs/cgroup/system.slice/gavel-node.service")),
        ("cgroup v1", Path("/sys/fs/cgroup/freezer/a")),
        ("cgroup v1", Path("/sys/fs/cgroup/pids/b")),
    ]


def test_without_groups_orphans_are_adopted(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("32 23 0:28 / /nowhere rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "own").write_text("0::/\n")

    assert containment.find_containment("x", str(tmp_path / "mounts"), str(tmp_path / "own")) == Containment()
    assert Containment().kind == "subreaper"
    assert not cgroups.is_group_of(str(tmp_path), 7)


def test_children_of_the_agent_are_not_adopted_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_adopting", {os.getpid()})
    vanished = ShimState(processes.this_process().process + 1_000_000, 1, processes.boot_id(), ShimPhase.RUNNING)
    helper = [sys.executable, "-I", "-S", str(Path(storage.__file__).with_name("storage_worker.py"))]
    with (
        subprocess.Popen(helper, stdin=subprocess.PIPE, start_new_session=True) as own,
        subprocess.Popen(["sleep", "60"], start_new_session=True) as adopted,
    ):
        found = processes.lease_processes(vanished, tmp_path)
        adopted.kill()
        own.kill()

    assert adopted.pid in found
    assert own.pid not in found
