"""From the status of a call that failed to the exception that a client raises."""

from __future__ import annotations

import grpc

from gavelpy.errors import GavelError, InvalidInput
from gavelpy.runtime.client.failures import CallFailed, NoSuchThing, NotAllowed, SchedulerUnreachable

_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in the description that gRPC gives of a failed handshake
_NOT_ALLOWED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_BAD_INPUT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.OUT_OF_RANGE)


def is_worth_repeating(code: grpc.StatusCode) -> bool:
    """Whether the same call may be answered a moment later."""
    return code in _UNREACHABLE


def failure_of(code: grpc.StatusCode, detail: str, scheduler: str) -> GavelError:
    """The exception for a status."""
    if code in _UNREACHABLE and _UNTRUSTED in detail:
        return SchedulerUnreachable(
            f"the certificate of the scheduler at {scheduler} is not trusted: check that tls_ca (GAVEL_TLS_CA) names "
            "the authority that signed it, and that it is issued for this host name and still valid"
        )
    if code in _UNREACHABLE:
        return SchedulerUnreachable(f"the scheduler at {scheduler} does not answer ({_brief(detail)})")
    if code in _NOT_ALLOWED:
        return NotAllowed(f"not allowed: {detail}")
    if code is grpc.StatusCode.NOT_FOUND:
        return NoSuchThing(detail)
    if code in _BAD_INPUT:
        return InvalidInput(detail)
    return CallFailed(f"the scheduler at {scheduler} answers {code.name}: {detail}")


def _brief(detail: str) -> str:
    """gRPC's description of a connection that failed, without the addresses it repeats."""
    return detail.rpartition("; last error: ")[2][:200] or "no reason given"
