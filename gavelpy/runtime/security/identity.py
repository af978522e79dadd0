"""The caller's identity, in a context variable of the call."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

import grpc

from gavelpy.errors import GavelError
from gavelpy.runtime.security.tokens import Role


class Operation(StrEnum):
    """An operation; its value is its name in messages. Faces (gRPC, a web page) map their methods to it."""

    GET_SERVER_INFO = "GetServerInfo"
    SUBMIT_JOBS = "SubmitJobs"
    LIST_JOBS = "ListJobs"
    GET_JOB = "GetJob"
    WAIT_JOBS = "WaitJobs"
    CANCEL_JOBS = "CancelJobs"
    LIST_NODES = "ListNodes"
    SET_NODE = "SetNode"
    GET_CLUSTER = "GetCluster"
    SET_POLICY = "SetPolicy"
    LIST_EVENTS = "ListEvents"
    READ_LOGS = "ReadLogs"
    CONNECT = "Connect"  # of an agent
    SERVE_LOGS = "ServeLogs"  # of an agent
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
    Operation.LIST_NODES: _PEOPLE,
    Operation.SET_NODE: _ADMINS,
    Operation.GET_CLUSTER: _PEOPLE,
    Operation.SET_POLICY: _ADMINS,
    Operation.LIST_EVENTS: _PEOPLE,
    Operation.READ_LOGS: _PEOPLE,
    Operation.CONNECT: _NODES,
    Operation.SERVE_LOGS: _NODES,
    Operation.DESCRIBE_SERVICES: _ALL,
}


class Refusal(GavelError):
    """Refuses a call: a gRPC status and a message."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


LOCAL_USER = "local"  # the caller without tokens: a scheduler for one user, on loopback


@dataclass(frozen=True)
class Caller:
    """A name and a role. `is_sole`: there are no tokens; the caller has all rights, also those of every node."""

    name: str
    role: Role
    is_sole: bool = False

    @property
    def is_admin(self) -> bool:
        """Whether it may see and change the jobs of all users."""
        return self.role is Role.ADMIN

    def may(self, operation: Operation) -> bool:
        """Whether its role may call this operation."""
        return self.is_sole or self.role in ROLES[operation]

    def check_node(self, node_id: str) -> None:
        """Raises Refusal unless it may connect as this node: node tokens are bound to the node of their name."""
        if not self.is_sole and (self.role is not Role.NODE or self.name != node_id):
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
