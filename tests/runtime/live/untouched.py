"""A training script without gavelpy: `python untouched.py FILE STEPS PAUSE_S` writes lease, node and step of each."""

from __future__ import annotations

import os
import sys
import time

where = f"{os.environ.get('GAVEL_LEASE', '-')} {os.environ.get('GAVEL_NODE_ID', '-')}"
file = os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
for step in range(int(sys.argv[2])):
    time.sleep(float(sys.argv[3]))
    os.write(file, f"{where} {step}\n".encode())
