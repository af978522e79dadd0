"""The exception tree (the type identifies the cause), and errors for optional dependencies that are not installed.

    GavelError
    ├── InvalidInput        the caller: names field, value and what is allowed, and file and line if there are any
    │   ├── NotFound        a job or node that does not exist or belongs to another user
    │   ├── JournalCorrupt  the journal cannot be read to its end: names the place and the last good event
    │   │   └── EventsLost  acknowledged events are missing from the journal, and the loss is not accepted yet
    │   └── JournalTooNew   a newer version of this package has written the journal; it is not damaged
    ├── JournalFailed       the journal's database failed or is unreachable; uncommitted events may be lost
    ├── JournalInUse        a live scheduler holds the journal; nothing was changed
    ├── LimitReached        a limit of the scheduler's configuration is reached
    ├── Stopping            the scheduler is shutting down; retry the request
    ├── FencedOut           a newer scheduler has taken over the journal; this one must stop
    ├── SolverFailed        no certified allocation; carries the solver's status and the problem's size
    ├── LeaseExpired        a job's lease ended before the job could stop in order
    ├── RemoteViolation     a peer violated the protocol
    ├── SchedulerUnreachable  a client received no answer from the scheduler in time
    ├── NotAllowed          the scheduler does not recognise the caller, or the caller lacks the role
    └── CallFailed          the scheduler could not carry out a call

The type determines the exit code of a command.
Broken invariants of this package are assertions. A job that cannot run is not an error: it has a `Reason`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final


class GavelError(Exception):
    """Base class of all exceptions of this package."""


class InvalidInput(GavelError, ValueError):
    """Invalid input from the caller; the message names field, value and accepted range.

    Readers of files set `file` and `line` (1-based, 0 = the file as a whole).
    """

    def __init__(self, message: str, *, file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.line = line

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        return place + super().__str__()

    def located(self, file: str, line: int = 0) -> InvalidInput:
        """The same error with its place."""
        return type(self)(self.args[0], file=file, line=line)


class NotFound(InvalidInput):
    """The caller named a job or node that does not exist or that belongs to another user."""


class JournalCorrupt(InvalidInput):
    """A journal is truncated or damaged; the message states where, and how many events before are good."""


class EventsLost(JournalCorrupt):
    """Events of a journal are lost; the message states which, what they may have contained, and what to do."""


class JournalTooNew(InvalidInput):
    """A newer version of this package has written something that this one cannot read: upgrade, and change nothing."""


class JournalFailed(GavelError, RuntimeError):
    """The journal's database refused a statement or is unreachable; reopen the journal to find out what was stored."""


class JournalInUse(GavelError, RuntimeError):
    """A live scheduler holds the journal; wait for it, or fence it out."""


class LimitReached(GavelError):
    """A limit of the scheduler's configuration is reached; the message has the limit."""


class Stopping(GavelError):
    """The scheduler is shutting down; the request may or may not be carried out. Retry with the same key."""


class FencedOut(GavelError, RuntimeError):
    """Another scheduler has taken over the journal; this one cannot write any more."""


class SolverFailed(GavelError, RuntimeError):
    """No solver returned an answer that could be certified."""

    def __init__(self, status: str, *, jobs: int, gpu_types: int, detail: str = "") -> None:
        tail = f": {detail}" if detail else ""
        super().__init__(f"no certified allocation ({status}) for {jobs} jobs on {gpu_types} GPU types{tail}")
        self.status = status
        self.jobs = jobs
        self.gpu_types = gpu_types


class RemoteViolation(GavelError):
    """A peer sent something that the protocol does not allow."""


class LeaseExpired(GavelError):
    """The job's lease ended before the job could stop in order; unsaved progress is lost."""


class SchedulerUnreachable(GavelError):
    """No answer in time. The call may or may not have been carried out; repeating it is safe."""


class NotAllowed(GavelError):
    """The scheduler does not recognise the caller, or the caller lacks the role for this call."""


class CallFailed(GavelError):
    """The scheduler could not carry out the call."""


EXTRA_OF: Final = {
    **dict.fromkeys(
        ("grpc", "grpc_health", "grpc_reflection", "google", "sqlalchemy", "psycopg", "aiohttp", "prometheus_client",
         "pynvml", "re2", "cryptography"),
        "runtime",
    ),
    **dict.fromkeys(("matplotlib", "jinja2"), "report"),
    **dict.fromkeys(("joblib", "pyarrow"), "sweep"),
    "distributed": "dask",
    "ray": "ray",
    "torch": "torch",
    **dict.fromkeys(("lightning", "transformers", "accelerate"), "frameworks"),
}  # fmt: skip


_LINE_CHARACTERS_MAX: Final = 4_000


def one_line(message: str) -> str:
    r"""`message` as commands print it: one line, control characters escaped, the middle of a very long one left out.

    >>> one_line("name must be text,\n  got \x1b[31m")
    'name must be text, got \\x1b[31m'
    """
    line = " ".join(message.split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    if len(line) <= _LINE_CHARACTERS_MAX:
        return line
    end = _LINE_CHARACTERS_MAX // 4
    return f"{line[: 3 * end]} ... ({len(line):,} characters) ... {line[-end:]}"


def require(what: str, modules: Iterable[str]) -> None:
    """Raises InvalidInput with the `pip install` line if any of these modules, which `what` needs, is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise InvalidInput(_sentence(what, missing))


def missing_extra(error: ModuleNotFoundError, what: str) -> str:
    """The message for a user whose command `what` failed to import a module; raises `error` if no extra provides it."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF:
        raise error
    return _sentence(what, [module])


def _sentence(what: str, modules: list[str]) -> str:
    extras = ",".join(sorted({EXTRA_OF[module] for module in modules}))
    return f"{what} needs {' and '.join(modules)}, not installed: pip install 'gavelpy[{extras}]'"
