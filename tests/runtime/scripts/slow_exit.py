"""Takes all its steps, then needs more than a round to write its results."""

import time
from pathlib import Path

from gavelpy import LeaseIterator

print("began", flush=True)
for step in LeaseIterator(range(1, 11), lambda directory: (directory / "state").write_text("10")):
    time.sleep(0.1)
    print(f"step {step}", flush=True)
time.sleep(8.0)
Path("results").write_text("complete")
