"""Exit codes of the commands, as docs/cli.md lists them."""

from __future__ import annotations

OK = 0
WORLD_FAILED = 1  # no certified answer, a job that failed, a scheduler that could not
BAD_INPUT = 2
UNREACHABLE = 3
NOT_ALLOWED = 4
TIMED_OUT = 124
INTERRUPTED = 130
READER_LEFT = 141
