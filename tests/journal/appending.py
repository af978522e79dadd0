"""Appends to a journal in a process that can be killed, and prints what is durable.

`python -m tests.journal.appending URL SEED`: the event with sequence s is JobCancelled(s - 1); each line is the last
durable sequence.
"""

from __future__ import annotations

import random
import sys

from gavelpy.journal.codec import encode_state
from tests.journal.stores import begun, cancelled, submission

SNAPSHOT_EVERY = 50


def main(url: str, seed: int) -> None:
    draw = random.Random(seed)
    with begun(url) as store:
        last = store.load().sequence
        while True:
            before, count = last, draw.choice([1, 1, 1, 2, 7, 100])
            last = store.append(cancelled(last, count), [submission(f"from-{before}", first_job=before)])
            sys.stdout.write(f"{last}\n")
            sys.stdout.flush()
            if last // SNAPSHOT_EVERY > before // SNAPSHOT_EVERY and draw.random() < 0.3:
                store.save_snapshot(last, encode_state({"sequence": last}))
                store.truncate(last)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
