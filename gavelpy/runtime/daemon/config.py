"""The scheduler's configuration file: TOML with all fields validated; errors have file, line, field and value."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.priority_classes import NORMAL, PriorityClass
from gavelpy.mechanism.settings import (
    LEASE_MIN_ROUNDS,
    SOLVE_AT_LEAST_ROUNDS,
    START_SETTINGS,
    MechanismSettings,
    settings_of,
    settings_values,
)
from gavelpy.model.problem import BlindView
from gavelpy.policies.base import Policy, policy_named, varies_with_time
from gavelpy.runtime.security.exposure import SecuritySettings, check_exposure, is_loopback

MIB = 1 << 20
PRIORITIES = "priorities"  # [priorities.NAME], which become a setting of the mechanism
_JOURNALS = ("sqlite:///", "postgresql://", "postgresql+psycopg://")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the file."""


class ServerSettings(Section, frozen=True, kw_only=True):
    """[scheduler]: name, state directory, addresses and journal."""

    name: str = "gavel"
    state_directory: str
    listen: str = "127.0.0.1:7077"  # gRPC, for clients and agents
    http_listen: str = "127.0.0.1:7078"  # metrics and health; "" = none
    journal: str = ""  # URL of a database; "" = SQLite in the state directory
    journal_backups: int = 2  # number of backups of a SQLite journal; 0 = none
    journal_backup_directory: str = ""  # "" = the directory of the journal
    reflection: bool = False  # whether the server offers gRPC reflection

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(f"name must be 1 to 63 letters, digits, '.', '_' and '-', got {self.name!r}")
        if not self.state_directory:
            raise InvalidInput("state_directory must be a directory, got ''")
        if self.http_listen and not _is_http_address(self.http_listen):
            raise InvalidInput(f"http_listen must be on loopback, got {self.http_listen!r}")
        if self.journal and not self.journal.startswith(_JOURNALS):
            scheme = self.journal.partition(":")[0][:60]  # the rest may contain a password
            raise InvalidInput(f"journal must begin with one of {', '.join(_JOURNALS)}, got {scheme!r}")
        _in_range("journal_backups", self.journal_backups, 0, 1000)

    @property
    def journal_url(self) -> str:
        """URL of the journal's database."""
        return self.journal or f"sqlite:///{Path(self.state_directory).absolute() / 'journal.sqlite'}"


class PolicySettings(Section, frozen=True):
    """[policy]: the scheduling policy and its parameters."""

    name: str = "max_min_fairness"
    parameters: dict[str, float | str] = {}
    blind: bool = False  # whether GPU types look equal to the policy
    blind_view: BlindView = BlindView.MEAN


class NodeSettings(Section, frozen=True):
    """[nodes]: heartbeats, leases, and the treatment of unreachable nodes."""

    heartbeat_interval_s: float = 1.0
    silent_after_s: float = 10.0
    mass_silence_s: float = 60.0  # extra delay if nearly all nodes become unreachable at once
    on_node_lost: str = "wait"
    lease_overlap_s: float = 20.0  # how long a lease outlasts its round, so that it is extended before it ends
    unsaved_overlap_s: float = 300.0  # the same for a job that has never saved a checkpoint, if longer
    lease_margin_s: float = 5.0
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    orphan_max_s: float = 3600.0  # how long a majority of agents may extend leases without a scheduler; 0 = never
    checkpoint_directory: str = ""  # path on the scheduler's host; "" = no access

    def __post_init__(self) -> None:
        _in_range("heartbeat_interval_s", self.heartbeat_interval_s, 0.05, 60.0)
        _in_range("silent_after_s", self.silent_after_s, 2 * self.heartbeat_interval_s, 3600.0)
        _in_range("lease_overlap_s", self.lease_overlap_s, 0.0, 3600.0)
        _in_range("unsaved_overlap_s", self.unsaved_overlap_s, 0.0, 86_400.0)
        _in_range("lease_margin_s", self.lease_margin_s, 0.0, 3600.0)
        _in_range("grace_s", self.grace_s, 0.0, 3600.0)
        _in_range("orphan_max_s", self.orphan_max_s, 0.0, 86_400.0)
        _in_range("mass_silence_s", self.mass_silence_s, 0.0, 3600.0)
        if self.on_node_lost not in ("wait", "fence"):
            raise InvalidInput(f"on_node_lost must be 'wait' or 'fence', got {self.on_node_lost!r}")


class ThroughputSettings(Section, frozen=True):
    """[throughputs]: rates of jobs that are submitted without any, and estimation from running jobs."""

    file: str = ""
    estimate: bool = True  # estimate missing rates, and correct rates by measurements
    model: str = ""  # of `gavel throughput fit`; "" = the shipped one
    profile_gpu_s: float = 720.0  # GPU-seconds of profiling in each allocation; 0 = none
    warm_up_s: float = 30.0  # of a lease; measurements are ignored

    def __post_init__(self) -> None:
        _in_range("profile_gpu_s", self.profile_gpu_s, 0.0, 1e9)
        _in_range("warm_up_s", self.warm_up_s, 0.0, 3600.0)


class LimitSettings(Section, frozen=True):
    """[limits]: limits of requests, calls and streams."""

    message_bytes_max: int = 4 * MIB
    jobs_a_request_max: int = 10_000
    jobs_living_max: int = 100_000
    calls_a_user_max: int = 1_000  # concurrent, including waiting ones
    streams_a_user_max: int = 200  # concurrent streams of events and logs
    calls_an_address_max: int = 2_000
    streams_an_address_max: int = 400
    calls_max: int = 10_000  # of all users, without agents' streams
    connection_idle_s: float = 300.0  # a connection without a call is closed after this

    def __post_init__(self) -> None:
        _in_range("message_bytes_max", self.message_bytes_max, 64 << 10, 256 * MIB)
        _in_range("jobs_a_request_max", self.jobs_a_request_max, 1, 1_000_000)
        _in_range("jobs_living_max", self.jobs_living_max, 1, 10_000_000)
        for name in ("calls_a_user_max", "streams_a_user_max", "calls_an_address_max", "streams_an_address_max"):
            _in_range(name, getattr(self, name), 1, 100_000)
        _in_range("calls_max", self.calls_max, 1, 100_000)
        _in_range("connection_idle_s", self.connection_idle_s, 1.0, 86_400.0)


class NotificationSettings(Section, frozen=True):
    """[notifications]: where jobs may send notifications; by default nowhere."""

    webhook_hosts: tuple[str, ...] = ()  # HOST (port 443 or 80) or HOST:PORT
    mail_domains: tuple[str, ...] = ()  # of recipients
    smtp: str = ""  # HOST:PORT of the mail server; "" = no mail
    smtp_security: str = "starttls"
    smtp_from: str = ""
    smtp_user: str = ""
    smtp_password_file: str = ""
    timeout_s: float = 10.0  # of each call

    def __post_init__(self) -> None:
        _in_range("timeout_s", self.timeout_s, 0.1, 60.0)
        if self.smtp_security not in ("none", "starttls", "tls"):
            raise InvalidInput(f"smtp_security must be 'none', 'starttls' or 'tls', got {self.smtp_security!r}")
        host, _, port = self.smtp.rpartition(":")
        if self.smtp and not (host and port.isdecimal() and int(port) < 1 << 16):
            raise InvalidInput(f"smtp must be HOST:PORT, got {self.smtp!r}")
        if self.smtp and "@" not in self.smtp_from:
            raise InvalidInput(f"smtp_from must be the address of the sender if smtp is given, got {self.smtp_from!r}")
        if bool(self.smtp_user) != bool(self.smtp_password_file):
            raise InvalidInput(f"smtp_user must be given together with smtp_password_file, got {self.smtp_user!r}")


# Defaults of [mechanism] that differ from the library's: the policy runs at most once a second, ends of leases may be
# reported late, and programs may not save checkpoints.
_MECHANISM_DEFAULTS: Mapping[str, Any] = {
    "solve_interval_s": 1.0,
    "late_ends": True,
    "loss_nodes_max": 3,
    "keep_unsaved": True,
    "finish_grace_s": 600.0,
    **START_SETTINGS,
}


_BY_ROUND = ("lease_min_s", "solve_at_least_every_s")  # fields of [mechanism] with defaults that depend on `round_s`


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    scheduler: ServerSettings
    policy: PolicySettings
    mechanism: MechanismSettings
    mechanism_given: frozenset[str]  # fields of [mechanism] that the file sets
    nodes: NodeSettings
    security: SecuritySettings
    throughputs: ThroughputSettings
    limits: LimitSettings
    notifications: NotificationSettings
    path: str

    def with_round(self, settings: MechanismSettings, round_s: float) -> MechanismSettings:
        """These settings with another round length; defaults that depend on it follow unless the file sets them."""
        kept = {name: getattr(settings, name) for name in _BY_ROUND if name in self.mechanism_given}
        return replace(settings.with_round(round_s), **kept)

    def for_policy(self, settings: MechanismSettings, policy: Policy) -> MechanismSettings:
        """These settings with the values that the policy declares, unless the file sets them."""
        every_s = settings.round_s * SOLVE_AT_LEAST_ROUNDS if varies_with_time(policy) else 0.0
        declared: dict[str, Any] = {"fill_leftover": policy.fills_leftover, "solve_at_least_every_s": every_s}
        return replace(settings, **{name: v for name, v in declared.items() if name not in self.mechanism_given})


_SECTIONS: dict[str, type[Any]] = {
    "scheduler": ServerSettings,
    "policy": PolicySettings,
    "mechanism": MechanismSettings,
    "nodes": NodeSettings,
    "security": SecuritySettings,
    "throughputs": ThroughputSettings,
    "limits": LimitSettings,
    "notifications": NotificationSettings,
}
Settings = TypeVar("Settings")


def read_config(path: str | Path) -> Config:
    """The configuration in a file; raises InvalidInput with file and line."""
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"must be UTF-8: {error}", file=str(path)) from None
    return parse_config(text, str(path))


def parse_config(text: str, file: str = "") -> Config:
    """The configuration in a text; `file` appears in error messages."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"must be TOML: {error}", file=file, line=_line_in(str(error))) from None
    source = _Source(text, file)
    for name in document:
        if name not in (*_SECTIONS, PRIORITIES):
            allowed = ", ".join([*_SECTIONS, f"{PRIORITIES}.NAME"])
            raise source.complaint(name, "", f"[{name}] is not known; allowed are {allowed}")
    sections = {name: source.section(name, kind, document.get(name, {})) for name, kind in _SECTIONS.items()}
    if sections["mechanism"].packing:
        raise source.complaint(
            "mechanism", "packing", "mechanism.packing must be false: agents do not co-locate jobs on a GPU"
        )
    classes = _priorities(source, document.get(PRIORITIES, {}))
    try:
        sections["mechanism"] = replace(sections["mechanism"], priorities=classes)
    except InvalidInput as error:
        section, _, field = error.args[0].split()[0].rpartition(".")
        raise source.complaint(section or PRIORITIES, field, error.args[0]) from None
    config = Config(**sections, mechanism_given=frozenset(document.get("mechanism", {})), path=file)
    try:
        check_exposure(config.scheduler.listen, config.security)
    except InvalidInput as error:
        raise source.complaint("scheduler", "listen", error.args[0]) from None
    _check_policy(source, config.policy)
    return config


class _Source:
    """The text, to find the line of a field."""

    def __init__(self, text: str, file: str) -> None:
        self.lines = text.splitlines()
        self.file = file

    def section(self, name: str, kind: type[Settings], given: object) -> Settings:
        if not isinstance(given, dict):
            raise self.complaint("", name, f"{name} must be a table, [{name}], got {given!r}")
        allowed = _names(kind)
        for field in given:
            if field not in allowed:
                raise self.complaint(name, field, f"{name}.{field} is not known; allowed are {', '.join(allowed)}")
        values = _mechanism(given) if kind is MechanismSettings else given
        try:
            convert: Any = settings_of if kind is MechanismSettings else partial(msgspec.convert, type=kind)
            settings: Settings = convert(values)  # Any: of either library
        except msgspec.ValidationError as error:
            field, text = _explained(name, error, given)
            raise self.complaint(name, field, text) from None
        except InvalidInput as error:  # rules of the mechanism
            raise self.complaint(name, error.args[0].split()[0], f"{name}.{error.args[0]}") from None
        return settings

    def priority_class(self, name: str, given: object) -> PriorityClass:
        section = f"{PRIORITIES}.{name}"
        if not isinstance(given, dict):
            raise self.complaint(PRIORITIES, name, f"{section} must be a table, [{section}], got {given!r}")
        allowed = [field for field in PriorityClass.__dataclass_fields__ if field != "name"]
        for field in given:
            if field not in allowed:
                raise self.complaint(
                    section, field, f"{section}.{field} is not known; allowed are {', '.join(allowed)}"
                )
        if "value" not in given and name != NORMAL:
            raise self.complaint(PRIORITIES, name, f"{section}.value must be given")
        try:
            return msgspec.convert({**given, "name": name}, PriorityClass)
        except msgspec.ValidationError as error:
            field, text = _explained(section, error, given)
            raise self.complaint(section, field, text) from None

    def complaint(self, section: str, field: str, text: str) -> InvalidInput:
        return InvalidInput(text, file=self.file, line=self._line(section, field))

    def _line(self, section: str, field: str) -> int:
        """Line of the field, else of its table, from 1; 0 = not found."""
        here, table = "", 0
        for number, line in enumerate(self.lines, 1):
            if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
                here = header[1]
                table = number if section in (here, here.split(".")[0]) else table
                if here == f"{section}.{field}":
                    return number
            elif field and here == section and re.match(rf"\s*[\"']?{re.escape(field)}[\"']?\s*[=.]", line):
                return number
        return table


def _priorities(source: _Source, given: object) -> tuple[PriorityClass, ...]:
    """The classes of [priorities.NAME]."""
    if not isinstance(given, dict):
        raise source.complaint("", PRIORITIES, f"{PRIORITIES} must be tables, [{PRIORITIES}.NAME], got {given!r}")
    return tuple(source.priority_class(name, table) for name, table in given.items())


def _mechanism(given: Mapping[str, Any]) -> dict[str, Any]:
    """[mechanism] with the daemon's defaults; `retry_max_s` is at least `retry_s`."""
    values = {**_MECHANISM_DEFAULTS, **given}
    round_s, retry_s = given.get("round_s", MechanismSettings.round_s), values["retry_s"]
    if isinstance(round_s, int | float) and "lease_min_s" not in given:
        values["lease_min_s"] = round_s * LEASE_MIN_ROUNDS
    if isinstance(retry_s, int | float) and "retry_max_s" not in given:
        values["retry_max_s"] = max(values["retry_max_s"], retry_s)
    return values


def _check_policy(source: _Source, settings: PolicySettings) -> None:
    """Raises InvalidInput for an unknown policy or unknown parameters."""
    try:
        policy_named(settings.name)
    except InvalidInput as error:
        raise source.complaint("policy", "name", f"policy.name: {error.args[0]}") from None
    try:
        policy_named(settings.name, **settings.parameters)
    except InvalidInput as error:
        raise source.complaint("policy", "parameters", f"policy.parameters: {error.args[0]}") from None


def _is_http_address(listen: str) -> bool:
    """Whether it is HOST:PORT on loopback; raises InvalidInput if it is not HOST:PORT."""
    try:
        return is_loopback(listen)
    except InvalidInput:
        raise InvalidInput(f"http_listen must be HOST:PORT or [IPv6]:PORT, got {listen[:200]!r}") from None


def _names(kind: type[Any]) -> list[str]:  # of the fields, of either library
    if kind is MechanismSettings:
        return [name for name in settings_values(MechanismSettings()) if name != PRIORITIES]
    return [field.name for field in msgspec.structs.fields(kind)]


def _explained(section: str, error: msgspec.ValidationError, given: Mapping[str, object]) -> tuple[str, str]:
    """The field and the message of an error."""
    if isinstance(error.__cause__, InvalidInput):
        text = error.__cause__.args[0]
        return text.split()[0], f"{section}.{text}"
    text, _, place = str(error).partition(" - at `$")
    if missing := re.search(r"missing required field `(\w+)`", text):
        return "", f"{section}.{missing[1]} must be given"
    field = re.match(r"\.(\w+)", place)
    name = field[1] if field else ""
    allowed = re.sub(r"^Expected (.*), got .*$", r"\1", text).replace("`", "")
    return name, f"{section}.{name} must be {allowed}, got {given.get(name)!r}"


def _line_in(text: str) -> int:
    found = re.search(r"at line (\d+)", text)
    return int(found[1]) if found else 0


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or math.isnan(value):
        raise InvalidInput(f"{name} must be in [{low:g}, {high:g}], got {value!r}")
