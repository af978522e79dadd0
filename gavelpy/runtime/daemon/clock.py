"""The scheduler's time: seconds since the cluster began, which never go back, whatever the date is set to.

Within one boot of a machine it follows the clock of that boot, over restarts too. Over a boot or on another machine
only the date is left, and `slack_s` says by how much it may be wrong.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from gavelpy.errors import JournalCorrupt

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_clock_s() -> float:
    """Seconds since this machine booted, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The same for all processes of one boot of one machine."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class SchedulerClock:
    """A fixed distance to the clock of this boot, and the date at time 0."""

    epoch_s: float  # Unix time of time 0
    behind_s: float  # the boot's clock less the scheduler's
    boot: str
    slack_s: float = 0.0  # time since the last event that only the date vouches for

    def now_s(self) -> float:
        """The scheduler's time."""
        return boot_clock_s() - self.behind_s

    def wall_s(self, now_s: float) -> float:
        """Unix time of a moment of the scheduler's."""
        return self.epoch_s + now_s

    @property
    def text(self) -> str:
        """To be kept with the journal."""
        return json.dumps({"epoch_s": self.epoch_s, "behind_s": self.behind_s, "boot": self.boot})


def started(text: str, last_s: float, *, boot: str, boot_s: float, date_s: float) -> SchedulerClock:
    """The clock of a scheduler that starts: `text` is what the last one kept ("" = there was none), `last_s` the time
    of the journal's last event."""
    if not text:
        return SchedulerClock(date_s - last_s, boot_s - last_s, boot)
    try:
        kept = json.loads(text)
        epoch_s, behind_s, older = float(kept["epoch_s"]), float(kept["behind_s"]), str(kept["boot"])
    except (LookupError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"the clock kept with the journal is not whole: {error!r}") from None
    if older == boot and boot_s - behind_s >= last_s:
        return SchedulerClock(epoch_s, behind_s, boot)
    now_s = max(last_s, date_s - epoch_s)
    return SchedulerClock(epoch_s, boot_s - now_s, boot, slack_s=now_s - last_s)
