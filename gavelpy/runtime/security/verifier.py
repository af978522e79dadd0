"""Finds the caller of a call by its token."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from gavelpy.errors import InvalidInput
from gavelpy.runtime.security.identity import SOLE_CALLER, Caller
from gavelpy.runtime.security.tokens import Token, TokenFile, digest_of

logger = logging.getLogger(__name__)

SCHEME = "Bearer "
_SECRET_CHARACTERS_MAX = 512
_GONE = (0, 0, 0, 0)


class Verifier(Protocol):
    """Identifies callers by their `authorization` metadata."""

    is_sure: bool  # False = the tokens are unavailable: new calls are refused, open streams continue

    def caller(self, authorization: str, now_s: float) -> Caller | None:
        """The caller with this authorization at `now_s` (Unix time); None = unknown."""
        ...


class NoTokens:
    """A scheduler for one user, on loopback: every caller is that user."""

    is_sure = True

    def caller(self, authorization: str, now_s: float) -> Caller | None:  # noqa: ARG002 the protocol's
        """Always the sole caller."""
        return SOLE_CALLER


class FileVerifier:
    """Reads the tokens file again when it changes. While it is unreadable all calls are refused."""

    def __init__(self, path: Path) -> None:
        self._file = TokenFile(path)
        self._by_digest: dict[str, Token] = {token.digest: token for token in self._file.tokens()}
        self._seen = self._version()
        self.is_sure = True

    def caller(self, authorization: str, now_s: float) -> Caller | None:
        """The owner of the token, if it is in the file and has not expired."""
        self._follow()
        if not authorization.startswith(SCHEME) or len(authorization) > _SECRET_CHARACTERS_MAX:
            return None
        token = self._by_digest.get(digest_of(authorization.removeprefix(SCHEME)))
        return Caller(token.name, token.role) if token is not None and not token.is_expired(now_s) else None

    def _follow(self) -> None:
        version = self._version()
        if version == self._seen:
            return
        self._seen = version
        try:
            if version == _GONE:  # possibly being replaced: no reason to end open streams
                raise InvalidInput("tokens file must be there; it was removed", file=str(self._file.path))
            self._by_digest = {token.digest: token for token in self._file.tokens()}
        except InvalidInput as error:
            self._by_digest = {}
            self.is_sure = False
            logger.error("tokens file cannot be read; all calls are refused", extra={"detail": str(error)})
        else:
            self.is_sure = True
            logger.info("tokens file read", extra={"tokens": len(self._by_digest)})

    def _version(self) -> tuple[int, int, int, int]:
        try:
            found = self._file.path.stat()
        except OSError:
            return _GONE
        return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode


def verifier_of(tokens: Path | None) -> Verifier:
    """A verifier for the tokens file, or for one user without a file. Raises InvalidInput for an invalid file."""
    return NoTokens() if tokens is None else FileVerifier(tokens)


def missing_tokens(tokens: Path | None) -> str:
    """A warning if the configured tokens file does not exist; empty = no warning."""
    if tokens is None or tokens.exists():
        return ""
    return (
        f"security.tokens = {str(tokens)!r} does not exist: all calls are refused until `gavel token create` creates it"
    )
