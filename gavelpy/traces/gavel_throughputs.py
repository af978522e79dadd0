"""Throughputs in Gavel's JSON: `{gpu type: {"('model', gpus)": {"null": alone, "('model2', gpus)": [first, second]}}}`.

Rates are steps/s of the whole job on that many GPUs; 0 = does not fit there. Types that end in `_unconsolidated` (the
GPUs of a gang are on different nodes) are left out by default. If a file has a pair in both orders, the first counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.job import GPUS_MAX
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.traces.fields import read_text
from gavelpy.traces.json_text import JsonText, parse_json

UNCONSOLIDATED = "_unconsolidated"
_ALONE = "null"
_KEY = re.compile(r"\(\s*(?P<quote>['\"])(?P<model>[^\\]+?)(?P=quote)\s*,\s*(?P<gpus>[0-9]{1,7})\s*\)")
_Key = tuple[str, int]


def read_gavel_throughputs(path: str | Path, *, keep_unconsolidated: bool = False) -> ThroughputTable:
    """The table in `path`, provenance measured."""
    return parse_gavel_throughputs(read_text(path), str(path), keep_unconsolidated=keep_unconsolidated)


def parse_gavel_throughputs(text: str, file: str = "", *, keep_unconsolidated: bool = False) -> ThroughputTable:
    """The table in `text`; `file` is for messages and the rows' source."""
    document = parse_json(text, file)
    types = _mapping(document, (), document.value, "an object of GPU types")
    kept = tuple(t for t in types if keep_unconsolidated or not t.endswith(UNCONSOLIDATED))
    if not kept:
        raise document.error((), "an object with a GPU type", types)
    found = _Rates()
    for gpu_type in kept:
        _read_type(document, gpu_type, types[gpu_type], found)
    keys = tuple(dict.fromkeys(key for _, key in found.alone))
    row = {key: i for i, key in enumerate(keys)}
    rates: Floats = np.full((len(keys), len(kept)), math.nan)
    for (gpu_type, key), rate in found.alone.items():
        rates[row[key], kept.index(gpu_type)] = rate
    pair_rows, pair_rates = _pairs(document, found, row, kept)
    return ThroughputTable(
        keys,
        kept,
        rates,
        np.full(rates.shape, int(Provenance.MEASURED), dtype=np.int64),
        (Path(file).name,) * len(keys),
        np.array(pair_rows, dtype=np.int64).reshape(-1, 2),
        pair_rates,
    )


@dataclass
class _Rates:
    """The rates of the file, by (GPU type, key) and by (GPU type, key, other key)."""

    alone: dict[tuple[str, _Key], float] = field(default_factory=dict)
    paired: dict[tuple[str, _Key, _Key], tuple[tuple[str, ...], float, float]] = field(default_factory=dict)


def _read_type(document: JsonText, gpu_type: str, entry: object, found: _Rates) -> None:
    for key_text, rates in _mapping(document, (gpu_type,), entry, "an object of \"('model', gpus)\" keys").items():
        path = (gpu_type, key_text)
        key = _key(document, path, key_text)
        inner = _mapping(document, path, rates, "an object with 'null' (the rate alone)")
        if _ALONE not in inner:
            raise document.error(path, "an object with 'null' (the rate alone)", list(inner))
        if (gpu_type, key) in found.alone:
            raise document.error(path, "given once", key)
        for other_text, value in inner.items():
            if other_text == _ALONE:
                found.alone[gpu_type, key] = _rate(document, (*path, _ALONE), value)
                continue
            other = _key(document, (*path, other_text), other_text)
            if other[1] != key[1]:
                raise document.error((*path, other_text), f"a job type with the same number of GPUs ({key[1]})", other)
            if not isinstance(value, list) or len(value) != 2:
                raise document.error((*path, other_text), "two rates [first, second]", value)
            first, second = (_rate(document, (*path, other_text, i), rate) for i, rate in enumerate(value))
            if (gpu_type, other, key) not in found.paired:
                found.paired.setdefault((gpu_type, key, other), ((*path, other_text), first, second))


def _pairs(
    document: JsonText, found: _Rates, row: Mapping[_Key, int], gpu_types: tuple[str, ...]
) -> tuple[list[tuple[int, int]], Floats]:
    """Rows of keys of each pair, lower row first, P of them, and their rates (P, 2, T)."""
    index: dict[tuple[int, int], int] = {}
    entries: list[tuple[int, int, float, float]] = []
    for (gpu_type, key, other), (path, first, second) in found.paired.items():
        if other not in row:
            raise document.error(path, "a pair of jobs that have a rate alone", other)
        a, b = row[key], row[other]
        if a > b:
            a, b, first, second = b, a, second, first
        entries.append((index.setdefault((a, b), len(index)), gpu_types.index(gpu_type), first, second))
    rates: Floats = np.full((len(index), 2, len(gpu_types)), math.nan)
    for pair, column, first, second in entries:
        rates[pair, :, column] = first, second
    return list(index), rates


def _mapping(document: JsonText, path: tuple[str, ...], value: object, allowed: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise document.error(path, allowed, value)
    return value


def _key(document: JsonText, path: tuple[str, ...], text: str) -> _Key:
    match = _KEY.fullmatch(text)
    if match is None or not 1 <= int(match["gpus"]) <= GPUS_MAX:
        raise document.error(path, f"keyed \"('model', gpus)\" with gpus in [1, {GPUS_MAX}]", text)
    return match["model"], int(match["gpus"])


def _rate(document: JsonText, path: tuple[str | int, ...], value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e300:
        raise document.error(path, "a finite number >= 0", value)
    return float(value)
