"""Which notifications a job's owner requests, and where they are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from gavelpy.errors import InvalidInput

_CHARACTERS_MAX = 2_000
_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class NotifyKind(StrEnum):
    """What a notification reports."""

    END = "end"  # the job is over: finished, failed for good or cancelled
    FAILURE = "failure"  # a lease failed or was lost with its node
    PREEMPTION = "preemption"  # a lease was stopped before the job was over


@dataclass(frozen=True)
class Notify:
    """Requested notifications of a job. Raises InvalidInput."""

    kinds: tuple[str, ...] = ()
    webhook: str = ""  # URL that receives a JSON object by POST
    mail: str = ""  # address

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(self.kinds))
        allowed = ", ".join(NotifyKind)
        if len(set(self.kinds)) < len(self.kinds) or not set(self.kinds) <= set(NotifyKind):
            raise InvalidInput(f"notify must be of {allowed}, each once, got {', '.join(self.kinds)[:80]!r}")
        if self.kinds and not (self.webhook or self.mail):
            raise InvalidInput(f"notify needs webhook or mail, got {', '.join(self.kinds)!r} and neither")
        if not self.kinds and (self.webhook or self.mail):
            raise InvalidInput(f"webhook and mail need notify, one or more of {allowed}, got none")
        if self.webhook:
            host_and_port(self.webhook)
        if self.mail and not _ADDRESS.fullmatch(self.mail):
            raise InvalidInput(f"mail must be an address such as ann@example.org, got {self.mail[:80]!r}")

    @classmethod
    def of(cls, value: Notify | Mapping[str, Any]) -> Notify:
        """The request of its fields by name, as in a snapshot of the scheduler's state."""
        return value if isinstance(value, Notify) else cls(**value)

    @property
    def redacted(self) -> Notify:
        """The same without the path of the URL, which can be a secret."""
        if not self.webhook:
            return self
        host, port, is_secure = host_and_port(self.webhook)
        return Notify(self.kinds, f"{'https' if is_secure else 'http'}://{host}:{port}/***", self.mail)


def host_and_port(url: str) -> tuple[str, int, bool]:
    """Host in lower case, port, and whether it is https; raises InvalidInput for what is no URL for a webhook."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host, port, parts = "", 0, urlsplit("")
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= _CHARACTERS_MAX
    if parts.scheme not in ("http", "https") or not host or parts.username is not None or not is_plain:
        raise InvalidInput("webhook must be a URL such as https://hooks.example.org/path, without a user name")
    return host, port, parts.scheme == "https"


NO_NOTIFICATIONS = Notify()
