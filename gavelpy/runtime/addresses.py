"""Addresses of the schedulers of a cluster, separated by commas: one of them leads, the others stand by."""

from __future__ import annotations

import re

from gavelpy.errors import InvalidInput
from gavelpy.runtime.security.exposure import is_loopback

ADDRESSES_MAX = 9
STALE_OK = "gavel-stale-ok"  # metadata of a call that a standby may answer, and of its answer:
STALE_SEQUENCE, STALE_AGE_MS, STALE_LEADER = "gavel-stale-sequence", "gavel-stale-age-ms", "gavel-stale-leader"
STANDS_BY = "a standby; "  # begin of a standby's refusal
SILENT_S = 3.0  # without an answer for so long, the next of several addresses is tried
_PORT = r"(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_ADDRESS = re.compile(rf"unix:[^\s\0,]+|(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%A-Za-z]+\]):{_PORT}")


def is_address(text: str) -> bool:
    """Whether this is HOST:PORT, [IPv6]:PORT or unix:PATH."""
    return bool(_ADDRESS.fullmatch(text))


def addresses_of(text: str) -> tuple[str, ...]:
    """The addresses, at least one. Raises InvalidInput, which names the field `scheduler`."""
    found = tuple(part.strip() for part in text.split(","))
    for one in found:
        if not is_address(one):
            where = f" in {text[:200]!r}" if len(found) > 1 else ""
            raise InvalidInput(f"scheduler must be HOST:PORT, [IPv6]:PORT or unix:PATH, got {one[:200]!r}{where}")
    if len(set(found)) < len(found) or len(found) > ADDRESSES_MAX:
        raise InvalidInput(f"scheduler must be at most {ADDRESSES_MAX} different addresses, got {text[:200]!r}")
    return found


def are_loopback(text: str) -> bool:
    """Whether all of these addresses are on this host."""
    return all(is_loopback(one) for one in addresses_of(text))


class Turns:
    """The addresses in turn: the one in use, and the next one after a call without an answer."""

    def __init__(self, text: str) -> None:
        self.all = addresses_of(text)
        self._at = 0
        self._failed = 0  # addresses in a row

    @property
    def current(self) -> str:
        """The address in use."""
        return self.all[self._at]

    @property
    def are_several(self) -> bool:
        """Whether there is another one to try."""
        return len(self.all) > 1

    def failed(self) -> bool:
        """Moves to the next address; whether all have failed since the last answer, so that a pause is due."""
        self._at = (self._at + 1) % len(self.all)
        self._failed += 1
        return self._failed % len(self.all) == 0

    def answered(self) -> None:
        """The address in use answers."""
        self._failed = 0
