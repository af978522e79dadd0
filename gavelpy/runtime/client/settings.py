"""Client settings: address, token, TLS. Precedence: flags, environment, the user's file, the system's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.model.toml_text import parsed_toml
from gavelpy.runtime.addresses import addresses_of
from gavelpy.runtime.user_paths import user_path

SCHEDULER = "127.0.0.1:7077"
TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 3_600.0
SYSTEM_FILE = Path("/etc/gavel/config.toml")
_SECRET_CHARACTERS_MAX = 512


@dataclass(frozen=True)
class ClientSettings:
    """Address of the scheduler and the credentials to present. An empty string means none."""

    scheduler: str = SCHEDULER  # HOST:PORT, several separated by commas
    token: str = ""
    token_file: str = ""
    tls_ca: str = ""  # PEM of the authority that signed the scheduler's certificate; given = TLS
    tls_certificate: str = ""  # the client's own, if the scheduler requires one
    tls_key: str = ""
    snapshot_directory: str = ""  # where archives of code are put; empty = the scheduler names it
    timeout_s: float = TIMEOUT_S  # a call is retried for this long

    def __post_init__(self) -> None:
        addresses_of(self.scheduler)
        if not 0 < self.timeout_s <= TIMEOUT_S_MAX:
            raise InvalidInput(f"timeout_s must be in (0, {TIMEOUT_S_MAX:g}], got {self.timeout_s!r}")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidInput("tls_certificate and tls_key must both be given or neither")
        if self.tls_certificate and not self.tls_ca:
            raise InvalidInput("tls_certificate needs tls_ca, the authority of the scheduler's certificate")

    @property
    def secret(self) -> str:
        """The token, read from `token_file` if given so; empty = none."""
        if self.token or not self.token_file:
            return _checked_secret("token", self.token)
        file = user_path("token_file", self.token_file)
        try:
            content = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidInput(f"token_file must be a readable file, got {self.token_file!r} ({error})") from None
        return _checked_secret("token_file", content.strip())


def load_settings(flags: Mapping[str, str], environment: Mapping[str, str]) -> ClientSettings:
    """Each setting from the first place that has it. Raises InvalidInput, which names the place of a bad value."""
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config")
    variables = {name: environment.get(_variable(name), "") for name in _names()}
    places: list[tuple[str, Mapping[str, object]]] = [
        ("", {name: value for name, value in flags.items() if value}),
        ("environment", {name: value for name, value in variables.items() if value}),
        *((str(path), _file(path)) for path in (home / "gavel" / "config.toml", SYSTEM_FILE)),
    ]
    merged: dict[str, str] = {}
    files: dict[str, str] = {}  # by setting, the file that it is from
    for place, values in reversed(places):
        if {"token", "token_file"} & set(values):  # either of them overrides both from a place of lower precedence
            merged.pop("token", None)
            merged.pop("token_file", None)
        merged |= {name: _text(place, name, value) for name, value in values.items()}
        files |= dict.fromkeys(values, place if Path(place).is_absolute() else "")
    timeout = merged.pop("timeout_s", str(TIMEOUT_S))
    try:
        return ClientSettings(**merged, timeout_s=_seconds(timeout))
    except InvalidInput as error:
        raise error.located(files.get(error.args[0].split()[0], "")) from None


def _names() -> list[str]:
    return [field.name for field in fields(ClientSettings)]


def _variable(name: str) -> str:
    return f"GAVEL_{name.upper()}"


def _file(path: Path) -> dict[str, object]:
    """The contents of a configuration file; empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InvalidInput(f"configuration cannot be read ({error.strerror})", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"text must be UTF-8: {error}", file=str(path)) from None
    found = parsed_toml(text, str(path))
    for name in found:
        if name not in _names():
            raise InvalidInput(f"unknown field {name!r}; the fields are {', '.join(_names())}", file=str(path))
    return found


def _text(place: str, name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(f"{name} must be a string or a number, got {value!r}", file=place)
    return str(value)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"timeout_s must be a number of seconds, got {text[:60]!r}") from None


def _checked_secret(field: str, secret: str) -> str:
    if len(secret) > _SECRET_CHARACTERS_MAX or not (secret.isascii() and secret.isprintable()):
        raise InvalidInput(f"{field} must hold one token, as `gavel token create` printed it")
    return secret
