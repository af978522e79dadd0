"""Notify the service manager (systemd's sd_notify protocol)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


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
