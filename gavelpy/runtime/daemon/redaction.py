"""Environments of jobs as answers, lists and events show them: every name, and the values that are surely no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"
_SHOWN = re.compile(
    r"PATH|HOME|LANG|LC_[A-Z]+|TZ|TMPDIR|TERM|SHELL|PYTHON(PATH|UNBUFFERED|HASHSEED|FAULTHANDLER)|VIRTUAL_ENV|LD_LIBRARY_PATH"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_(HOME|LAUNCH_BLOCKING|DEVICE_ORDER)|NCCL_(DEBUG|IB_DISABLE|SOCKET_IFNAME)"
)


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """The same names; the value of a name that is not known to hold no secret is replaced by ***."""
    return {name: value if _SHOWN.fullmatch(name) else HIDDEN for name, value in environment.items()}
