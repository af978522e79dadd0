"""Entry point of the shim, run by its path under `python -I -S`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    from gavelpy.runtime.shim.supervisor import main

    sys.exit(main(sys.argv[1:]))
