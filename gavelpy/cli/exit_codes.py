"""Exit codes of the commands, as docs/cli.md lists them."""

from __future__ import annotations

OK = 0
FAILED = 1  # a job failed, the scheduler could not do it, or no allocation could be certified
BAD_INPUT = 2
UNREACHABLE = 3
NOT_ALLOWED = 4
TIMED_OUT = 124
INTERRUPTED = 130
PIPE_CLOSED = 141
