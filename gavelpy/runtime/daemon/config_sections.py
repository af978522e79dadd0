"""The tables of the scheduler's configuration file: their fields, defaults and allowed values."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX
from gavelpy.model.job import JobKind, JobSpec
from gavelpy.model.problem import BlindView
from gavelpy.runtime.addresses import is_address
from gavelpy.runtime.security.exposure import is_loopback
from gavelpy.runtime.user_paths import user_path

MIB = 1 << 20
_LIMIT_S_MAX = 1e9  # about 30 years
_JOURNALS = ("sqlite:///", "postgresql://", "postgresql+psycopg://")
_DURATION = re.compile(r"([0-9]{1,5})([mhdw])")
_UNIT_S = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the file."""


def _expand(section: Section, *names: str) -> None:
    """Replaces `~` in paths of a section. Raises InvalidInput."""
    for name in names:
        if path := getattr(section, name):
            msgspec.structs.force_setattr(section, name, str(user_path(name, path)))


class ServerSettings(Section, frozen=True, kw_only=True):
    """[scheduler]: name, state directory, addresses and journal."""

    name: str = "gavel"
    state_directory: str
    listen: str = "127.0.0.1:7077"  # gRPC, for clients and agents
    agents_listen: str = ""  # for agents, which then cannot connect to `listen`; "" = `listen`
    http_listen: str = "127.0.0.1:7078"  # metrics and health; "" = none
    web_listen: str = ""  # the web page and its JSON; "" = none
    journal: str = ""  # URL of a database; "" = SQLite in the state directory
    journal_backups: int = 2  # number of backups of a SQLite journal; 0 = none
    journal_backup_directory: str = ""  # "" = the directory of the journal
    reflection: bool = False  # whether the server offers gRPC reflection

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(f"name must be 1 to 63 letters, digits, '.', '_' and '-', got {self.name!r}")
        if not self.state_directory:
            raise InvalidInput("state_directory must be a directory, got ''")
        _expand(self, "state_directory", "journal_backup_directory")
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


class StandbySettings(Section, frozen=True):
    """[standby]: several schedulers of one PostgreSQL journal, of which one leads and the others stand by."""

    enabled: bool = False
    lease_s: float = 3.0  # a leader that is silent for longer is replaced
    address: str = ""  # HOST:PORT at which clients reach this scheduler; "" = host name and port of `listen`

    def __post_init__(self) -> None:
        _in_range("lease_s", self.lease_s, 0.5, 60.0)
        if self.address and not is_address(self.address):
            raise InvalidInput(f"address must be HOST:PORT or [IPv6]:PORT, got {self.address!r}")

    def address_of(self, listen: str) -> str:
        """The address of the scheduler that listens on `listen`."""
        host, _, port = listen.rpartition(":")
        everywhere = host in ("", "0.0.0.0", "[::]", "*")
        return self.address or (f"{socket.gethostname()}:{port}" if everywhere else listen)


class JournalSettings(Section, frozen=True):
    """[journal]: when past jobs and events leave the scheduler's memory, and how long the archive keeps events."""

    retention: str = "7d"  # jobs that are over for longer are in the archive only; "0" = all stay in memory
    events_retention: str = "31d"  # the archive keeps events for a replay from then on; "0" = none

    def __post_init__(self) -> None:
        for name, least in (("retention", "1h"), ("events_retention", "1h")):
            given = getattr(self, name)
            if (seconds := duration_s(given)) is None or 0 < seconds < 3600:
                allowed = f"a duration of {least} or more like 12h, 7d or 2w, or 0"
                raise InvalidInput(f"{name} must be {allowed}, got {given!r}")

    @property
    def retention_s(self) -> float:
        """In seconds; 0 = all stay."""
        return duration_s(self.retention) or 0.0

    @property
    def events_retention_s(self) -> float:
        """In seconds; 0 = events are not archived."""
        return duration_s(self.events_retention) or 0.0


class PriceSettings(Section, frozen=True):
    """[prices]: what GPU time costs."""

    usd_per_gpu_h: dict[str, float] = {}  # by GPU type; 0 for others

    def __post_init__(self) -> None:
        for gpu_type, price in self.usd_per_gpu_h.items():
            if not 0 <= price <= VALUE_MAX:
                raise InvalidInput(f"usd_per_gpu_h must be finite numbers >= 0, got {price!r} of {gpu_type!r}")


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
    mtbf_h: float = 0.0  # mean time between failures of a node, for the cadence of checkpoints; 0 = not known

    def __post_init__(self) -> None:
        _in_range("heartbeat_interval_s", self.heartbeat_interval_s, 0.05, 60.0)
        _in_range("silent_after_s", self.silent_after_s, 2 * self.heartbeat_interval_s, 3600.0)
        _in_range("lease_overlap_s", self.lease_overlap_s, 0.0, 3600.0)
        _in_range("unsaved_overlap_s", self.unsaved_overlap_s, 0.0, 86_400.0)
        _in_range("lease_margin_s", self.lease_margin_s, 0.0, 3600.0)
        _in_range("grace_s", self.grace_s, 0.0, 3600.0)
        _in_range("orphan_max_s", self.orphan_max_s, 0.0, 86_400.0)
        _in_range("mass_silence_s", self.mass_silence_s, 0.0, 3600.0)
        _in_range("mtbf_h", self.mtbf_h, 0.0, 1e6)
        _expand(self, "checkpoint_directory")
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
        _expand(self, "file", "model")
        _in_range("profile_gpu_s", self.profile_gpu_s, 0.0, 1e9)
        _in_range("warm_up_s", self.warm_up_s, 0.0, 3600.0)


class LimitSettings(Section, frozen=True):
    """[limits]: limits of requests, calls and streams."""

    message_bytes_max: int = 4 * MIB
    jobs_a_request_max: int = 10_000
    jobs_living_max: int = 100_000
    jobs_living_a_user_max: int = 0  # of one owner, waiting and running; 0 = jobs_living_max
    weight_max: float = 0.0  # of a job; 0 = any
    calls_a_user_max: int = 1_000  # concurrent, including waiting ones
    streams_a_user_max: int = 200  # concurrent streams of events and logs
    calls_an_address_max: int = 2_000
    streams_an_address_max: int = 400
    calls_max: int = 10_000  # of all users, without agents' streams
    connections_a_user_max: int = 1_000  # with calls in progress
    connections_an_address_max: int = 2_000
    requests_a_user_per_s: float = 500.0  # over 10 s; 0 = any
    requests_an_address_per_s: float = 1_000.0
    connection_idle_s: float = 300.0  # a connection without a call is closed after this
    keepalive_s: float = 10.0  # a silent peer gets a ping after this, and is closed without an answer in the same time

    def __post_init__(self) -> None:
        _in_range("message_bytes_max", self.message_bytes_max, 64 << 10, 256 * MIB)
        _in_range("jobs_a_request_max", self.jobs_a_request_max, 1, 1_000_000)
        _in_range("jobs_living_max", self.jobs_living_max, 1, 10_000_000)
        _in_range("jobs_living_a_user_max", self.jobs_living_a_user_max, 0, 10_000_000)
        _in_range("weight_max", self.weight_max, 0.0, VALUE_MAX)
        for name in ("calls", "streams", "connections"):
            for of in ("a_user", "an_address"):
                _in_range(f"{name}_{of}_max", getattr(self, f"{name}_{of}_max"), 1, 100_000)
        _in_range("requests_a_user_per_s", self.requests_a_user_per_s, 0.0, 1e6)
        _in_range("requests_an_address_per_s", self.requests_an_address_per_s, 0.0, 1e6)
        _in_range("keepalive_s", self.keepalive_s, 1.0, 3_600.0)
        _in_range("calls_max", self.calls_max, 1, 100_000)
        _in_range("connection_idle_s", self.connection_idle_s, 1.0, 86_400.0)

    def check_weights(self, specs: Sequence[JobSpec]) -> None:
        """Raises InvalidInput for a job with a larger weight than any may have."""
        for spec in specs if self.weight_max else ():
            if spec.weight > self.weight_max:
                raise InvalidInput(
                    f"weight must be at most {self.weight_max:g} here (weight_max in the scheduler's [limits]), "
                    f"got {spec.weight:g}"
                )


class JobSettings(Section, frozen=True):
    """[jobs]: limits of each job, with defaults for jobs that are submitted without; 0 = none."""

    time_s: float = 0.0  # running time; if 0, time_max_s
    time_max_s: float = 0.0
    stall_s: float = 0.0  # time without progress; if 0, stall_max_s; not of interactive jobs
    stall_max_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("time_s", "stall_s"):
            most_s = getattr(self, f"{name[:-2]}_max_s")
            _in_range(f"{name[:-2]}_max_s", most_s, 0.0, _LIMIT_S_MAX)
            _in_range(name, getattr(self, name), 0.0, most_s or _LIMIT_S_MAX)

    def limited(self, spec: JobSpec) -> JobSpec:
        """The job with the limits that hold for it. Raises InvalidInput for limits above the largest."""
        for name, value_s, most_s in (
            ("time_s", spec.time_s, self.time_max_s),
            ("stall_s", spec.stall_s, self.stall_max_s),
        ):
            if most_s and value_s > most_s:
                raise InvalidInput(
                    f"{name} must be at most {most_s:g} here ({name[:-2]}_max_s in the scheduler's [jobs]), "
                    f"got {value_s:g}"
                )
        time_s = spec.time_s or self.time_s or self.time_max_s
        default_s = 0.0 if spec.kind is JobKind.INTERACTIVE else self.stall_s or self.stall_max_s
        return spec.limited(time_s, spec.stall_s or default_s)


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


def _is_http_address(listen: str) -> bool:
    """Whether it is HOST:PORT on loopback; raises InvalidInput if it is not HOST:PORT."""
    try:
        return is_loopback(listen)
    except InvalidInput:
        raise InvalidInput(f"http_listen must be HOST:PORT or [IPv6]:PORT, got {listen[:200]!r}") from None


def duration_s(text: str) -> float | None:
    """Seconds of `30m`, `12h`, `7d`, `2w` or `0`; None for other texts."""
    if text == "0":
        return 0.0
    found = _DURATION.fullmatch(text)
    return float(found[1]) * _UNIT_S[found[2]] if found else None


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or math.isnan(value):
        raise InvalidInput(f"{name} must be in [{low:g}, {high:g}], got {value!r}")
