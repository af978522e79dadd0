"""A user's secrets: a file in the home directory, which `gavel secret` writes and nodes read with the user's rights.

    ~/.config/gavel/secrets.json     {"version": 1, "secrets": {"WANDB_API_KEY": "..."}}, mode 0600

A job names the secrets that it needs, and the node on which it starts reads their values. So no value passes through
the scheduler, its journal or an agent. Standard library only: the shim loads this.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.whole_files import read_text_whole, write_text_whole

FILE: Final = ".config/gavel/secrets.json"  # below the home directory
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
NAME_ALLOWED: Final = "1 to 128 letters, digits and '_', no digit first"
VALUE_BYTES_MAX: Final = 64 << 10
_VERSION: Final = 1


def secrets_file(home: str) -> Path:
    """The file of the user with this home directory."""
    return Path(home) / FILE


def read_secrets(file: Path) -> dict[str, str]:
    """All secrets by name; empty if there is no file. The caller must have the user's rights.

    Raises RemoteViolation if the file is not the user's own, is open to others, is damaged, or is of another version. A
    message never contains a value.
    """
    _check_is_private(file)
    text = read_text_whole(file)
    if text is None:
        return {}
    try:
        content = json.loads(text)
        version, found = content["version"], content["secrets"]
        is_valid = isinstance(version, int) and all(
            NAME.fullmatch(name) and isinstance(value, str) for name, value in found.items()
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise RemoteViolation(f"{file} must be a file of secrets, as `gavel secret set` writes it")
    if version != _VERSION:
        raise RemoteViolation(f"{file} must be of version {_VERSION}, got {version}: a newer gavel has written it")
    return dict(found)


def values_of(wanted: Mapping[str, str], file: Path) -> dict[str, str]:
    """The values of secrets by variable. `wanted`: names of secrets by variable. Raises RemoteViolation."""
    known = read_secrets(file)
    missing = sorted({name for name in wanted.values() if name not in known})
    if missing:
        names = ", ".join(missing)
        raise RemoteViolation(f"{file} has no secret {names} (gavel secret set {missing[0]})")
    return {variable: known[name] for variable, name in wanted.items()}


def set_secret(file: Path, name: str, value: str) -> None:
    """Stores a value. Raises InvalidInput for a name or a value that is not allowed."""
    _check_name(name)
    if not value or "\0" in value or len(value.encode()) > VALUE_BYTES_MAX:
        raise InvalidInput(f"the value of {name} must have 1 to {VALUE_BYTES_MAX} bytes without NUL")
    _change(file, lambda secrets: {**secrets, name: value})


def delete_secret(file: Path, name: str) -> None:
    """Removes a secret. Raises InvalidInput if there is none of this name."""

    def without(secrets: dict[str, str]) -> dict[str, str]:
        if name not in secrets:
            raise InvalidInput(
                f"NAME must be one of the secrets ({', '.join(sorted(secrets)) or 'none'}), got {name!r}"
            )
        return {other: value for other, value in secrets.items() if other != name}

    _change(file, without)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInput(f"NAME must be {NAME_ALLOWED}, got {name[:80]!r}")


def _change(file: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(file.parent):
        try:
            secrets = change(read_secrets(file))
        except RemoteViolation as violation:
            raise InvalidInput(str(violation)) from None
        write_text_whole(file, json.dumps({"version": _VERSION, "secrets": dict(sorted(secrets.items()))}, indent=1))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds a lock of this directory, so that of two changes at once none is lost."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_is_private(file: Path) -> None:
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise RemoteViolation(f"{file} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise RemoteViolation(f"{file} must be a plain file, not a link or a directory")
    if found.st_uid != os.geteuid():
        raise RemoteViolation(f"{file} must belong to uid {os.geteuid()}, who uses it; it belongs to {found.st_uid}")
    if found.st_mode & 0o077:
        raise RemoteViolation(f"{file} must be closed to others (chmod 600), got mode {stat.S_IMODE(found.st_mode):o}")
