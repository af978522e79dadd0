"""Configuration of a node: from flags, the environment or a TOML file, in this order of precedence."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.model.places import PLACE_NAMES, check_place_name
from gavelpy.model.toml_text import allowed_by, parsed_toml
from gavelpy.runtime.addresses import are_loopback
from gavelpy.runtime.agent.gpus import NVIDIA, VARIABLES, parse_gpus
from gavelpy.runtime.agent.leases.containment import JobLimits
from gavelpy.runtime.agent.leases.images import check_rules
from gavelpy.runtime.security.tokens import NAME, NAME_ALLOWED, NODE_ID
from gavelpy.runtime.shim.isolation import REPLACED, are_processes_hidden
from gavelpy.runtime.user_paths import user_path
from gavelpy.traces.fields import shown

SYSTEM_CONFIG: Final = Path("/etc/gavel/node.toml")
SECTION: Final = "node"
_RANGES: Final = {
    "speed_factor": (0.01, 1),
    "peer_port": (0, 65_535),
    "log_bytes_max": (64 << 10, 1 << 40),
    "silent_start_s": (0, 86_400),
    "free_bytes_min": (0, 1 << 50),
    "log_files_max": (0, 1000),
    "memory_bytes_per_gpu": (0, 1 << 50),
    "processes_per_gpu": (0, 1 << 22),
    "cpus": (0, 1_000_000),
    "memory_gib": (0, 1_000_000),
    "cpus_reserved": (0, 1_000_000),
    "memory_gib_reserved": (0, 1_000_000),
    "ended_log_bytes_max": (0, 1 << 40),
    "ended_retention_s": (0, 3_650 * 86_400),
}
RUN_AS: Final = ("", "owner", "agent")
ACCOUNT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_ADDRESS = re.compile(r"[A-Za-z0-9.:_%-]{1,253}")


def default_state_directory() -> str:
    """The state directory if none is given: systemd's, else the user's ($XDG_STATE_HOME), for root one in /var/lib."""
    if given := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:  # systemd sets it; several are separated by :
        return given
    if home := os.environ.get("XDG_STATE_HOME"):
        return f"{home}/gavel-node"
    return "/var/lib/gavel-node" if os.geteuid() == 0 else "~/.local/state/gavel-node"


class TypeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table [node.types.NAME] of the file: the part of a node with the GPUs of this type."""

    devices: list[str] = []  # as in CUDA_VISIBLE_DEVICES; empty = the next ones of the agent
    vendor: str = ""  # empty = that of the node
    cpus: float = 0.0  # CPU cores of the node; 0 = in proportion to the number of GPUs; the same of the memory
    memory_gib: float = 0.0


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [node] of the file, with defaults."""

    state_directory: str = msgspec.field(default_factory=default_state_directory)
    scheduler: str = "127.0.0.1:7077"  # several separated by commas
    node_id: str = msgspec.field(default_factory=socket.gethostname)
    gpus: str = ""  # v100:4, several types separated by commas; empty = detect by NVIDIA's driver
    types: dict[str, TypeConfig] = {}  # by GPU type, where the node has several
    vendor: str = NVIDIA  # of the GPUs: nvidia or amd
    mps: bool = False  # jobs that share GPUs use NVIDIA's Multi-Process Service, if it can be started
    mps_divides_threads: bool = False  # and each gets its part of a GPU's threads, in proportion to its memory
    checkpoint_directory: str = ""  # shared with the other nodes; empty = below the state directory, not shared
    address: str = ""  # at which other nodes reach this one; empty = that of the interface to the scheduler
    peer_port: int = 0  # at which other agents reach this one; 0 = any, the same after a restart if it is free
    rack: str = ""  # where the node is: of a zone
    zone: str = ""  # of a region
    region: str = ""
    speed_factor: float = 1.0
    token_file: str = ""
    tls_ca: str = ""  # PEM of the CA of the scheduler's certificate; setting it enables TLS
    tls_certificate: str = ""  # PEM of the node, if the scheduler requires one
    tls_key: str = ""
    stop_jobs_on_exit: bool = False
    silent_start_s: float = 60.0  # progress of a job that has reported nothing by then is estimated from time
    free_bytes_min: int = 64 << 20  # the node accepts no new leases with less space for state or checkpoints
    log_bytes_max: int = 16 << 20  # of one file of a job's log
    log_files_max: int = 4  # rotated files kept
    ended_log_bytes_max: int = 1 << 30  # of the logs of all ended jobs
    ended_retention_s: float = 7 * 86_400.0  # then the files of an ended lease are removed
    control_groups: bool = True  # use control groups if they can be written
    memory_bytes_per_gpu: int = 0  # limit of a job for each of its GPUs; 0 = none
    processes_per_gpu: int = 0  # with threads; 0 = no limit
    cpus: float = 0.0  # CPU cores of the node; 0 = detected
    memory_gib: float = 0.0  # memory of the node; 0 = detected
    cpus_reserved: float = 0.0  # cores that jobs do not get
    memory_gib_reserved: float = 0.0
    run_as: str = ""  # "owner": jobs run as their owners; "agent": as the agent; empty = owner if there is a token file
    private_tmp: bool = False  # each job has its own /tmp and /var/tmp
    hide_processes: bool = True  # jobs that run as their owners see processes of their account only
    users: dict[str, str] = {}  # accounts of users that have another name on this node
    images: list[str] = msgspec.field(
        default_factory=lambda: ["*"]
    )  # patterns of the container images that jobs may use
    image_tool: str = ""  # podman, apptainer or none; empty = the first that is installed
    image_mounts: list[str] = []  # directories of the node that all containers see
    allow_root: bool = False  # whether a job may run as root, if its owner is root on this node

    def __post_init__(self) -> None:
        if not NODE_ID.fullmatch(self.node_id):
            raise InvalidInput(f"node_id must be {NAME_ALLOWED}, got {self.node_id[:80]!r}")
        for name in PLACE_NAMES:
            check_place_name(name, getattr(self, name))
        if self.gpus:
            parse_gpus(self.gpus)
        for vendor in (self.vendor, *(part.vendor or self.vendor for part in self.types.values())):
            if vendor not in VARIABLES:
                raise InvalidInput(f"vendor must be one of {', '.join(VARIABLES)}, got {vendor[:80]!r}")
        if self.mps and self.switches_accounts:
            text = "mps must be false where jobs run as their owners: the service is for one account, got true"
            raise InvalidInput(text)
        if not self.state_directory:
            raise InvalidInput("state_directory must be a path, for example /var/lib/gavel-node, got ''")
        for name in ("state_directory", "checkpoint_directory", "token_file"):
            user_path(name, getattr(self, name))
        if self.private_tmp:
            self._check_private_tmp()
        for name in ("memory_bytes_per_gpu", "processes_per_gpu"):
            if getattr(self, name) and not self.control_groups:
                raise InvalidInput(f"{name} needs control_groups = true, got {getattr(self, name)} with false")
        if self.run_as not in RUN_AS:
            raise InvalidInput(f"run_as must be one of {', '.join(map(repr, RUN_AS))}, got {self.run_as[:80]!r}")
        check_rules(self.image_tool, self.images, self.image_mounts)
        for user, account in self.users.items():
            if not NAME.fullmatch(user) or not ACCOUNT.fullmatch(account):
                raise InvalidInput(
                    f'users must map names of users to accounts, as in alice = "alice_local", got {user[:80]} = '
                    f"{account[:80]!r}"
                )
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise InvalidInput(f"address must be a host name or an IP address, got {self.address[:80]!r}")
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(f"{name} must be in [{least}, {most}], got {getattr(self, name)!r}")
        self._check_exposure()

    @property
    def state(self) -> Path:
        """The state directory without symbolic links, so that all processes use one path."""
        return user_path("state_directory", self.state_directory).resolve()

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory. Links are not resolved, because its storage can hang."""
        given = self.checkpoint_directory
        return _absolute("checkpoint_directory", given) if given else self.state / "checkpoints"

    @property
    def has_own_checkpoints(self) -> bool:
        """Whether the checkpoint directory is below the state directory, so on the node's own disk."""
        roots = (self.state, _absolute("state_directory", self.state_directory))
        return any(self.checkpoints.is_relative_to(root) for root in roots)

    @property
    def runs_as_owner(self) -> bool:
        """Whether jobs run as their owners: a scheduler with tokens has users, one without has a single one."""
        return self.run_as == "owner" or (not self.run_as and bool(self.token_file))

    @property
    def mounts_proc(self) -> bool:
        """Whether jobs need a /proc of their own."""
        return self.hide_processes and self.switches_accounts and not are_processes_hidden()

    @property
    def isolates(self) -> bool:
        """Whether jobs have a mount namespace."""
        return self.private_tmp or self.mounts_proc

    @property
    def job_limits(self) -> JobLimits:
        """Limits of a job for each of its GPUs."""
        return JobLimits(self.memory_bytes_per_gpu, self.processes_per_gpu)

    @property
    def image_rules(self) -> tuple[str, list[str], list[str], float]:
        """The first arguments of `find_images`."""
        return self.image_tool, self.images, self.image_mounts, self.speed_factor

    @property
    def switches_accounts(self) -> bool:
        """Whether jobs run under other accounts than the agent's, which takes root."""
        return self.runs_as_owner and os.geteuid() == 0

    def token(self) -> str:
        """The secret in the token file; empty without a token file. Raises InvalidInput."""
        if not self.token_file:
            return ""
        try:
            content = user_path("token_file", self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"token_file must be a file that can be read, got {self.token_file!r} ({error})"
            ) from None
        if not content or not content.isascii() or not content.isprintable() or " " in content:
            raise InvalidInput(
                f"token_file must hold one token, as `gavel token create` printed it: {self.token_file!r}"
            )
        return content

    def _check_private_tmp(self) -> None:
        if os.geteuid() != 0:
            raise InvalidInput("private_tmp needs an agent that runs as root, got true")
        for name, path in (("state_directory", self.state), ("checkpoint_directory", self.checkpoints)):
            if any(path.is_relative_to(place) for place in REPLACED):
                raise InvalidInput(
                    f"{name} must not be below {' or '.join(REPLACED)} with private_tmp, as jobs would not see it, "
                    f"got {str(path)!r}"
                )

    def _check_exposure(self) -> None:
        try:
            is_near = are_loopback(self.scheduler)
        except InvalidInput:
            raise InvalidInput(f"scheduler must be HOST:PORT or [IPv6]:PORT, got {self.scheduler[:200]!r}") from None
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidInput("tls_certificate and tls_key must both be given or neither")
        if self.tls_certificate and not self.tls_ca:
            raise InvalidInput("tls_certificate needs tls_ca, the authority of the scheduler's certificate")
        missing = [name for name in ("tls_ca", "token_file") if not getattr(self, name)]
        if not is_near and missing:
            raise InvalidInput(
                f"scheduler = {self.scheduler!r} is across the network and needs {' and '.join(missing)}: without "
                "them, an impostor could run any command on this node"
            )


def _absolute(field: str, path: str) -> Path:
    """An absolute path, without access to the file system."""
    return Path(os.path.abspath(user_path(field, path)))  # noqa: PTH100 Path.resolve follows links


def node_config(given: Mapping[str, object], file: Path | None) -> NodeConfig:
    """The configuration from flags and environment (`given`) and a file. InvalidInput names field, value and line."""
    if file is None and SYSTEM_CONFIG.is_file():
        file = SYSTEM_CONFIG
    section = _section(file) if file is not None else {}
    merged = {**section, **given}
    try:
        return msgspec.convert(merged, NodeConfig)
    except msgspec.ValidationError as error:
        text = _explained(error, NodeConfig, merged)
        name = re.split(r"[ .\[]", text, maxsplit=1)[0]
        if file is not None and name in section and name not in given:
            raise InvalidInput(text, file=str(file), line=_line_of(file, text.split()[0])) from None
        raise InvalidInput(text) from None


def _section(file: Path) -> dict[str, object]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"file cannot be read: {error}", file=str(file)) from None
    content = parsed_toml(text, str(file))
    others = [name for name in content if name != SECTION]
    section = content.get(SECTION, {})
    if others or not isinstance(section, dict):
        message = f"must hold one table, [{SECTION}], got {', '.join(map(repr, others)) or shown(section)}"
        header = rf"\s*\[*\s*[\"']?{re.escape((others or [SECTION])[0])}\b"
        raise InvalidInput(message, file=str(file), line=_first(text.splitlines(), 1, header))
    allowed = [field.name for field in msgspec.structs.fields(NodeConfig)]
    for name in section:
        if name not in allowed:
            message = f"{name} is unknown; allowed are {', '.join(allowed)}"
            raise InvalidInput(message, file=str(file), line=_line_of(file, name))
    return section


def _explained(error: msgspec.ValidationError, kind: type[msgspec.Struct], values: Mapping[str, Any]) -> str:
    """The message for a value that is none of its field's; Any: values of the file."""
    if isinstance(error.__cause__, InvalidInput):
        return str(error.__cause__.args[0])
    text, _, path = str(error).rstrip("`").partition(" - at `$")
    name = path.strip(".").partition("[")[0]
    if name == "types" and isinstance(values[name], Mapping):
        return _explained_type(values[name])
    if unknown := re.search(r"unknown field `(.*)", text, re.DOTALL):
        return f"{unknown[1]} is unknown; allowed are {', '.join(kind.__struct_fields__)}"
    return f"{path.strip('.')} must be {allowed_by(text)}, got {shown(values[name])}"


def _explained_type(tables: Mapping[str, Any]) -> str:  # Any: values of the file
    """The message for the first bad table [node.types.NAME]: msgspec's path leaves out its name."""
    for gpu_type, table in tables.items():
        if not isinstance(table, Mapping):
            return f"types.{gpu_type} must be a table, got {shown(table)}"
        try:
            msgspec.convert(table, TypeConfig)
        except msgspec.ValidationError as error:
            return f"types.{gpu_type}.{_explained(error, TypeConfig, table)}"
    return f"types must be tables [{SECTION}.types.NAME], got {shown(tables)}"


def _line_of(file: Path, path: str) -> int:
    """The line of the field with this path below [node], else of its table, from 1; 0 = not found."""
    lines = file.read_text(encoding="utf-8").splitlines()
    table, _, name = path.partition("[")[0].rpartition(".")
    header = _first(lines, 1, rf"\s*\[{SECTION}\.{re.escape(table)}\]") if table else 0
    if table and not header:
        return 0
    return _first(lines, header + 1, rf"\s*(\[{SECTION}\.)?[\"']?{re.escape(name)}[\"']?\s*[=\]]") or header


def _first(lines: Sequence[str], start: int, pattern: str) -> int:
    """The first line from `start` on that begins with the pattern, from 1; 0 = none."""
    return next((number for number in range(start, len(lines) + 1) if re.match(pattern, lines[number - 1])), 0)
