"""Merges measured rates into the text of a throughput table: new rows, or replacements of rows with the same key.

All other rows stay unchanged. The module needs no numpy, so it can run on the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gavelpy.errors import InvalidInput
from gavelpy.traces.fields import csv_table, csv_text

_COLUMNS = ("job_type", "gpus", "gpu_type", "rate_steps_per_s", "provenance", "source")
_OPTIONAL = ("pair_job_type", "pair_rate_steps_per_s")
_PROVENANCE = "measured"


@dataclass(frozen=True)
class MeasuredRate:
    """One row: the rate of a whole job on all its GPUs."""

    job_type: str
    gpus: int
    gpu_type: str
    rate_steps_per_s: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.rate_steps_per_s < float("inf"):
            raise InvalidInput(f"rate_steps_per_s must be a finite number > 0, got {self.rate_steps_per_s!r}")

    @property
    def cells(self) -> dict[str, str]:
        """The row by column. Rates have five digits: measurements are not more exact."""
        rate = float(f"{self.rate_steps_per_s:.5g}")
        values = (self.job_type, str(self.gpus), self.gpu_type, repr(rate), _PROVENANCE, self.source)
        return dict(zip(_COLUMNS, values, strict=True))


def with_measured(text: str, rates: Sequence[MeasuredRate], file: str = "") -> str:
    """The table `text` ("" = a new table) with these rates; `file` is for messages."""
    rows = _rows(text, file) if text else []
    fresh = {_key(rate.cells): rate.cells for rate in rates}
    merged = [fresh.pop(_key(row), row) if not row.get("pair_job_type") else row for row in rows]
    merged += fresh.values()
    header = [*_COLUMNS, *(name for name in _OPTIONAL if any(row.get(name) for row in merged))]
    return csv_text(header, [[row.get(name, "") for name in header] for row in merged])


def _rows(text: str, file: str) -> list[dict[str, str]]:
    table = csv_table(text, file)
    table.require(_COLUMNS[:4], (*_COLUMNS[4:], *_OPTIONAL))
    return [dict(zip(table.header, cells, strict=True)) for _, cells in table.rows]


def _key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["job_type"], row["gpus"], row["gpu_type"]
