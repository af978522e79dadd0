"""What can go wrong between a client and its scheduler. The type says which exit code the command ends with."""

from __future__ import annotations

from gavelpy.errors import GavelError, InvalidInput


class SchedulerUnreachable(GavelError):
    """Nobody answered in time; whether the call was carried out is not known, and repeating it does no harm."""


class NotAllowed(GavelError):
    """The scheduler does not know the caller, or does not let it do this."""


class CallFailed(GavelError):
    """The scheduler could not do what was asked."""


class NoSuchThing(InvalidInput):
    """The caller named a job or node that is not there, or not theirs."""
