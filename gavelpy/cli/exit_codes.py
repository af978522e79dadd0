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

NAMES = {FAILED: "failed", BAD_INPUT: "bad_input", UNREACHABLE: "unreachable", NOT_ALLOWED: "not_allowed",
         INTERRUPTED: "interrupted"}  # fmt: skip
"""The codes of errors under `-o json`."""
