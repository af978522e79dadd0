"""A process that matches one regular expression against lines, so that a hostile one hangs nobody but it.

Run by its path under `python -I -S`. Standard input: a JSON text (the pattern), then JSON lists of texts, one a line.
Standard output: one JSON value a line: "" or what is wrong with the pattern, then for each list the indices that match.
Standard library only.
"""

from __future__ import annotations

import json
import re
import resource
import sys

MEMORY_BYTES_MAX = 512 << 20
CPU_S_MAX = 30


def main() -> int:
    """Answers until its input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    pattern = json.loads(sys.stdin.readline())
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        _say(str(error) or type(error).__name__)
        return 0
    _say("")
    for line in sys.stdin:
        texts = json.loads(line)
        _say([index for index, text in enumerate(texts) if compiled.search(text)])
    return 0


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
