"""Ranks in containers: the command lines of podman and apptainer, and real containers where rootless podman runs.

Apptainer is not in Debian: its command line is recorded by a program of this name.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.lease_files import LEASE_DIRECTORY_VARIABLE, Launch, LeaseOutcome
from gavelpy.runtime.shim import containers, processes
from tests.runtime.shim.container_place import IMAGE, Place, left_of
from tests.runtime.shim.driver import processes_left, started, wait_for

SECRET = "value-that-is-not-in-argv"


def launch_with(tool: str, **more: object) -> Launch:
    software = {
        "image": IMAGE,
        "tool": tool,
        "program": f"/usr/bin/{tool}",
        "devices": "[]",
        "mounts": '["/ck/3"]',
        "home": "/srv/home/a",
        **more.pop("software", {}),  # type: ignore[dict-item]  # a mapping of texts
    }
    values: dict[str, object] = {
        "lease": 7, "job": 3, "argv": ("python", "train.py"), "working_directory": "/srv/x,y", "environment": {},
        "rank_environments": ({},), "software": software, **more,
    }  # fmt: skip
    return Launch(**values)  # type: ignore[arg-type]  # the fields of Launch


ENVIRONMENT = {"KEY": SECRET, "PATH": "/opt/bin", "LD_PRELOAD": "/evil.so", LEASE_DIRECTORY_VARIABLE: "/jobs/7"}


def test_leases_of_two_clusters_with_one_number_have_two_names() -> None:
    ours, others = (containers.container_name(Path(directory), 7, 0) for directory in ("/a/jobs/7", "/b/jobs/7"))

    assert ours != others


def test_command_of_podman_names_variables_and_mounts_without_their_values() -> None:
    launch = launch_with("podman", software={"devices": '["0", "3"]'}, first_rank=2)

    argv, directory, environment = containers.command(launch, Path("/jobs/7"), ENVIRONMENT, 1)

    assert directory == "/"
    assert argv[:2] == ["/usr/bin/podman", "--log-level=error"]
    assert {
        f"--name={containers.container_name(Path('/jobs/7'), 7, 3)}",
        "--rm",
        "--replace",
        "--cgroups=disabled",
        "--env=KEY",
        "--userns=keep-id",
    } <= set(argv)
    assert {"--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=3", "--security-opt=no-new-privileges"} <= set(argv)
    assert '--mount=type=bind,"source=/srv/x,y","destination=/srv/x,y"' in argv
    assert "--mount=type=bind,source=/ck/3,destination=/ck/3" in argv
    assert "--env-file=/jobs/7/container.env" in argv
    assert list(argv[-3:]) == [IMAGE, "python", "train.py"]
    assert SECRET not in " ".join(argv)
    assert environment["KEY"] == SECRET
    assert environment["PATH"] != "/opt/bin"
    assert "LD_PRELOAD" not in environment
    assert environment[LEASE_DIRECTORY_VARIABLE] == "/jobs/7"


def test_only_an_interactive_job_has_a_terminal_in_its_container() -> None:
    with_one, without = (
        containers.command(launch_with("podman", terminal_away_s=away_s), Path("/jobs/7"), {}, 0)[0]
        for away_s in (60.0, 0.0)
    )

    assert set(with_one) - set(without) == {"--interactive", "--tty", "--detach-keys=", "--log-driver=none"}
    assert set(without) - set(with_one) == {"--log-driver=passthrough"}  # ranks write to the log without a copy


def test_directory_within_another_is_mounted_once() -> None:
    launch = launch_with("podman", working_directory="/jobs/7/code", software={"mounts": '["/jobs"]'})

    argv, _, _ = containers.command(launch, Path("/jobs/7"), {}, 0)

    mounts = [part for part in argv if part.startswith("--mount=")]
    assert mounts == [f"--mount=type=bind,source={each},destination={each}" for each in ("/dev/shm", "/jobs")]


@pytest.mark.parametrize(
    ("image", "named"), [("docker.io/a/b:1", "docker://docker.io/a/b:1"), ("/x/y.sif", "/x/y.sif")]
)
def test_command_of_apptainer_passes_variables_in_its_environment(image: str, named: str) -> None:
    launch = launch_with("apptainer", software={"image": image, "devices": '["0"]'})

    argv, _, environment = containers.command(launch, Path("/jobs/7"), ENVIRONMENT, 0)

    assert list(argv) == [
        "/usr/bin/apptainer", "--silent", "exec", "--cleanenv", "--nv",
        "--mount", "type=bind,source=/ck/3,destination=/ck/3",
        "--mount", "type=bind,source=/jobs/7,destination=/jobs/7",
        "--mount", 'type=bind,"source=/srv/x,y","destination=/srv/x,y"',
        "--pwd", "/srv/x,y", named, "python", "train.py",
    ]  # fmt: skip
    assert environment["APPTAINERENV_KEY"] == SECRET
    assert environment["APPTAINERENV_LD_PRELOAD"] == "/evil.so"
    assert "LD_PRELOAD" not in environment


def podman_that(directory: Path, exists: str, pull: str) -> Launch:
    """A launch with a podman that runs these commands of a shell for `image exists` and for `pull`."""
    program = directory / "podman"
    program.write_text(f'#!/bin/sh\ncase "$*" in *" image exists "*) {exists};; *) {pull};; esac\n')
    program.chmod(0o755)
    (directory / "home").mkdir()
    return launch_with("podman", software={"program": str(program), "home": str(directory / "home")})


@pytest.mark.parametrize(
    ("exists", "pull", "error", "message"),
    [
        (
            "exit 1",
            "echo 'Error: reading manifest: denied' >&2; exit 125",
            RemoteViolation,
            "reading manifest: denied$",
        ),
        ("exit 1", "echo 'Error: mkdir /x: permission denied' >&2; exit 125", OSError, "mkdir /x: permission denied$"),
        (
            "echo 'Error: mkdir /h: permission denied' >&2; exit 125",
            "exit 0",
            OSError,
            "podman does not work for the acc",
        ),
        (
            "exit 1",
            "rmdir $HOME; echo denied >&2; exit 1",
            OSError,
            "denied; the home directory .*/home of the job's acc",
        ),
    ],
)
def test_only_an_image_that_is_not_there_is_an_error_of_the_job(
    tmp_path: Path, exists: str, pull: str, error: type[Exception], message: str
) -> None:
    launch = podman_that(tmp_path, exists, pull)

    with pytest.raises(error, match=message) as raised:
        containers.make_ready(launch, tmp_path, ENVIRONMENT)

    assert type(raised.value) is error


def test_podman_that_is_gone_is_an_error_of_the_node(tmp_path: Path) -> None:
    launch = podman_that(tmp_path, "exit 0", "exit 0")
    (tmp_path / "podman").unlink()

    with pytest.raises(OSError, match="/podman cannot be used: No such file or directory") as raised:
        containers.make_ready(launch, tmp_path, ENVIRONMENT)

    assert type(raised.value) is OSError


def test_job_without_an_image_runs_as_it_is() -> None:
    launch = launch_with("podman", software={"image": ""})

    assert containers.command(launch, Path("/jobs/7"), ENVIRONMENT, 0) == (launch.argv, "/srv/x,y", ENVIRONMENT)


RECORDS = """#!{python}
import json, os, sys
with open({record!r}, "a") as record:
    record.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
print("in the container")
"""


def test_apptainer_is_started_by_the_shim_with_this_command_line(tmp_path: Path) -> None:
    program, record = tmp_path / "apptainer", tmp_path / "record"
    program.write_text(RECORDS.format(python=sys.executable, record=str(record)))
    program.chmod(0o755)
    image = tmp_path / "image.sif"
    image.touch()
    software = {**launch_with("apptainer").software, "program": str(program), "image": str(image)}

    with started(tmp_path / "lease", "", software=software, environment={"KEY": SECRET}) as shim:
        end = shim.end()

    argv, environment = json.loads(record.read_text())
    assert end.outcome is LeaseOutcome.FINISHED
    assert shim.lines() == ["in the container"]
    assert argv[argv.index("--pwd") :][1:3] == [str(shim.directory), str(image)]
    assert environment["APPTAINERENV_KEY"] == SECRET
    assert environment["APPTAINERENV_RANK"] == "0"
    assert SECRET not in " ".join(argv)


def test_image_file_that_does_not_exist_fails_the_job(tmp_path: Path) -> None:
    software = {**launch_with("apptainer").software, "image": "/nowhere/image.sif"}

    with started(tmp_path, "", software=software, environment={"GAVEL_NODE_ID": "n1"}) as shim:
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.FAILED, 127)
    assert end.detail == "the image /nowhere/image.sif does not exist on node n1"


def test_container_runs_as_the_owner_with_its_directories_and_variables(place: Place, tmp_path: Path) -> None:
    script = (
        'id -u; id -g; echo "$KEY"; echo $PATH; touch $PWD/made; touch $GAVEL_LEASE_DIR/seen; grep NoNewPrivs '
        "/proc/self/status | tr '\\t' ' '; ls /srv 2>&1; exit 3"
    )
    environment = {"KEY": "two\nlines", "PATH": "/bin:/image/bin"}

    with started(tmp_path, "", **place.launch("/bin/sh", "-c", script), environment=environment) as shim:
        end = shim.end()

    account = place.account
    lines = shim.lines()
    assert lines[:4] == [str(account.pw_uid), str(account.pw_gid), "two", "lines"]
    assert lines[4:6] == ["/bin:/image/bin", "NoNewPrivs: 1"]
    assert lines[6] == "ls: /srv: No such file or directory"
    assert (end.outcome, end.exit_code) == (LeaseOutcome.FAILED, 3)
    assert (place.home / "work/made").stat().st_uid == account.pw_uid
    assert (place.home / "job/seen").stat().st_uid == account.pw_uid
    assert left_of(place) == []
    assert not (place.home / "job" / containers.ENVIRONMENT_FILE).exists()


def test_stop_reaches_the_program_in_the_container_once(place: Place, tmp_path: Path) -> None:
    script = "trap 'echo stopped; sleep 0.3; exit 0' TERM; echo ready; while :; do sleep 0.05; done"

    with started(tmp_path, "", **place.launch("/bin/sh", "-c", script), grace_s=60.0) as shim:
        shim.prints("ready")
        shim.order(stop=True)
        end = shim.end()

    assert shim.lines() == ["ready", "stopped"]
    assert (end.outcome, end.exit_code) == (LeaseOutcome.STOPPED, 0)


def test_warning_reaches_the_program_in_the_container(place: Place, tmp_path: Path) -> None:
    script = "trap 'echo warned; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    more = {"warning_s": 3600.0, "warning_signal": int(signal.SIGUSR1)}

    with started(tmp_path, "", lease_s=7200.0, **place.launch("/bin/sh", "-c", script, **more)) as shim:
        shim.prints("ready")
        shim.order(until_clock_s=shim.lease.until_clock_s - 7000.0)
        end = shim.end()

    assert shim.lines() == ["ready", "warned"]
    assert end.outcome is LeaseOutcome.STOPPED


def test_kill_ends_all_processes_of_the_container_and_its_record(place: Place, tmp_path: Path) -> None:
    script = "trap '' TERM; setsid sleep 1000 & echo ready; sleep 1000"

    with started(tmp_path, "", **place.launch("/bin/sh", "-c", script)) as shim:
        shim.prints("ready")
        seen = processes_left(shim)
        shim.order(kill=True)
        end = shim.end()

    assert len(seen) >= 5  # podman twice, conmon, and the container's
    assert end.outcome is LeaseOutcome.STOPPED
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in seen))
    assert left_of(place) == []


def test_account_can_run_containers_after_all_its_processes_were_killed(place: Place, tmp_path: Path) -> None:
    script = "echo ready; sleep 1000"
    with started(tmp_path / "killed", "", **place.launch("/bin/sh", "-c", script, first_rank=5)) as shim:
        wait_for(lambda: "ready" in shim.lines(5))
        seen = processes_left(shim)
        shim.process.kill()
        for process in seen:
            processes.send(process, signal.SIGKILL)
    wait_for(lambda: not any(processes.process_facts(process) for process in seen))
    recorded = left_of(place)

    with started(tmp_path / "next", "", **place.launch("/bin/sh", "-c", "echo runs")) as shim:
        end = shim.end()

    assert recorded == [containers.container_name(place.home / "job", 7, 5)]
    assert end.outcome is LeaseOutcome.FINISHED, end
    assert shim.lines() == ["runs"]


def test_each_rank_has_a_container(place: Place, tmp_path: Path) -> None:
    with started(tmp_path, "", ranks=2, **place.launch("/bin/sh", "-c", "echo rank $RANK")) as shim:
        end = shim.end()

    assert end.outcome is LeaseOutcome.FINISHED
    assert [shim.lines(0), shim.lines(1)] == [["rank 0"], ["rank 1"]]


@pytest.mark.parametrize("command", [("nothing-like-this",), ("/etc",)])
def test_command_that_the_image_does_not_have_is_a_user_error(
    place: Place, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with started(tmp_path, "", **place.launch(*command)) as shim:
        end = shim.end()

    assert (end.outcome, end.failure) == (LeaseOutcome.FAILED, "user"), end


def test_image_that_cannot_be_pulled_is_reported_with_podmans_reason(place: Place, tmp_path: Path) -> None:
    fields = place.launch("/bin/true")
    fields["software"] = {**fields["software"], "image": "localhost:9/nothing:1"}  # type: ignore[dict-item]  # texts

    with started(tmp_path, "", **fields, environment={"GAVEL_NODE_ID": "n1"}) as shim:
        end = shim.end()

    assert end.outcome is LeaseOutcome.LOST
    assert "the image localhost:9/nothing:1 cannot be pulled" in end.detail
    assert "connection refused" in end.detail


@pytest.mark.parametrize("home", ["/nonexistent", "/proc"])
def test_account_without_a_home_directory_to_write_to_is_the_failure_of_the_node(
    place: Place, tmp_path: Path, home: str
) -> None:
    fields = place.launch("/bin/true")
    fields["software"] = {**fields["software"], "home": home}  # type: ignore[dict-item]  # texts

    with started(tmp_path, "", **fields, environment={"GAVEL_NODE_ID": "n1"}) as shim:
        end = shim.end()

    assert end.outcome is LeaseOutcome.LOST, end
    assert "the job's software cannot be prepared on node n1: " in end.detail
    assert home in end.detail
