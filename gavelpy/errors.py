"""The exception tree. The type says whose fault it is.

    GavelError
    ├── InvalidInput        the caller's: a field, its value and what is allowed (file and line where there is one)
    │   └── JournalCorrupt  a journal that cannot be read to its end: where, and up to which event it is good
    │       └── EventsLost  events that were acknowledged are gone from it, and nobody has accepted that yet
    ├── JournalFailed       the world's: the journal's database refused or is gone; what was under way may be lost
    ├── JournalInUse        the world's: a live scheduler has the journal; nothing was changed
    ├── Stopping            the world's: the scheduler ends; what was asked of it may be asked again
    ├── FencedOut           the world's: a newer scheduler has taken over the journal; this one must stop
    ├── SolverFailed        the world's: no certified answer; carries the solver's status and the problem's size
    ├── LeaseExpired        the world's: a job's lease was over before it could stop in good order
    └── RemoteViolation     a peer's: it broke the protocol

Broken promises of our own are assertions. A job that cannot run is no error: it has a `Reason`.
"""

from __future__ import annotations


class GavelError(Exception):
    """Root of everything this package raises on purpose."""


class InvalidInput(GavelError, ValueError):
    """The caller passed something unusable.

    `file` and `line` (1-based, 0 = the file as a whole) are set by readers of files; the message names field,
    value and the accepted range.
    """

    def __init__(self, message: str, *, file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.line = line

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        return place + super().__str__()

    def located(self, file: str, line: int = 0) -> InvalidInput:
        """The same complaint with the place it was found at."""
        return type(self)(self.args[0], file=file, line=line)


class JournalCorrupt(InvalidInput):
    """A journal is torn or damaged; the message says where and how many events before it are good."""


class EventsLost(JournalCorrupt):
    """Events of a journal are lost; the message says which, what they may have told, and what to do."""


class JournalFailed(GavelError, RuntimeError):
    """The journal's database refused a statement or cannot be reached; open the journal anew to learn what lasts."""


class JournalInUse(GavelError, RuntimeError):
    """A live scheduler holds the journal; it may be fenced out on purpose, or waited for."""


class Stopping(GavelError):
    """The scheduler ends; what was asked for may or may not be done. Ask again with the same key."""


class FencedOut(GavelError, RuntimeError):
    """Another incarnation of the scheduler has taken over the journal: nothing of this one is written any more."""


class SolverFailed(GavelError, RuntimeError):
    """No solver on the ladder gave an answer that could be certified."""

    def __init__(self, status: str, *, jobs: int, gpu_types: int, detail: str = "") -> None:
        tail = f": {detail}" if detail else ""
        super().__init__(f"no certified allocation ({status}) for {jobs} jobs on {gpu_types} GPU types{tail}")
        self.status = status
        self.jobs = jobs
        self.gpu_types = gpu_types


class RemoteViolation(GavelError):
    """A peer sent something the protocol does not allow."""


class LeaseExpired(GavelError):
    """The lease of this job was over before it could stop in good order; what it has not saved is lost."""
