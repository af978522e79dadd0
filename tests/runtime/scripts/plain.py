"""Knows nothing of gavelpy: ten steps, no checkpoint."""

import sys
import time

print("began", flush=True)
for step in range(1, 11):
    time.sleep(0.5)
    print(f"step {step}", flush=True)
sys.exit(0)
