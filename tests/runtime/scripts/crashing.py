"""Raises an error at its third step, each time."""

import time

print("began", flush=True)
for step in range(1, 11):
    time.sleep(0.1)
    if step == 3:
        raise RuntimeError("the loss is not a number")
    print(f"step {step}", flush=True)
