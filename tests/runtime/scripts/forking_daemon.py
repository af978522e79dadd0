"""Starts a daemon that leaves its session, its parent and its environment, and would run for an hour."""

import contextlib
import os
import sys
import time
from pathlib import Path

print("began", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(3600)", "daemon-of-a-job"], {})
    os._exit(0)
time.sleep(1.0)
count = 0
for path in Path("/proc").glob("[0-9]*/cmdline"):
    with contextlib.suppress(OSError):
        count += b"daemon-of-a-job" in path.read_bytes()
print(f"daemons {count}", flush=True)
