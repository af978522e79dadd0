"""CPU cores and memory that a node offers: detected, limited by control groups, configured, and reserved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.leases.containment import CGROUP_1, CGROUP_2, Containment, JobLimits, JobNeeds
from gavelpy.runtime.agent.machine import machine_of
from tests.runtime.agent.test_starting import make_assignment, make_environment

GIB = 1 << 30


def config(**values: Any) -> NodeConfig:
    return NodeConfig(state_directory="/nowhere", **values)


def system(root: Path, own: str, mounts: str, **files: str) -> Path:
    """A system of 64 GiB with these groups; files are contents by path, with __ for / and _dot_ for dots."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(own)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in files.items():
        file = root / "groups" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def version_2(root: Path) -> tuple[str, str]:
    return "0::/unit/gavel-agent\n", f"30 23 0:26 / {root}/groups rw - cgroup2 cgroup2 rw\n"


def test_a_node_offers_what_the_machine_has(tmp_path: Path) -> None:
    found = machine_of(config(), system(tmp_path, "", ""))

    assert (found.cpus, found.memory_gib) == (len(os.sched_getaffinity(0)), 64.0)


def test_the_smallest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    groups = {"unit__cpu_dot_max": "50000 100000", "unit__gavel-agent__cpu_dot_max": "max 100000",
              "unit__memory_dot_max": str(16 * GIB), "memory_dot_max": "max"}  # fmt: skip
    found = machine_of(config(), system(tmp_path, *version_2(tmp_path), **groups))

    assert (found.cpus, found.memory_gib) == (0.5, 16.0)


def test_limits_of_the_first_version_count(tmp_path: Path) -> None:
    own = "4:memory:/unit\n3:cpu,cpuacct:/unit\n"
    mounts = f"1 2 0:1 / {tmp_path}/groups/m rw - cgroup cgroup rw,memory\n"
    mounts += f"1 2 0:1 / {tmp_path}/groups/c rw - cgroup cgroup rw,cpu,cpuacct\n"
    groups = {"m__unit__memory_dot_limit_in_bytes": str(8 * GIB), "c__unit__cpu_dot_cfs_quota_us": "25000",
              "c__unit__cpu_dot_cfs_period_us": "100000", "c__cpu_dot_cfs_quota_us": "-1"}  # fmt: skip
    found = machine_of(config(), system(tmp_path, own, mounts, **groups))

    assert (found.cpus, found.memory_gib) == (0.25, 8.0)


def test_what_is_configured_and_not_reserved_is_offered(tmp_path: Path) -> None:
    given = config(cpus=32, memory_gib=128, cpus_reserved=2, memory_gib_reserved=8.5)

    found = machine_of(given, system(tmp_path, "", ""))

    assert found.text == "30 CPU cores, 119.5 GiB of memory"


def test_reserving_everything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"memory_gib_reserved must be less than what the node has \(64, detected\)"):
        machine_of(config(memory_gib_reserved=64), system(tmp_path, "", ""))


def test_a_lease_is_limited_to_what_its_job_declares() -> None:
    limiters = {"memory": (CGROUP_2, "/a"), "cpu": (CGROUP_2, "/a")}
    found = Containment(CGROUP_2, "/a", limiters, JobLimits(memory_bytes=3 * GIB))

    assert found.limits_of(7, 2, JobNeeds(cpus=1.5, memory_gib=2)) == {
        "/a/lease-00000007/memory.max": str(4 * GIB),
        "/a/lease-00000007/cpu.max": "300000 100000",
        "/a/lease-00000007/cpu.weight": "200",
    }
    assert found.limits_of(7, 2, JobNeeds(memory_gib=5))["/a/lease-00000007/memory.max"] == str(6 * GIB)


def test_limits_of_the_first_version_are_in_its_own_groups() -> None:
    found = Containment(CGROUP_1, "/p", {"cpu": (CGROUP_1, "/c"), "memory": (CGROUP_1, "/m")})

    limits = found.limits_of(7, 1, JobNeeds(cpus=2, memory_gib=1))

    assert limits["/c/lease-00000007/cpu.cfs_quota_us"] == "200000"
    assert limits["/m/lease-00000007/memory.limit_in_bytes"] == str(GIB)
    assert found.limit_groups_of(7, 1, JobNeeds(cpus=2, memory_gib=1)) == ("/c/lease-00000007", "/m/lease-00000007")


def test_ranks_divide_the_cores_of_a_job_and_its_own_choice_of_threads_comes_first() -> None:
    each = make_environment(make_assignment(gpus=(0, 1), cpus_per_gpu=2.5))
    whole = make_environment(make_assignment(gpus=(0, 1), cpus_per_gpu=2.5, one_process_a_node=True))
    chosen = make_environment(make_assignment(gpus=(0,), cpus_per_gpu=4.0, environment={"OMP_NUM_THREADS": "1"}))

    assert (each["GAVEL_CPUS"], each["OMP_NUM_THREADS"]) == ("2.5", "2")
    assert (whole["GAVEL_CPUS"], whole["OMP_NUM_THREADS"]) == ("5", "5")
    assert (chosen["GAVEL_CPUS"], chosen["OMP_NUM_THREADS"]) == ("4", "1")
    assert "OMP_NUM_THREADS" not in make_environment(make_assignment(gpus=(0,)))
