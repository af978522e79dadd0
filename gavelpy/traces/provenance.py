"""The source of a converted trace, in a file next to it: format, SHA-256, rule and seed.

`trace.csv.provenance.json` has the hash of `trace.csv`; it counts only as long as that file has not changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.model.job import Trace
from gavelpy.traces.fields import parse_json, read_text, write_text

SUFFIX = ".provenance.json"


def write_provenance(trace: Trace, target: Path, version: str) -> None:
    """Writes the provenance of a trace that this version of the package wrote to `target`."""
    found = {
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
        "converted_by": f"gavelpy {version}",
        "source": dict(trace.provenance),
    }
    write_text(_beside(target), json.dumps(found, indent=1) + "\n")


def with_source(provenance: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The provenance of a file that was read, with the source from which it was converted.

    A file next to it that is not ours, or is of another version of the trace, does not count.
    """
    beside = _beside(path)
    if not beside.is_file():
        return dict(provenance)
    try:
        found = parse_json(read_text(beside), str(beside)).value
    except InvalidInput:
        return {**provenance, "source": f"unreadable: {beside.name}"}
    if not isinstance(found, dict) or found.get("sha256") != provenance.get("sha256"):
        return {**provenance, "source": f"unknown: {beside.name} is of another version of this file"}
    return {**provenance, "source": found.get("source")}


def _beside(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)
