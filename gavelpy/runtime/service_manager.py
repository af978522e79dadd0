"""Output for a service manager (systemd): a log on stderr with one JSON object per line, and sd_notify messages.

On a terminal the log is text. gRPC's own log is off.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(*, verbose: bool) -> None:
    """Logs of this process go to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    for name in ("asyncio", "grpc"):
        logging.getLogger(name).setLevel(logging.WARNING)


def quiet_grpc() -> None:
    """Turns off the log of gRPC's C++ library, unless the user set it. Call it before gRPC is imported.

    The library logs every failed connection; each failure also reaches the caller as a status.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, ASCII only."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """One line of text per record."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, message, then the fields."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        text = f"{time} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def sd_notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Sends a state such as `READY=1`; returns whether a service manager has received it."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.connect(target)
            channel.sendall(state.encode())
        except OSError:
            return False
    return True
