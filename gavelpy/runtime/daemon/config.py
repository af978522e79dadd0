"""The scheduler's configuration file: TOML with all fields validated; errors have file, line, field and value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.gpu_memory import GpuType
from gavelpy.mechanism.priority_classes import NORMAL, PriorityClass
from gavelpy.mechanism.settings import (
    LEASE_MIN_ROUNDS,
    MOVE_LAG_ROUNDS,
    MOVE_LAG_ROUNDS_ON_TIME,
    SOLVE_AT_LEAST_ROUNDS,
    START_SETTINGS,
    MechanismSettings,
    settings_of,
    settings_values,
)
from gavelpy.mechanism.teams import Team
from gavelpy.model.toml_text import allowed_by, parsed_toml
from gavelpy.policies.base import Policy, policy_named, uses_deadlines, varies_with_time
from gavelpy.policies.policy_file import is_in_file
from gavelpy.policies.team_rows import check_counts_teams
from gavelpy.runtime.daemon.config_sections import (
    JobSettings,
    JournalSettings,
    LimitSettings,
    NodeSettings,
    NotificationSettings,
    PolicySettings,
    PriceSettings,
    ServerSettings,
    StandbySettings,
    ThroughputSettings,
)
from gavelpy.runtime.security.exposure import SecuritySettings, check_exposure
from gavelpy.traces.fields import shown

PRIORITIES = "priorities"  # [priorities.NAME] and [teams.NAME], which become settings of the mechanism
TEAMS = "teams"
GPU_TYPES = "gpu_types"
_NAMED: Mapping[str, type[PriorityClass] | type[Team] | type[GpuType]] = {
    PRIORITIES: PriorityClass,
    TEAMS: Team,
    GPU_TYPES: GpuType,
}


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


_BY_ROUND = (
    "lease_min_s",
    "move_lag_s",
    "solve_at_least_every_s",
)  # fields of [mechanism] with defaults that depend on `round_s`


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
    jobs: JobSettings
    notifications: NotificationSettings
    path: str
    journal: JournalSettings = JournalSettings()
    prices: PriceSettings = PriceSettings()
    standby: StandbySettings = StandbySettings()

    def with_round(self, settings: MechanismSettings, round_s: float) -> MechanismSettings:
        """These settings with another round length; defaults that depend on it follow unless the file sets them."""
        kept = {name: getattr(settings, name) for name in _BY_ROUND if name in self.mechanism_given}
        kept["solve_interval_s"] = settings.solve_interval_s
        return replace(settings.with_round(round_s), **kept)

    def for_policy(self, settings: MechanismSettings, policy: Policy) -> MechanismSettings:
        """These settings with the values that the policy declares, unless the file sets them.

        Raises InvalidInput for a policy that ignores the quotas of teams, if there are any.
        """
        if settings.limits_teams:
            check_counts_teams(policy)
        every_s = settings.round_s * SOLVE_AT_LEAST_ROUNDS if varies_with_time(policy) else 0.0
        declared: dict[str, Any] = {"fill_leftover": policy.fills_leftover, "solve_at_least_every_s": every_s}
        if settings.move_lag_s:
            rounds = MOVE_LAG_ROUNDS_ON_TIME if uses_deadlines(policy) else MOVE_LAG_ROUNDS
            declared["move_lag_s"] = settings.round_s * rounds
        return replace(settings, **{name: v for name, v in declared.items() if name not in self.mechanism_given})


_SECTIONS: dict[str, type[Any]] = {
    "scheduler": ServerSettings,
    "policy": PolicySettings,
    "mechanism": MechanismSettings,
    "nodes": NodeSettings,
    "security": SecuritySettings,
    "throughputs": ThroughputSettings,
    "limits": LimitSettings,
    "jobs": JobSettings,
    "notifications": NotificationSettings,
    "journal": JournalSettings,
    "prices": PriceSettings,
    "standby": StandbySettings,
}
Settings = TypeVar("Settings")


def read_config(path: str | Path, *, will_run: bool = True) -> Config:
    """The configuration in a file; raises InvalidInput with file and line. Only one that runs needs a directory."""
    return parse_config(_text_of(path), str(path), will_run=will_run)


def read_teams(path: str | Path) -> tuple[Team, ...]:
    """The tables [teams.NAME] of a file, which may be a scheduler's; raises InvalidInput with file and line."""
    source, document = _parsed(_text_of(path), str(path))
    if not document.get(TEAMS):
        raise InvalidInput(f"must have tables [{TEAMS}.NAME], got none", file=str(path))
    return _with_tables(source, MechanismSettings(), TEAMS, document).teams


def parse_config(text: str, file: str = "", *, will_run: bool = True) -> Config:
    """The configuration in a text; `file` appears in error messages."""
    source, document = _parsed(text, file)
    server = document.get("scheduler", {})
    if not will_run and isinstance(server, dict):
        document["scheduler"] = {"state_directory": ".", **server}
    for name in document:
        if name not in (*_SECTIONS, *_NAMED):
            allowed = ", ".join([*_SECTIONS, *(f"{group}.NAME" for group in _NAMED)])
            raise source.complaint(name, "", f"[{name}] is not known; allowed are {allowed}")
    sections = {name: source.section(name, kind, document.get(name, {})) for name, kind in _SECTIONS.items()}
    for group in _NAMED:
        sections["mechanism"] = _with_tables(source, sections["mechanism"], group, document)
    if sections["mechanism"].packing and not any(one.memory_gib for one in sections["mechanism"].gpu_types):
        text = "must be false where no [gpu_types.NAME] has memory_gib: jobs share a GPU only if both fit"
        raise source.complaint("mechanism", "packing", f"mechanism.packing {text}, got true")
    config = Config(**sections, mechanism_given=frozenset(document.get("mechanism", {})), path=file)
    for field in ("listen", "agents_listen", "web_listen"):
        try:
            if field == "listen" or getattr(config.scheduler, field):
                check_exposure(getattr(config.scheduler, field), config.security, field)
        except InvalidInput as error:
            raise source.complaint("scheduler", field, error.args[0]) from None
    if config.standby.enabled and not config.scheduler.journal.startswith("postgresql"):
        text = (
            "standby.enabled needs scheduler.journal = 'postgresql://...': a file has one scheduler at a time, on its"
        )
        raise source.complaint("standby", "enabled", f"{text} machine; got {config.scheduler.journal or 'SQLite'!r}")
    _check_policy(source, config.policy, limits_teams=config.mechanism.limits_teams)
    return config


def _text_of(path: str | Path) -> str:
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"must be UTF-8: {error}", file=str(path)) from None


def _parsed(text: str, file: str) -> tuple[_Source, dict[str, Any]]:  # Any: TOML
    return _Source(text, file), parsed_toml(text, file)


def _with_tables(
    source: _Source, settings: MechanismSettings, group: str, document: Mapping[str, object]
) -> MechanismSettings:
    """The settings with the tables [GROUP.NAME]."""
    tables: Any = source.named_tables(group, document.get(group, {}))  # Any: of the setting's type
    try:
        return replace(settings, **{group: tables})
    except InvalidInput as error:
        section, _, field = error.args[0].split()[0].rpartition(".")
        raise source.complaint(section or group, field, error.args[0]) from None


class _Source:
    """The text, to find the line of a field."""

    def __init__(self, text: str, file: str) -> None:
        self.lines = text.splitlines()
        self.file = file

    def section(self, name: str, kind: type[Settings], given: object) -> Settings:
        if not isinstance(given, dict):
            raise self.complaint("", name, f"{name} must be a table, [{name}], got {shown(given)}")
        allowed = _names(kind)
        for field in given:
            if field not in allowed:
                raise self.complaint(name, field, f"{name}.{field} is not known; allowed are {', '.join(allowed)}")
        if given.get("move_lag_s") and "lag_half_life_s" in given:
            text = "move_lag_s must be 0 where lag_half_life_s is set, as nothing fades with it"
            raise self.complaint(name, "move_lag_s", f"{name}.{text}, got {given['move_lag_s']!r}")
        values = _mechanism(given) if kind is MechanismSettings else given
        try:
            convert: Any = settings_of if kind is MechanismSettings else partial(msgspec.convert, type=kind)
            settings: Settings = convert(values)  # Any: of either library
        except msgspec.ValidationError as error:
            field, text = _explained(name, kind, error, given)
            raise self.complaint(name, field, text) from None
        except InvalidInput as error:  # rules of the mechanism
            raise self.complaint(name, error.args[0].split()[0], f"{name}.{error.args[0]}") from None
        return settings

    def named_tables(self, group: str, given: object) -> tuple[PriorityClass | Team | GpuType, ...]:
        """The tables [GROUP.NAME]."""
        if not isinstance(given, dict):
            raise self.complaint("", group, f"{group} must be tables, [{group}.NAME], got {shown(given)}")
        return tuple(self._named_table(group, name, table) for name, table in given.items())

    def _named_table(self, group: str, name: str, given: object) -> PriorityClass | Team | GpuType:
        section, kind = f"{group}.{name}", _NAMED[group]
        if not isinstance(given, dict):
            raise self.complaint(group, name, f"{section} must be a table, [{section}], got {shown(given)}")
        allowed = [field for field in kind.__dataclass_fields__ if field != "name"]
        for field in given:
            if field not in allowed:
                raise self.complaint(
                    section, field, f"{section}.{field} is not known; allowed are {', '.join(allowed)}"
                )
        if kind is PriorityClass and "value" not in given and name != NORMAL:
            raise self.complaint(group, name, f"{section}.value must be given")
        try:
            return msgspec.convert({**given, "name": name}, kind)
        except msgspec.ValidationError as error:
            field, text = _explained(section, kind, error, given)
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


def _mechanism(given: Mapping[str, Any]) -> dict[str, Any]:
    """[mechanism] with the daemon's defaults; `retry_max_s` is at least `retry_s`."""
    values = {**_MECHANISM_DEFAULTS, **given}
    round_s, retry_s = given.get("round_s", MechanismSettings.round_s), values["retry_s"]
    if isinstance(round_s, int | float) and "lease_min_s" not in given:
        values["lease_min_s"] = round_s * LEASE_MIN_ROUNDS
    fades = "lag_half_life_s" in given or given.get("priority", "lag") != "lag"
    if "move_lag_s" not in given and isinstance(round_s, int | float):
        values["move_lag_s"] = 0.0 if fades else round_s * MOVE_LAG_ROUNDS
    if isinstance(retry_s, int | float) and "retry_max_s" not in given:
        values["retry_max_s"] = max(values["retry_max_s"], retry_s)
    return values


def _check_policy(source: _Source, settings: PolicySettings, *, limits_teams: bool) -> None:
    """Raises InvalidInput for an unknown policy, unknown parameters, or a policy that ignores limits of teams."""
    if is_in_file(settings.name) and not Path(settings.name).is_absolute():
        raise source.complaint("policy", "name", f"policy.name must have an absolute path, got {settings.name!r}")
    try:
        policy_named(settings.name)
    except InvalidInput as error:
        raise source.complaint("policy", "name", f"policy.name: {error}") from None
    try:
        policy = policy_named(settings.name, **settings.parameters)
    except InvalidInput as error:
        raise source.complaint("policy", "parameters", f"policy.parameters: {error.args[0]}") from None
    try:
        if limits_teams:
            check_counts_teams(policy)
    except InvalidInput as error:
        raise source.complaint("policy", "name", f"policy.name: {error}") from None


def _names(kind: type[Any]) -> list[str]:  # of the fields, of either library
    if kind is MechanismSettings:
        return [name for name in settings_values(MechanismSettings()) if name not in (*_NAMED, "in_order")]
    return [field.name for field in msgspec.structs.fields(kind)]


def _explained(
    section: str, kind: type[Any], error: msgspec.ValidationError, given: Mapping[str, object]
) -> tuple[str, str]:
    """The field and the message of an error."""
    if isinstance(error.__cause__, InvalidInput):
        text = error.__cause__.args[0]
        return text.split()[0], f"{section}.{text}"
    text, _, place = str(error).partition(" - at `$")
    if missing := re.search(r"missing required field `(\w+)`", text):
        return "", f"{section}.{missing[1]} must be given"
    field = re.match(r"\.(\w+)", place)
    name = field[1] if field else ""
    allowed = allowed_by(text)
    if text.startswith("Invalid enum value"):
        allowed = f"one of {', '.join(get_type_hints(kind)[name])}"
    return name, f"{section}.{name} must be {allowed}, got {shown(given.get(name))}"
