"""The caller's identity, in a context variable of the call."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import grpc

from gavelpy.errors import GavelError
from gavelpy.runtime.security.roles import ROLES, Operation
from gavelpy.runtime.security.tokens import Role


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
