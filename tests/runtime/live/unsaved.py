"""A script that reports its steps by LeaseIterator but never saves: `python unsaved.py STEPS PAUSE_S`."""

from __future__ import annotations

import sys
import time

from gavelpy import LeaseIterator

for _ in LeaseIterator(range(int(sys.argv[1]))):
    time.sleep(float(sys.argv[2]))
