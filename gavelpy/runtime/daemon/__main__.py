"""`gavel-scheduler`, and `python -m gavelpy.runtime.daemon`.

The scheduler's child processes import the program's main module, so this one loads nothing until it is called.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command; returns its exit code."""
    from gavelpy.runtime.daemon.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
