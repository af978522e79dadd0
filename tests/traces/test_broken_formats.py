"""Each broken variant of each format gives one line: file, line, field, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.reader import read_trace
from tests.traces.histories import SAMPLES, write_sample

CASES = {f"{sample}: {name}": (sample, name) for sample in SAMPLES for name in SAMPLES[sample].breaks}


@pytest.mark.parametrize(("sample", "name"), CASES.values(), ids=CASES)
def test_broken_file_gives_one_line_with_its_place(tmp_path: Path, sample: str, name: str) -> None:
    old, new, line, value = SAMPLES[sample].breaks[name]
    path = write_sample(tmp_path, sample, old, new)

    with pytest.raises(InvalidInput) as caught:
        read_trace(path, from_format=SAMPLES[sample].format)

    message = str(caught.value)
    where, _, rest = message.partition(": ")
    assert where.startswith(str(tmp_path))
    assert (where.rpartition(":")[2] == str(line)) if line else where.endswith(tuple(SAMPLES[sample].files))
    assert " must " in rest
    assert value in rest.rpartition("got ")[2]
    assert "\n" not in message


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_format_has_ten_broken_variants(sample: str) -> None:
    assert len(SAMPLES[sample].breaks) >= 10
