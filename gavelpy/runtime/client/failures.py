"""What can go wrong between a client and its scheduler. The type determines the command's exit code."""

from __future__ import annotations

from gavelpy.errors import GavelError


class SchedulerUnreachable(GavelError):
    """No answer in time. The call may or may not have been carried out; repeating it is safe."""


class NotAllowed(GavelError):
    """The scheduler does not recognise the caller, or the caller lacks the role for this call."""


class CallFailed(GavelError):
    """The scheduler could not carry out the call."""
