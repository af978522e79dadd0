"""Calls of a client: how many at once, and the statuses of those that fail, as errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from gavelpy.errors import CallFailed, GavelError, InvalidInput, NotAllowed, NotFound, SchedulerUnreachable
from gavelpy.runtime.addresses import STANDS_BY
from gavelpy.runtime.security.exposure import PUSHBACK

CALLS_MAX = 900  # concurrent, on one connection; the scheduler accepts 1,000
_UNREACHABLE = (  # the last one: the scheduler stopped during the call
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in gRPC's description of a failed handshake
_NOT_ALLOWED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_BAD_INPUT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.OUT_OF_RANGE)


class CallLimit:
    """Bounds the concurrent calls of one connection, over all threads: beyond its limit gRPC queues them silently."""

    def __init__(self, calls_max: int = CALLS_MAX) -> None:
        self._calls_max, self._count = calls_max, 0
        self._lock = threading.Lock()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Counts a call while it lasts; raises CallFailed if there are as many as the connection allows."""
        with self._lock:
            if self._count >= self._calls_max:
                raise CallFailed(
                    f"this client has {self._count} open calls and streams, the most that one connection allows: close "
                    "some of them, or open another Client"
                )
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1


def is_transient(code: grpc.StatusCode) -> bool:
    """Whether the same call may succeed a moment later."""
    return code in _UNREACHABLE


def error_of(code: grpc.StatusCode, detail: str, scheduler: str) -> GavelError:
    """The exception for the status of a failed call."""
    if code in _UNREACHABLE and _UNTRUSTED in detail:
        return SchedulerUnreachable(
            f"the certificate of the scheduler at {scheduler} is not trusted: check that tls_ca (GAVEL_TLS_CA) names "
            "the authority that signed it, and that it is issued for this host name and still valid"
        )
    if code in _UNREACHABLE and detail.startswith(STANDS_BY):
        return SchedulerUnreachable(f"the scheduler at {scheduler} does not lead: {detail}")
    if code in _UNREACHABLE:
        return SchedulerUnreachable(f"the scheduler at {scheduler} does not answer ({_brief(detail)})")
    if code in _NOT_ALLOWED:
        return NotAllowed(f"not allowed: {detail}")
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(detail)
    if code in _BAD_INPUT:
        return InvalidInput(detail)
    return CallFailed(f"the scheduler at {scheduler} answers {code.name}: {detail}")


def _brief(detail: str) -> str:
    """gRPC's description of a failed connection, without the addresses it repeats."""
    return detail.rpartition("; last error: ")[2][:200] or "no reason given"


def status_of(error: Any) -> tuple[grpc.StatusCode, str]:  # Any: an RpcError that is also a Call, which has no type
    return error.code(), error.details() or ""


def wait_s_of(error: Any) -> float:  # Any: as above
    """How long a caller above its limits must wait, by the scheduler's answer; 0 = unknown."""
    given = dict(error.trailing_metadata() or ()).get(PUSHBACK, "")
    return int(given) / 1_000 if given.isdecimal() else 0.0
