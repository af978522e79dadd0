"""The operations of the scheduler, and the roles that may call each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

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
