"""The way to the scheduler: a channel with TLS and token as configured, and how long to wait before trying again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import NodeConfig

MESSAGE_BYTES_MAX: Final = 4 << 20
FIRST_WAIT_S: Final = 0.1
WAIT_S_MAX: Final = 2.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", 4 * MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class Link:
    """How to reach the scheduler. Files are read once: InvalidInput where they cannot be."""

    def __init__(self, config: NodeConfig) -> None:
        self._target = config.scheduler
        self._credentials: grpc.ChannelCredentials | None = None
        token = config.token()
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if config.tls_ca:
            own = (
                (_pem("tls_key", config.tls_key), _pem("tls_certificate", config.tls_certificate))
                if config.tls_key
                else (None, None)
            )
            self._credentials = grpc.ssl_channel_credentials(_pem("tls_ca", config.tls_ca), *own)

    def open(self) -> grpc.aio.Channel:
        """A new channel."""
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._target, options=_OPTIONS)
        return grpc.aio.secure_channel(self._target, self._credentials, options=_OPTIONS)


class Backoff:
    """Waits between attempts: they double from one to the next, and each is drawn from the upper half of its time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._wait_s = FIRST_WAIT_S

    def succeeded(self) -> None:
        """Begins with short waits again."""
        self._wait_s = FIRST_WAIT_S

    def next_s(self) -> float:
        """How long to wait now."""
        wait_s = self._wait_s
        self._wait_s = min(2 * wait_s, WAIT_S_MAX)
        return wait_s * self._rng.uniform(0.5, 1.0)


def _pem(field: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InvalidInput(f"{field} must be a PEM file that can be read, got {path!r} ({error.strerror})") from None
