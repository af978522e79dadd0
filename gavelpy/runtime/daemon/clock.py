"""The scheduler's clock: seconds since the cluster began, monotonic even if the system date changes.

Within one boot of a host it follows the boot clock, also across restarts of the scheduler. After a reboot or on another
host only the date is available; `slack_s` bounds the error.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from gavelpy.errors import JournalCorrupt

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_clock_s() -> float:
    """Seconds since this host booted, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Id of this boot of this host."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class SchedulerClock:
    """A fixed offset to the clock of this boot, and the date at time 0."""

    epoch_s: float  # Unix time of time 0
    behind_s: float  # boot clock minus the scheduler's
    boot: str
    slack_s: float = 0.0  # time since the last event, by the date only

    def now_s(self) -> float:
        """The scheduler's time."""
        return boot_clock_s() - self.behind_s

    def wall_s(self, now_s: float) -> float:
        """Unix time of a time of the scheduler's clock."""
        return self.epoch_s + now_s

    @property
    def text(self) -> str:
        """Serialised, for the journal."""
        return json.dumps({"epoch_s": self.epoch_s, "behind_s": self.behind_s, "boot": self.boot})


def started(text: str, last_s: float, *, boot: str, boot_s: float, date_s: float) -> SchedulerClock:
    """The clock of a scheduler that starts.

    `text`: the stored clock of the previous scheduler, "" = none. `last_s`: time of the journal's last event.
    """
    if not text:
        return SchedulerClock(date_s - last_s, boot_s - last_s, boot)
    try:
        kept = json.loads(text)
        epoch_s, behind_s, older = float(kept["epoch_s"]), float(kept["behind_s"]), str(kept["boot"])
    except (LookupError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"the clock stored in the journal is corrupt: {error!r}") from None
    if older == boot and boot_s - behind_s >= last_s:
        return SchedulerClock(epoch_s, behind_s, boot)
    now_s = max(last_s, date_s - epoch_s)
    return SchedulerClock(epoch_s, boot_s - now_s, boot, slack_s=now_s - last_s)
