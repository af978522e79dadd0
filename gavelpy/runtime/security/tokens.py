"""The tokens file: name, role and expiry of each token.

A token is 32 random bytes, shown once and stored as its SHA-256. Slow hashes such as scrypt protect guessable
passwords; 256 random bits cannot be guessed, so one SHA-256 is as safe and fast enough to check every call. The file is
JSON, readable by its owner only, and replaced atomically.
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

PREFIX = "gavel_"  # lets scanners for leaked secrets recognise a token
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_CHARACTERS = "letters, digits, '.', '_' or '-', the first a letter or digit"
NAME_ALLOWED = f"1 to 128 {NAME_CHARACTERS}"
NODE_ID = re.compile(rf"{NAME.pattern}(?:/[a-z0-9][a-z0-9._-]{{0,62}})?")  # with a GPU type: a part of a node
_VERSION = 1
_ID_LENGTH = 10


class Role(StrEnum):
    """Role of a caller."""

    USER = "user"  # submits jobs; sees and changes its own
    NODE = "node"  # an agent; may connect as the node of its token's name
    ADMIN = "admin"  # sees and changes all jobs, nodes and the policy


@dataclass(frozen=True)
class Token:
    """The record of a token, without its secret."""

    name: str  # of the user, or the node id
    role: Role
    digest: str  # SHA-256, hexadecimal
    created_at_s: float  # Unix times
    expires_at_s: float = math.inf
    team: str = ""  # of jobs that its user submits with it; empty = none

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidInput(f"name of a token must be {NAME_ALLOWED}, got {self.name[:80]!r}")
        if self.team and not NAME.fullmatch(self.team):
            raise InvalidInput(f"team of a token must be {NAME_ALLOWED}, got {self.team[:80]!r}")
        if self.team and self.role is Role.NODE:
            raise InvalidInput(f"team of a token must be empty where its role is node, got {self.team!r}")

    @property
    def id(self) -> str:
        """Identifies it in lists without revealing the secret."""
        return self.digest[:_ID_LENGTH]

    def is_expired(self, now_s: float) -> bool:
        """Whether it has expired; `now_s` is Unix time."""
        return now_s >= self.expires_at_s


def digest_of(secret: str) -> str:
    """The digest that the file stores for a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True)
class TokenFile:
    """The file at `path`; the first `create` makes it."""

    path: Path

    def create(self, name: str, role: Role, *, now_s: float, lifetime_s: float = math.inf, team: str = "") -> str:
        """Creates a token and returns its secret, which is not stored."""
        if not lifetime_s > 0:
            raise InvalidInput(f"lifetime of a token must be > 0 s, got {lifetime_s!r}")
        secret = PREFIX + secrets.token_urlsafe(32)
        token = Token(name, role, digest_of(secret), now_s, now_s + lifetime_s, team)
        with self._locked():
            self._write([*self.tokens(), token])
        return secret

    def revoke(self, which: str) -> list[Token]:
        """Removes and returns the tokens of this name or id; raises InvalidInput if there is none."""
        with self._locked():
            tokens = self.tokens()
            gone = [token for token in tokens if which in (token.name, token.id)]
            if not gone:
                raise InvalidInput(f"token must be a name or id in {str(self.path)!r}, got {which[:80]!r}")
            self._write([token for token in tokens if token not in gone])
        return gone

    def tokens(self) -> list[Token]:
        """All tokens, oldest first; empty if there is no file. Raises InvalidInput."""
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
            raise InvalidInput(f"tokens file is not valid: {error}", file=str(self.path)) from None

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
        """Excludes other writers; raises InvalidInput if the directory is not writable."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidInput(f"tokens file must be in a writable directory ({error})") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _plain(token: Token) -> dict[str, Any]:  # JSON values
    return {
        "name": token.name,
        "role": token.role.value,
        "sha256": token.digest,
        "created_at_s": token.created_at_s,
        "expires_at_s": token.expires_at_s if math.isfinite(token.expires_at_s) else None,
        **({"team": token.team} if token.team else {}),
    }


def _read(document: Any) -> list[Token]:  # Any: parsed JSON
    if document["version"] != _VERSION:
        raise InvalidInput(f"version must be {_VERSION}, got {document['version']!r}")
    return [_token(entry) for entry in document["tokens"]]


def _token(entry: Any) -> Token:
    digest, expires = entry["sha256"], entry["expires_at_s"]
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InvalidInput(f"sha256 must be 64 hexadecimal digits, got {str(digest)[:80]!r}")
    lasts_until_s = math.inf if expires is None else float(expires)
    return Token(
        entry["name"], Role(entry["role"]), digest, float(entry["created_at_s"]), lasts_until_s, entry.get("team", "")
    )
