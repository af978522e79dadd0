"""Keeps gRPC's C++ library from writing to standard error; call it before gRPC is imported."""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    """Turns off the library's own log, which repeats every failed connection in lines of C++, unless the user set it.

    Each failure reaches the caller as a status, which our messages and logs report.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
