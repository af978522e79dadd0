"""The input of a starting lease: its assignment, its checkpoint, its environment, its node's GPUs."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.accounts import Account
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.environment import LeaseContext, NodeEnvironment, job_environment, launch_of
from gavelpy.runtime.agent.leases.orders import NodeAssignment, assignment_of
from gavelpy.runtime.agent.leases.rendezvous_port import LOCAL_RANGE, ReservedPort
from gavelpy.runtime.agent.leases.resume import (
    CheckpointMissing,
    CheckpointNotVisible,
    CheckpointsOfOthers,
    ForeignCheckpoints,
    Resume,
    find_resume,
    make_directory_of_job,
    prepare,
)
from gavelpy.runtime.checkpoint_directory import marker
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.peer import order

JOB = 5


def make_assignment(**fields: object) -> NodeAssignment:
    values = {"argv": ("true",), "working_directory": "/", "gpus": (0,), "gpu_type": "v100", **fields}
    return NodeAssignment(**values)  # type: ignore[arg-type]  # fields of any type


def make_checkpoint(root: Path, lease: int, steps: int) -> Path:
    directory = lease_files.lease_checkpoints(root, JOB, lease) / lease_files.step_name(steps)
    directory.mkdir(parents=True)
    return directory


def make_environment(assignment: NodeAssignment, resume: Path | None = None, **node: object) -> dict[str, str]:
    values = {
        "node_id": "n0",
        "gpus": Gpus("v100", ("0", "1", "GPU-2", "GPU-3")),
        "node_environment": {"PATH": "/node/bin", "HOME": "/h", "SECRET": "x"},
        "checkpoint_root": Path("/ck"),
        "job_service": "127.0.0.1:9",
        **node,
    }
    lease = LeaseContext(8, JOB, Path("/state/leases/00000008"), "token", resume, 40.0)
    return job_environment(assignment, lease, NodeEnvironment(**values))  # type: ignore[arg-type]  # fields of any type


def test_newest_checkpoint_is_used_although_it_was_never_reported(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 3, 100)
    newest = make_checkpoint(tmp_path, 3, 150)

    resume = find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=3, resume_steps=100, steps_done=100))

    assert resume == Resume(newest, 150.0)
    assert lease_files.lease_checkpoints(tmp_path, JOB, 8).is_dir()


def test_unreported_checkpoint_of_a_later_lease_is_used(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 3, 100)
    unheard = make_checkpoint(tmp_path, 6, 120)

    assert find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=3, resume_steps=100)) == Resume(unheard, 120.0)
    assert find_resume(tmp_path, JOB, 9, make_assignment()) == Resume(unheard, 120.0)


def test_checkpoint_of_a_lease_before_the_one_on_record_is_not_taken(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 2, 900)
    named = make_checkpoint(tmp_path, 3, 100)

    assert find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=3, resume_steps=100)) == Resume(named, 100.0)


def test_what_a_lease_given_up_for_lost_still_writes_is_not_preferred(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 4, 900)
    later = make_checkpoint(tmp_path, 6, 150)

    assert find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=3, resume_steps=100)) == Resume(later, 150.0)


def test_later_lease_without_a_checkpoint_hides_none(tmp_path: Path) -> None:
    named = make_checkpoint(tmp_path, 3, 100)
    lease_files.lease_checkpoints(tmp_path, JOB, 7).mkdir()

    assert find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=3, resume_steps=100)) == Resume(named, 100.0)


@pytest.mark.parametrize(("name", "why"), [("gone", "does not exist"), ("file", "is not a directory")])
def test_working_directory_that_is_none_is_named_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / name)

    found = prepare(str(tmp_path), True, "", directory, 7, 9, [0, -1, 0, False], [])

    assert found == {"failed": f"the working directory {directory!r} {why}"}


def test_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 3, 50)

    with pytest.raises(CheckpointMissing, match=r"with 100 steps or more .* newest has 50"):
        find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=3, resume_steps=100))


def test_job_with_its_own_checkpoints_keeps_its_step_count(tmp_path: Path) -> None:
    assert find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=-1, steps_done=70)) == Resume(None, 70)


def test_job_without_its_checkpoint_directory_does_not_start_from_scratch(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match=r"with 70 steps or more in .*/5/lease-00000003, where there is none"):
        find_resume(tmp_path, JOB, 8, make_assignment(resume_lease=3, resume_steps=70, steps_done=70))


def test_gang_without_its_checkpoint_directory_does_not_start_from_scratch(tmp_path: Path) -> None:
    part = make_assignment(node_count=2, world_size=2, resume_lease=3, resume_steps=70, steps_done=70)

    with pytest.raises(CheckpointMissing):
        find_resume(tmp_path, JOB, 8, part)

    with pytest.raises(CheckpointMissing):
        find_resume(tmp_path, JOB, 8, replace(part, node_rank=1))


def test_new_lease_does_not_take_over_checkpoints_that_it_did_not_write(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 8, 500)

    with pytest.raises(ForeignCheckpoints, match=r"lease-00000008 contains a checkpoint of 500 steps"):
        find_resume(tmp_path, JOB, 8, make_assignment())


def test_gang_agrees_on_one_checkpoint_in_any_order(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 3, 100)
    part = make_assignment(node_count=8, world_size=8, resume_lease=3, resume_steps=100)

    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(find_resume, tmp_path, JOB, 8, part).result()
        make_checkpoint(tmp_path, 3, 200)
        others = [threads.submit(find_resume, tmp_path, JOB, 8, replace(part, node_rank=rank)) for rank in range(1, 8)]

    assert {other.result() for other in others} == {first}


def test_choice_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    own = lease_files.lease_checkpoints(tmp_path, JOB, 8)
    own.mkdir(parents=True)
    (own / "RESUME").write_text("../../../etc/step-000000000001")

    with pytest.raises(CheckpointNotVisible):
        find_resume(tmp_path, JOB, 8, make_assignment(node_count=2, world_size=2))


def test_marker_of_the_cluster_is_seen(tmp_path: Path) -> None:
    assert marker(tmp_path) == ""

    (tmp_path / ".gavel-cluster").write_text("c0ffee\n")

    assert marker(tmp_path) == "c0ffee"


def test_job_gets_little_of_the_nodes_environment() -> None:
    found = make_environment(make_assignment())

    assert (found["PATH"], found["HOME"]) == ("/node/bin", "/h")
    assert "SECRET" not in found


def test_job_can_set_all_variables_except_those_of_gavel() -> None:
    own = {"PATH": "/mine", "GAVEL_LEASE": "1", "GAVEL_NEW": "1", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "3"}

    found = make_environment(make_assignment(environment=own, gpus=(2, 3), world_size=2))

    assert (found["PATH"], found["OMP_NUM_THREADS"]) == ("/mine", "3")
    assert (found["GAVEL_LEASE"], found["CUDA_VISIBLE_DEVICES"]) == ("8", "GPU-2,GPU-3")
    assert "GAVEL_NEW" not in found


def test_job_learns_where_to_resume_and_where_to_save() -> None:
    found = make_environment(make_assignment(steps_total=500), Path("/ck/5/lease-00000003/step-000000000040"))

    assert found["GAVEL_RESUME_DIR"] == "/ck/5/lease-00000003/step-000000000040"
    assert found["GAVEL_CHECKPOINT_DIR"] == "/ck/5/lease-00000008"
    assert (found["GAVEL_STEPS_DONE"], found["GAVEL_STEPS_TOTAL"]) == ("40", "500")
    assert "GAVEL_RESUME_DIR" not in make_environment(make_assignment())


def test_job_of_several_sizes_learns_them() -> None:
    assert make_environment(make_assignment(sizes=(4, 1, 2)))["GAVEL_GPU_SIZES"] == "1,2,4"
    assert "GAVEL_GPU_SIZES" not in make_environment(make_assignment())


def test_job_receives_the_plan_for_its_number_of_gpus() -> None:
    assert make_environment(make_assignment(plan="tp2,dp2"))["GAVEL_PLAN"] == "tp2,dp2"
    assert "GAVEL_PLAN" not in make_environment(make_assignment())


def test_one_process_a_node_has_all_gpus() -> None:
    assignment = make_assignment(gpus=(0, 1), one_process_a_node=True, node_rank=1, node_count=2, world_size=2)
    lease = LeaseContext(8, JOB, Path("/state"), "token", None, 0.0)
    node = NodeEnvironment("n0", Gpus("v100", ("0", "1")), {}, Path("/ck"), "127.0.0.1:9")

    launch = launch_of(replace(assignment, first_rank=1), lease, node)

    assert [ranks["RANK"] for ranks in launch.rank_environments] == ["1"]
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert launch.environment["LOCAL_WORLD_SIZE"] == "1"


def test_torchrun_of_a_node_gets_its_options_from_the_environment() -> None:
    gang = make_assignment(
        gpus=(0, 1), one_process_a_node=True, node_rank=1, node_count=2, world_size=2,
        rendezvous_address="10.0.0.7", rendezvous_port=4567,
    )  # fmt: skip

    options = {name: value for name, value in make_environment(gang).items() if name.startswith("PET_")}

    assert options == {
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "10.0.0.7", "PET_MASTER_PORT": "4567",
    }  # fmt: skip


def test_ranks_that_the_shim_starts_get_no_options_of_torchrun() -> None:
    found = make_environment(make_assignment(gpus=(0, 1), world_size=2))

    assert [name for name in found if name.startswith("PET_")] == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("command", "", "command must name a program"),
        ("command", "a 'b", "command must be quoted as for a shell"),
        ("gpus", (1, 1), "gpus must name one or more GPUs, each once"),
        ("grace_s", -1.0, r"grace_s must be in \[0, 1e15\], got -1.0"),
        ("steps_total", float("inf"), "steps_total must be in"),
        ("node_rank", 1, "node_rank must be below node_count, got 1 of 1"),
        ("world_size", 0, "world_size must be in"),
        ("first_rank", 1, "first_rank . processes on this node must be at most world_size = 1"),
        ("rendezvous_port", 70_000, "rendezvous_port must be below 65536"),
        ("sizes", (1, 0), r"sizes must be numbers in \[1, .*got \[1, 0\]"),
        ("warning_signal", 65, "warning_signal must be in"),
        ("resume_lease", -2, "resume_lease must be a lease or -1"),
        ("environment", {"A=B": "1"}, "a name must be letters, digits and '_'"),
        ("working_directory", "/\0", "working_directory must have at most"),
    ],
)
def test_launch_that_makes_no_sense_is_refused(field: str, value: object, message: str) -> None:
    launch = order(1, **{"command": "true", field: value}).launch  # type: ignore[arg-type]  # fields of any type

    with pytest.raises(RemoteViolation, match=message):
        assignment_of(launch)


def test_launch_keeps_its_fields() -> None:
    launch = order(1, "python -c 'print(1, 2)'", gpus=(2, 3), environment={"A": "1"}, steps_max=9, sizes=(4, 2)).launch

    made = assignment_of(launch)

    assert made.argv == ("python", "-c", "print(1, 2)")
    assert made.sizes == (4, 2)
    assert (made.gpus, made.environment, made.steps_max, made.local_ranks) == ((2, 3), {"A": "1"}, 9.0, 2)
    assert pb.Launch.FromString(launch.SerializeToString()) == launch


def test_port_of_a_job_is_kept_from_other_agents_until_its_lease_ends() -> None:
    first = ReservedPort()
    while_bound = ReservedPort(first.number)
    first.release()
    while_released = ReservedPort(first.number)
    with socket.create_server(("", first.number)):  # rank 0
        first.close()
        while_used = ReservedPort(first.number)
    after = ReservedPort(first.number)
    reserved = [while_bound, while_released, while_used, after]
    for port in reserved:
        port.close()

    assert [port.number == first.number for port in reserved] == [False, False, False, True]


def test_kernel_gives_the_port_of_a_job_to_no_other_program() -> None:
    port = ReservedPort()
    low, high = map(int, Path(LOCAL_RANGE).read_text().split())

    port.close()

    assert not low <= port.number <= high


def test_port_is_the_kernels_where_it_may_choose_all(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")

    port = ReservedPort(local_range=str(tmp_path / "range"))

    assert port.number >= 1024
    port.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes directories for others")
class TestDirectoryOfJob:
    """`make_directory_of_job`."""

    owner = Account(name="ann", uid=65_533, gid=65_533, groups=(), home="/", shell="/bin/sh")

    def made(self, root: Path) -> tuple[int, int]:
        make_directory_of_job(root, 3, self.owner)
        found = lease_files.job_checkpoints(root, 3).stat()
        return found.st_uid, stat.S_IMODE(found.st_mode)

    @pytest.mark.parametrize("mode", [0o755, 0o1777])
    def test_it_is_the_owners(self, tmp_path: Path, mode: int) -> None:
        tmp_path.chmod(mode)

        assert [self.made(tmp_path), self.made(tmp_path)] == [(self.owner.uid, 0o700)] * 2

    def test_process_that_died_before_it_gave_the_directory_away_does_no_harm(self, tmp_path: Path) -> None:
        lease_files.job_checkpoints(tmp_path, 3).mkdir(mode=0o700)

        assert self.made(tmp_path) == (self.owner.uid, 0o700)

    def test_owner_makes_it_where_root_cannot_give_it_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object, **_options: object) -> None:
            raise PermissionError

        with TemporaryDirectory() as root:  # tmp_path is below a directory that others cannot pass
            Path(root).chmod(0o1777)
            monkeypatch.setattr(os, "chown", refused)

            assert self.made(Path(root)) == (self.owner.uid, 0o700)

    @pytest.mark.parametrize("others", ["full directory of root", "directory of another", "file", "link"])
    def test_what_is_not_the_owners_is_refused(self, tmp_path: Path, others: str) -> None:
        directory = lease_files.job_checkpoints(tmp_path, 3)
        if others == "file":
            directory.write_text("")
        elif others == "link":
            directory.symlink_to("/")
        else:
            (directory / "lease").mkdir(parents=True)
            os.chown(directory, 0 if "root" in others else 65_532, 0)

        with pytest.raises(CheckpointsOfOthers, match="must be a directory of 'ann'"):
            make_directory_of_job(tmp_path, 3, self.owner)
