"""Hides values in jobs' environments that may be secrets, for answers and events."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"
_SHOWN = re.compile(
    r"PATH|HOME|LANG|LC_[A-Z]+|TZ|TMPDIR|TERM|SHELL|PYTHON(PATH|UNBUFFERED|HASHSEED|FAULTHANDLER)|VIRTUAL_ENV|LD_LIBRARY_PATH"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_(HOME|LAUNCH_BLOCKING|DEVICE_ORDER)|NCCL_(DEBUG|IB_DISABLE|SOCKET_IFNAME)"
)


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with *** in place of all values except those of variables that are known not to be secrets."""
    return {name: value if _SHOWN.fullmatch(name) else HIDDEN for name, value in environment.items()}
