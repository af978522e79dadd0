"""Words to the service manager (systemd's sd_notify); nothing where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Tells the service manager, as in `READY=1`; whether there was one that took it."""
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
