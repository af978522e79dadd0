"""The exception tree. The type says whose fault it is.

    GavelError
    ├── InvalidInput        the caller's: a field, its value and what is allowed (file and line where there is one)
    │   └── JournalCorrupt  a journal that cannot be read to its end: where, and up to which event it is good
    ├── SolverFailed        the world's: no certified answer; carries the solver's status and the problem's size
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
