"""Who the caller is, known to everything that a call runs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import grpc

from gavelpy.runtime.security.refusal import Refusal
from gavelpy.runtime.security.tokens import Role

LOCAL_USER = "local"  # the caller where there are no tokens: a scheduler of one user, on loopback


@dataclass(frozen=True)
class Caller:
    """A name and a role. `is_sole`: there are no tokens, and the caller may do everything, also as any node."""

    name: str
    role: Role
    is_sole: bool = False

    @property
    def is_admin(self) -> bool:
        """Whether it sees and touches everybody's jobs."""
        return self.role is Role.ADMIN

    def check_node(self, node_id: str) -> None:
        """Raises Refusal unless it may speak for this node: node tokens are bound to the node of their name."""
        if not self.is_sole and (self.role is not Role.NODE or self.name != node_id):
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the token of {self.role.value} {self.name!r} may not connect as node {node_id[:80]!r}",
            )


SOLE_CALLER = Caller(LOCAL_USER, Role.ADMIN, is_sole=True)
_caller: ContextVar[Caller] = ContextVar("gavel_caller")


def caller() -> Caller:
    """Of the call that is being served. A handler that no interceptor has seen is a bug of ours: LookupError."""
    return _caller.get()


def set_caller(who: Caller) -> None:
    """Says who calls, for the rest of this task."""
    _caller.set(who)
