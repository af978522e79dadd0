"""The roles that may call each method. Methods that are not listed are refused."""

from __future__ import annotations

from gavelpy.runtime.security.tokens import Role

_ALL = frozenset(Role)
_PEOPLE = frozenset({Role.USER, Role.ADMIN})
_ADMINS = frozenset({Role.ADMIN})
_NODES = frozenset({Role.NODE})

# Open without a token, for load balancers and service managers.
OPEN = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})

_SCHEDULER = {
    "GetServerInfo": _ALL,
    "SubmitJobs": _PEOPLE,
    "ListJobs": _PEOPLE,
    "GetJob": _PEOPLE,
    "WaitJobs": _PEOPLE,
    "CancelJobs": _PEOPLE,
    "ListNodes": _PEOPLE,
    "SetNode": _ADMINS,
    "GetCluster": _PEOPLE,
    "SetPolicy": _ADMINS,
    "ListEvents": _PEOPLE,
    "ReadLogs": _PEOPLE,
}
_AGENT = {"Connect": _NODES, "ServeLogs": _NODES}
_REFLECTION = {"ServerReflectionInfo": _ALL}

ROLES: dict[str, frozenset[Role]] = {
    f"/{service}/{method}": roles
    for service, methods in {
        "gavelpy.v1.SchedulerService": _SCHEDULER,
        "gavelpy.v1.AgentService": _AGENT,
        "grpc.reflection.v1alpha.ServerReflection": _REFLECTION,
    }.items()
    for method, roles in methods.items()
}


def roles_that_may(method: str) -> frozenset[Role]:
    """The roles that may call a method by its full name, /package.Service/Method."""
    return ROLES.get(method, frozenset())
