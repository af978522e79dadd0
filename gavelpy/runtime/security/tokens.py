"""The tokens file: who may call the scheduler, in which role, until when.

A token is 32 random bytes, shown once, kept as its SHA-256. A slow hash such as scrypt protects passwords, which people
choose and others can guess; nobody guesses 256 random bits, so one round of SHA-256 is as safe and lets the scheduler
check every call. The file is JSON, readable by its owner only, written whole and renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput

PREFIX = "gavel_"  # so that scanners for leaked secrets can tell one
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_ALLOWED = "1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
_VERSION = 1
_ID_LENGTH = 10


class Role(StrEnum):
    """What a caller is."""

    USER = "user"  # submits jobs; sees and touches its own
    NODE = "node"  # an agent; may connect as the node of its token's name
    ADMIN = "admin"  # sees and touches all jobs, nodes and the policy


@dataclass(frozen=True)
class Token:
    """What is kept of a token."""

    name: str  # of the user, or the node id
    role: Role
    digest: str  # SHA-256, hexadecimal
    created_at_s: float  # Unix times
    expires_at_s: float = math.inf

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidInput(f"name of a token must be {NAME_ALLOWED}, got {self.name[:80]!r}")

    @property
    def id(self) -> str:
        """What names it in lists, and tells nothing of the secret."""
        return self.digest[:_ID_LENGTH]

    def is_expired(self, now_s: float) -> bool:
        """Whether its time is over; `now_s` is Unix time."""
        return now_s >= self.expires_at_s


def digest_of(secret: str) -> str:
    """What the file keeps of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True)
class TokenFile:
    """The file at `path`; made by the first `create`."""

    path: Path

    def create(self, name: str, role: Role, *, now_s: float, lifetime_s: float = math.inf) -> str:
        """A new token's secret, which is nowhere kept."""
        if not lifetime_s > 0:
            raise InvalidInput(f"lifetime of a token must be > 0 s, got {lifetime_s!r}")
        secret = PREFIX + secrets.token_urlsafe(32)
        token = Token(name, role, digest_of(secret), now_s, now_s + lifetime_s)
        with self._locked():
            self._write([*self.tokens(), token])
        return secret

    def revoke(self, which: str) -> list[Token]:
        """Removes the tokens of that name or id, and returns them; raises InvalidInput if there is none."""
        with self._locked():
            tokens = self.tokens()
            gone = [token for token in tokens if which in (token.name, token.id)]
            if not gone:
                raise InvalidInput(f"token must be a name or id in {str(self.path)!r}, got {which[:80]!r}")
            self._write([token for token in tokens if token not in gone])
        return gone

    def tokens(self) -> list[Token]:
        """All tokens, oldest first; none where there is no file. Raises InvalidInput with the place of the fault."""
        try:
            mode = self.path.stat().st_mode
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"tokens file must be a readable text file ({error})", file=str(self.path)) from None
        if stat.S_IMODE(mode) & 0o077:
            raise InvalidInput(
                f"tokens file must be open to its owner only (chmod 600), got mode {stat.S_IMODE(mode):04o}",
                file=str(self.path),
            )
        try:
            return _read(json.loads(text))
        except (ValueError, LookupError, TypeError) as error:  # InvalidInput is a ValueError
            raise InvalidInput(f"tokens file is not one that gavel wrote: {error}", file=str(self.path)) from None

    def _write(self, tokens: list[Token]) -> None:
        document = {"version": _VERSION, "tokens": [_plain(token) for token in tokens]}
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time; raises InvalidInput where the folder cannot be written to."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidInput(f"tokens file must lie in a folder that can be written to ({error})") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _plain(token: Token) -> dict[str, Any]:  # what JSON can say
    return {
        "name": token.name,
        "role": token.role.value,
        "sha256": token.digest,
        "created_at_s": token.created_at_s,
        "expires_at_s": token.expires_at_s if math.isfinite(token.expires_at_s) else None,
    }


def _read(document: Any) -> list[Token]:  # Any: whatever the file holds
    if document["version"] != _VERSION:
        raise InvalidInput(f"version must be {_VERSION}, got {document['version']!r}")
    return [_token(entry) for entry in document["tokens"]]


def _token(entry: Any) -> Token:
    digest, expires = entry["sha256"], entry["expires_at_s"]
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InvalidInput(f"sha256 must be 64 hexadecimal digits, got {str(digest)[:80]!r}")
    lasts_until_s = math.inf if expires is None else float(expires)
    return Token(entry["name"], Role(entry["role"]), digest, float(entry["created_at_s"]), lasts_until_s)
