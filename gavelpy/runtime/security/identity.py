"""Who calls, and what they may do: operations and their roles, the caller of a call, and the caller that a token names.

The caller is in a context variable of the call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import grpc

from gavelpy.errors import GavelError, InvalidInput
from gavelpy.runtime.security.tokens import Role, Token, TokenFile, digest_of


class Operation(StrEnum):
    """An operation; its value is its name in messages. Faces (gRPC, a web page) map their methods to it."""

    GET_SERVER_INFO = "GetServerInfo"
    SUBMIT_JOBS = "SubmitJobs"
    LIST_JOBS = "ListJobs"
    GET_JOB = "GetJob"
    WAIT_JOBS = "WaitJobs"
    CANCEL_JOBS = "CancelJobs"
    CANCEL_APP = "CancelApp"
    CHANGE_JOBS = "ChangeJobs"
    LIST_NODES = "ListNodes"
    SET_NODE = "SetNode"
    RESERVE_NODES = "ReserveNodes"
    DELETE_RESERVATION = "DeleteReservation"
    LIST_RESERVATIONS = "ListReservations"
    GET_CLUSTER = "GetCluster"
    SET_POLICY = "SetPolicy"
    GET_USAGE = "GetUsage"
    GET_SHADOW_PRICES = "GetShadowPrices"
    LIST_EVENTS = "ListEvents"
    READ_LOGS = "ReadLogs"
    OPEN_TUNNEL = "OpenTunnel"
    CONNECT = "Connect"  # of an agent
    SERVE_LOGS = "ServeLogs"  # of an agent
    SERVE_TUNNEL = "ServeTunnel"  # of an agent
    DESCRIBE_SERVICES = "ServerReflectionInfo"


_ALL = frozenset(Role)
_PEOPLE = frozenset({Role.USER, Role.ADMIN})
_ADMINS = frozenset({Role.ADMIN})
_NODES = frozenset({Role.NODE})

ROLES: Mapping[Operation, frozenset[Role]] = {
    Operation.GET_SERVER_INFO: _ALL,
    Operation.SUBMIT_JOBS: _PEOPLE,
    Operation.LIST_JOBS: _PEOPLE,
    Operation.GET_JOB: _PEOPLE,
    Operation.WAIT_JOBS: _PEOPLE,
    Operation.CANCEL_JOBS: _PEOPLE,
    Operation.CANCEL_APP: _PEOPLE,
    Operation.CHANGE_JOBS: _PEOPLE,
    Operation.LIST_NODES: _PEOPLE,
    Operation.SET_NODE: _ADMINS,
    Operation.RESERVE_NODES: _ADMINS,
    Operation.DELETE_RESERVATION: _ADMINS,
    Operation.LIST_RESERVATIONS: _PEOPLE,
    Operation.GET_CLUSTER: _PEOPLE,
    Operation.SET_POLICY: _ADMINS,
    Operation.GET_USAGE: _PEOPLE,
    Operation.GET_SHADOW_PRICES: _PEOPLE,
    Operation.LIST_EVENTS: _PEOPLE,
    Operation.READ_LOGS: _PEOPLE,
    Operation.OPEN_TUNNEL: _PEOPLE,
    Operation.CONNECT: _NODES,
    Operation.SERVE_LOGS: _NODES,
    Operation.SERVE_TUNNEL: _NODES,
    Operation.DESCRIBE_SERVICES: _ALL,
}


class Refusal(GavelError):
    """Refuses a call: a gRPC status, a message, and after how long the same call may succeed; 0 = unknown."""

    def __init__(self, code: grpc.StatusCode, message: str, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.wait_s = code, wait_s


LOCAL_USER = "local"  # the caller without tokens: a scheduler for one user, on loopback


@dataclass(frozen=True)
class Caller:
    """A name and a role. `is_sole`: there are no tokens; the caller has all rights, also those of every node."""

    name: str
    role: Role
    is_sole: bool = False
    team: str = ""  # of its jobs, as its token names it; empty = none

    @property
    def is_admin(self) -> bool:
        """Whether it may see and change the jobs of all users."""
        return self.role is Role.ADMIN

    def may(self, operation: Operation) -> bool:
        """Whether its role may call this operation."""
        return self.is_sole or self.role in ROLES[operation]

    def check_node(self, node_id: str) -> None:
        """Raises Refusal unless it may connect as this node: node tokens are bound to the node of their name.

        Its parts by GPU type, `n3/a100`, belong to it.
        """
        if not self.is_sole and (self.role is not Role.NODE or self.name != node_id.partition("/")[0]):
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the token of {self.role.value} {self.name!r} may not connect as node {node_id[:80]!r}",
            )


SOLE_CALLER = Caller(LOCAL_USER, Role.ADMIN, is_sole=True)
_caller: ContextVar[Caller] = ContextVar("gavel_caller")


def caller() -> Caller:
    """The caller of the current call. Raises LookupError outside the interceptor, which is a bug."""
    return _caller.get()


def set_caller(identity: Caller) -> None:
    """Sets the caller for the rest of this task."""
    _caller.set(identity)


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
        return (
            Caller(token.name, token.role, team=token.team)
            if token is not None and not token.is_expired(now_s)
            else None
        )

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
