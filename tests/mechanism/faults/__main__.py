"""Runs fault episodes and prints their speed: `python -m tests.mechanism.faults SEED [EPISODES [FAULTS]]`."""

from __future__ import annotations

import logging
import sys
import time

from tests.mechanism.faults.world import World


def main() -> None:
    """Stops at the first violated invariant and names the seed."""
    seed, episodes, faults = (int(word) for word in [*sys.argv[1:], *("0", "10", "1000")[len(sys.argv) - 1 :]])
    logging.disable()
    began_s, count = time.process_time(), 0
    for number in range(seed, seed + episodes):
        count += World(number, faults).run().faults
    spent_s = time.process_time() - began_s
    sys.stdout.write(f"{count:,} faults in {spent_s:.1f} s of CPU: {count / spent_s:,.0f} a second\n")


if __name__ == "__main__":
    main()
