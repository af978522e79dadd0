"""Reads the short texts of job options and job files: arrays, warnings, GPU types, nodes, secrets, rates."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence

from gavelpy.errors import InvalidInput

ARRAY_MAX = 10_000
VALUE_ALLOWED = "a value of completion such as linear:worth=5:time_s=3600"
NODES_ALLOWED = "names of nodes such as n1,n2, each once"
_DIGITS_MAX = 9
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def array_indices(text: str) -> list[int]:
    """`0-9`, `0-9:2` or `1,5,7` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        span, colon, step = part.strip().partition(":")
        first, dash, last = span.partition("-")
        numbers = [first, last if dash else first, step if colon else "1"]
        if not all(n.isascii() and n.isdecimal() and len(n) <= _DIGITS_MAX for n in numbers) or int(numbers[2]) == 0:
            raise InvalidInput(f"array must look like 0-9, 0-9:2 or 1,5,7, got {text[:60]!r}")
        indices = range(int(numbers[0]), int(numbers[1]) + 1, int(numbers[2]))
        if not indices or len(indices) + len(found) > ARRAY_MAX:
            raise InvalidInput(f"array must have 1 to {ARRAY_MAX:,} indices, got {text[:60]!r}")
        found.extend(indices)
    if len(set(found)) < len(found):
        raise InvalidInput(f"array must name each index once, got {text[:60]!r}")
    return found


def array_and_limit(text: str) -> tuple[str, int]:
    """`0-9%4` as ("0-9", 4): at most 4 of them compete for GPUs at once; 0 = no limit."""
    indices, percent, window = text.partition("%")
    if not percent:
        return indices, 0
    if not (window.isascii() and window.isdecimal() and 0 < len(window) <= _DIGITS_MAX and int(window) > 0):
        raise InvalidInput(f"array must end in %N with N >= 1 jobs at once, got {text[:60]!r}")
    return indices, int(window)


def warning(text: str) -> tuple[float, int]:
    """`USR1@60` as (60.0, 10): seconds before the end of a lease, and the number of the signal sent then."""
    name, at, seconds = text.partition("@")
    try:
        number, before_s = signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"], float(seconds)
    except (KeyError, ValueError):
        number, before_s = signal.SIGUSR1, math.nan
    if not at or not 0 < before_s < math.inf:
        raise InvalidInput(f"--warning must look like USR1@60 (a signal and seconds), got {text[:60]!r}")
    return before_s, int(number)


def gpu_types(text: str) -> tuple[str, ...]:
    """The types of `v100|p100`."""
    found = tuple(part.strip() for part in text.split("|"))
    if not all(found) or len(set(found)) < len(found) or not all(_GPU_TYPE.fullmatch(name) for name in found):
        raise InvalidInput(f"constraint must be GPU types such as v100|p100, each once, got {text[:60]!r}")
    return found


def nodes(option: str, text: str) -> tuple[str, ...]:
    """The names of `n1,n2`."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(_NODE.fullmatch(name) for name in found) or len(set(found)) < len(found):
        raise InvalidInput(f"{option} must be {NODES_ALLOWED}, got {text[:60]!r}")
    return found


def pairs(option: str, texts: Sequence[str], separator: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as {"a": "1", "b": "2"}."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition(separator)
        if not sign or not name:
            raise InvalidInput(f"{option} must look like NAME{separator}VALUE, got {text[:60]!r}")
        if name in found:
            raise InvalidInput(f"{option} must name each once, got {name!r} twice")
        found[name] = value
    return found


def secrets(texts: Sequence[str]) -> dict[str, str]:
    """`["KEY", "DB=DB_PASSWORD"]` as names of secrets by variable: {"KEY": "KEY", "DB_PASSWORD": "DB"}."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, variable = text.partition("=")
        if not name or (sign and not variable):
            raise InvalidInput(f"secret must look like NAME or NAME=VARIABLE, got {text[:60]!r}")
        if (variable or name) in found:
            raise InvalidInput(f"secret must set each variable once, got {variable or name!r} twice")
        found[variable or name] = name
    return found


def rates(texts: Sequence[str]) -> dict[str, float]:
    """`["v100:10,k80:1", "v100@4:36"]` as {"v100": 10.0, "k80": 1.0, "v100@4": 36.0}."""
    return _numbers("--rate", "v100:10,k80:1.5 or v100@4:36 (steps/s, here on 4 GPUs)", texts)


def efficiency(texts: Sequence[str]) -> dict[str, float]:
    """`["2:0.95,4:0.85"]` as {"2": 0.95, "4": 0.85}."""
    return _numbers("--efficiency", "2:0.95,4:0.85 (GPUs:efficiency)", texts)


def _numbers(option: str, example: str, texts: Sequence[str]) -> dict[str, float]:
    found = pairs(option, [part.strip() for text in texts for part in text.split(",")], ":")
    try:
        return {name: float(number) for name, number in found.items()}
    except ValueError:
        raise InvalidInput(f"{option} must look like {example}, got {','.join(texts)[:60]!r}") from None
