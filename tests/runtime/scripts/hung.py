"""Takes three steps, then makes no progress and ignores SIGTERM, as a loop inside a library would."""

import signal
import threading

from gavelpy import LeaseIterator

print("began", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in LeaseIterator(range(1, 11), lambda directory: (directory / "state").write_text("3")):
    print(f"step {step}", flush=True)
    if step == 3:
        threading.Event().wait()
