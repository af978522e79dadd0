"""The worker process of `storage`, which accesses shared storage and can be abandoned when it hangs.

Run by its path under `python -I -S`. Standard input: JSON lines ["module:function", [argument, ...]]. Standard output,
a JSON line each: {"value": ...}, or {"error": [number, text, file]} for an OSError. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Answers requests until its input ends."""
    for line in sys.stdin:
        where, arguments = json.loads(line)
        module, _, name = where.partition(":")
        try:
            answer = {"value": getattr(import_module(module), name)(*arguments)}
        except OSError as error:
            answer = {"error": [error.errno, error.strerror or str(error), str(error.filename or "")]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    main()
