"""A job without the iterator: counts to a number in a file, and obeys SIGTERM.

`python plain.py FILE COUNT PAUSE_S` writes one line per step, so that the next run continues where this one stopped.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

path, count, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
done = path.read_text().count("counted") if path.exists() else 0


def tell(line: str) -> None:
    """Appends a line with one write."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def stop(*_: object) -> None:
    """Records the stop and exits."""
    tell("stopped")
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
tell("began")
while done < count:
    time.sleep(pause_s)
    tell("counted")
    done += 1
tell("finished")
