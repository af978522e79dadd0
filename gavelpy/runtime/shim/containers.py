"""Run the ranks of a job in containers of podman or apptainer: command lines, signals, and what remains afterwards.

Both run without root, with the rights of the job's account: a container adds no rights, and reaches only files that its
account can. The container's processes stay below the shim and in the lease's control group (`--cgroups=disabled`), so
they are found and killed like those of any job. Each rank has a container of its own, with the network, `/dev/shm` and
the lease's GPUs of the node.

podman's client ends on a signal instead of passing it on, so signals are sent to the first process of each container:
an init that forwards them to the program. Apptainer's program is a child in the rank's group, and needs neither.

No variable is on a command line. podman's client has the job's variables in its own environment and passes them on by
name (`--env NAME`), except for those that would change the client: these are in a file that only the account can read.

Standard library only: the shim loads this.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.lease_files import LEASE_DIRECTORY_VARIABLE, Launch
from gavelpy.runtime.shim import processes

if TYPE_CHECKING:
    import subprocess

PODMAN: Final = "podman"
APPTAINER: Final = "apptainer"
ENVIRONMENT_FILE: Final = "container.env"  # in the job's directory
REMOVE_ATTEMPTS: Final = 3
SHARED_MEMORY: Final = "/dev/shm"
INITS: Final = tuple(Path(each) for each in ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit"))
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables that programs of the node would obey: podman's client must not have the job's.
_OF_CLIENT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|NOTIFY_SOCKET|LISTEN_.*|LD_.*|XDG_.*|DBUS_.*|GO[A-Z]+|GLIBC_.*|MALLOC_.*"
    r"|SSL_.*|_?CONTAINERS?_.*|STORAGE_.*|PODMAN_.*|REGISTRY_.*|DOCKER_.*|CONMON_.*|LIBPOD_.*|BUILDAH_.*|TZ|LC_.*|LANG"
    r"|[A-Za-z]*_(?:proxy|PROXY)"
)
_NO_IMAGE: Final = 1  # exit code of `podman image exists`; it has others if podman itself fails
_LOST_NAMESPACE: Final = b"podman system migrate"
# An image that is not there, or that its user may not have: the same on every node.
_NOT_THERE = re.compile(
    r"manifest unknown|not found|unauthorized|(?<!permission )denied|invalid reference|no such (?:image|host)|"
    r"short-name .* did not resolve|name unknown"
)


def command(
    launch: Launch, directory: Path, environment: Mapping[str, str], local_rank: int
) -> tuple[Sequence[str], str, Mapping[str, str]]:
    """The command of a rank, its working directory and its environment: as given, or those of a container's client.

    `directory`: of the job, with `ENVIRONMENT_FILE`.
    """
    software = launch.software
    if not software.get("image"):
        return launch.argv, launch.working_directory, environment
    if software["tool"] == PODMAN:
        argv = _podman(
            launch, directory, environment, container_name(directory, launch.lease, launch.first_rank + local_rank)
        )
    else:
        argv = _apptainer(launch, directory)
    return argv, "/", _client_environment(launch, environment)


def _podman(launch: Launch, directory: Path, environment: Mapping[str, str], name: str) -> list[str]:
    software = launch.software
    variables = sorted(each for each in environment if not _OF_CLIENT.fullmatch(each))
    devices = json.loads(software.get("devices", "[]"))
    return [
        *_podman_client(software),
        "run",
        "--rm",
        "--replace",  # what a node that lost power has left of this name
        f"--name={name}",
        "--pull=never",
        "--cgroups=disabled",
        # Ranks write to the shim's pipes: podman's client may end before it has copied the last lines.
        f"--log-driver={'none' if launch.terminal_away_s > 0 else 'passthrough'}",
        "--userns=keep-id",
        "--group-add=keep-groups",
        "--network=host",
        "--security-opt=no-new-privileges",
        "--cap-drop=all",
        # A terminal in the container, connected to the shim's; no keys of the user detach podman's client.
        *(["--interactive", "--tty", "--detach-keys="] if launch.terminal_away_s > 0 else []),
        *(["--init"] if any(init.exists() for init in INITS) else []),
        *(f"--device=nvidia.com/gpu={device}" for device in devices),
        *(f"--env={variable}" for variable in variables),
        *([f"--env-file={directory / ENVIRONMENT_FILE}"] if len(variables) < len(environment) else []),
        *(f"--mount={mount}" for mount in _mounts([SHARED_MEMORY, *_shared(launch, directory)])),
        f"--workdir={launch.working_directory}",
        "--entrypoint=",
        software["image"],
        *launch.argv,
    ]


def _podman_client(software: Mapping[str, str]) -> list[str]:
    """The program with options for each of its commands: quiet, and with the runtime that needs no control groups."""
    return [software["program"], "--log-level=error", "--cgroup-manager=cgroupfs", "--runtime=crun"]


def _apptainer(launch: Launch, directory: Path) -> list[str]:
    software = launch.software
    image = software["image"]
    return [
        software["program"],
        "--silent",
        "exec",
        "--cleanenv",
        *(["--nv"] if json.loads(software.get("devices", "[]")) else []),
        *(part for mount in _mounts(_shared(launch, directory)) for part in ("--mount", mount)),
        "--pwd",
        launch.working_directory,
        image if image.startswith("/") else f"docker://{image}",
        *launch.argv,
    ]


def container_name(directory: Path, lease: int, rank: int) -> str:
    """podman's name of a rank's container. Agents of two clusters may run jobs of one account on a node, so the name
    includes a hash of the directory of the job.
    """
    return f"gavel-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]}-{lease}-{rank}"


def _shared(launch: Launch, directory: Path) -> list[str]:
    """Directories of the node that the container sees at the same paths, each once and none within another."""
    wanted = [str(directory), launch.working_directory, *json.loads(launch.software.get("mounts", "[]"))]
    found = sorted(dict.fromkeys(os.path.normpath(each) for each in wanted))
    return [each for each in found if not any(each.startswith(f"{other}/") for other in found)]


def _mounts(directories: Iterable[str]) -> list[str]:
    """The values of `--mount`: fields of comma-separated values, quoted, so paths may have commas and quotes."""
    parts = [(f"source={each}", f"destination={each}") for each in directories]
    return [",".join(("type=bind", *(_quoted(part) for part in pair))) for pair in parts]


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if '"' in part or "," in part else part


def _client_environment(launch: Launch, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the tool's client, which is that of the account and the job's variables."""
    software = launch.software
    own = {"PATH": _PATH, "HOME": software.get("home", "/"), "LANG": "C.UTF-8"}
    runtime = f"/run/user/{launch.uid if launch.uid >= 0 else os.geteuid()}"
    if Path(runtime).is_dir():
        own["XDG_RUNTIME_DIR"] = runtime
    marker = {name: environment[name] for name in (LEASE_DIRECTORY_VARIABLE,) if name in environment}
    if software["tool"] == APPTAINER:
        return {**{f"APPTAINERENV_{name}": value for name, value in environment.items()}, **own, **marker}
    return {**{name: value for name, value in environment.items() if not _OF_CLIENT.fullmatch(name)}, **own}


def make_ready(launch: Launch, directory: Path, environment: Mapping[str, str]) -> None:
    """With the account's rights: writes the file of variables, and pulls the image if podman does not have it.

    Raises RemoteViolation if there is no such image for this account, and OSError if the node cannot provide it: podman
    does not work for the account, which may have no home directory to write to, or the image cannot be pulled.
    """
    try:
        _make_ready(launch, directory, environment)
    except (FileNotFoundError, PermissionError) as error:  # of the program, or of the job's directory on this node
        raise OSError(f"{error.filename} cannot be used: {error.strerror}") from error


def _make_ready(launch: Launch, directory: Path, environment: Mapping[str, str]) -> None:
    software, client = launch.software, _client_environment(launch, environment)
    if software["tool"] == APPTAINER:
        if software["image"].startswith("/") and not Path(software["image"]).exists():
            raise RemoteViolation(f"the image {software['image']} does not exist")
        return
    _write_environment(directory / ENVIRONMENT_FILE, environment)
    found = _call(software, client, "image", "exists", software["image"])
    if found.returncode == 0:
        return
    if found.returncode != _NO_IMAGE:
        raise OSError(f"podman does not work for the account of the job: {_why(found)}")
    pulled = _call(software, client, "pull", "--quiet", software["image"])
    if pulled.returncode != 0:
        why = _why(pulled)
        message = f"the image {software['image']} cannot be pulled: {why}"
        home = client["HOME"]
        if not os.access(home, os.W_OK | os.X_OK):
            raise OSError(f"{message}; the home directory {home} of the job's account cannot be written")
        raise RemoteViolation(message) if _NOT_THERE.search(why) else OSError(message)


def _why(called: subprocess.CompletedProcess[bytes]) -> str:
    """The last line of podman's messages."""
    lines = called.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    return lines[-1].removeprefix("Error: ")


def _write_environment(file: Path, environment: Mapping[str, str]) -> None:
    held = {name: value for name, value in environment.items() if _OF_CLIENT.fullmatch(name)}
    for name, value in held.items():
        if "\n" in value:
            raise RemoteViolation(f"the variable {name} must have no line break in a container, got one")
    with suppress(FileNotFoundError):
        file.unlink()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.writelines(f"{name}={value}\n" for name, value in held.items())


def _call(
    software: Mapping[str, str], environment: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command of podman.

    podman finds the namespace of an account by the processes of its containers. If all have been killed, also those of
    a shim that could not remove its record, every command fails until `system migrate`, which then stops nothing.
    """
    import subprocess  # few jobs have a container, and it loads much

    def call(*given: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*_podman_client(software), *given],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )

    called = call(*arguments)
    if called.returncode != 0 and _LOST_NAMESPACE in called.stderr:
        call("system", "migrate")
        called = call(*arguments)
    return called


def send(number: int, found: Iterable[int]) -> None:
    """Sends a signal to the first process of each container among these processes of a lease."""
    depth = len(_ids(os.getpid())) + 1
    for process in found:
        ids = _ids(process)
        if len(ids) == depth and ids[-1] == 1:
            processes.send(process, number)


def _ids(process: int) -> list[int]:
    """The ids of a process in its namespace and those above, the outermost first; empty if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def removal(launch: Launch, directory: Path) -> Callable[[], int]:
    """Removes the containers of a lease from podman's records, with the account's rights; returns an exit code.

    Call it when all their processes have ended. A container whose client ended well has removed itself.
    """
    last = launch.first_rank + launch.local_ranks
    names = [container_name(directory, launch.lease, rank) for rank in range(launch.first_rank, last)]
    arguments = ("rm", "--force", "--ignore", "--time=0", *names)
    environment = _client_environment(launch, {LEASE_DIRECTORY_VARIABLE: str(directory)})

    def remove() -> int:
        (directory / ENVIRONMENT_FILE).unlink(missing_ok=True)
        failed = b""
        for _ in range(REMOVE_ATTEMPTS):  # the first finds that the processes are gone
            called = _call(launch.software, environment, *arguments)
            if called.returncode == 0:
                return 0
            failed = called.stderr
        sys.stderr.write(failed.decode(errors="replace"))
        return 1

    return remove
