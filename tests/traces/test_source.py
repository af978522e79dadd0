"""Files are read in bounded memory, plain or compressed, and damage is named with its line."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.json_stream import json_elements
from gavelpy.traces.node_events import read_node_events
from gavelpy.traces.reader import read_trace
from gavelpy.traces.source import LINE_MAX, TraceFile

HEADER = "id,arrival_s,steps_total\n"
ROWS = HEADER + "".join(f"job-{i},{i},{100 + i}\n" for i in range(4_000))
# Reads a trace with 1 GiB of address space; a line of 2 GB cannot be in memory as a whole.
LIMITED = """
import resource, sys
from gavelpy.errors import InvalidInput
from gavelpy.traces.reader import read_trace
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
try:
    read_trace(sys.argv[1], from_format=sys.argv[2])
except InvalidInput as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_compressed_trace_reads_as_the_plain_one_with_its_own_hash(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"t.csv{suffix}"
    file.write_bytes(gzip.compress(ROWS.encode()) if suffix else ROWS.encode())

    trace = read_trace(file)

    assert len(trace) == 4_000
    assert trace.provenance["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_zst_is_refused_with_advice_where_no_module_can_unpack_it(tmp_path: Path) -> None:
    file = tmp_path / "t.csv.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd damaged")

    with pytest.raises(InvalidInput, match=r"t\.csv\.zst: file must be"):
        read_trace(file)


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.999])
def test_truncated_archive_is_refused_with_the_last_line(tmp_path: Path, kept: float) -> None:
    data = gzip.compress(ROWS.encode())
    file = tmp_path / "t.csv.gz"
    file.write_bytes(data[: int(len(data) * kept)])

    with pytest.raises(InvalidInput, match=r"t\.csv\.gz(:\d+)?: file must be a complete archive .*got 'one that ends"):
        read_trace(file)


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(ROWS.encode()))
    data[200:300] = b"\xff" * 100
    file = tmp_path / "t.csv.gz"
    file.write_bytes(bytes(data))

    with pytest.raises(InvalidInput, match="complete archive"):
        read_trace(file)


def test_line_of_the_longest_length_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(b"a\n" + b"x" * (LINE_MAX - 1) + b"\n" + b"y" * LINE_MAX + b"\n")
    lines = TraceFile(file).lines()

    assert [len(next(lines)), len(next(lines))] == [2, LINE_MAX]
    with pytest.raises(InvalidInput, match=r"t:3: line must be at most 1,048,576 bytes long, got 'more'"):
        next(lines)


@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("csv", b"id,arrival_s,steps_total\n"),
        ("gavel", b"a\tb"),
        ("philly", b"timestamp,duration,num_gpus,gpu_time,cluster\n"),
        ("philly", b'[{"attempts": "'),
        ("slurm", b"JobID|State|Submit|ElapsedRaw|AllocTRES\n"),
        ("pai", b"j1,worker,"),
        ("kueue", b'{"items": [{"kind": "'),
    ],
)
def test_line_of_two_gigabytes_is_refused_in_bounded_memory(tmp_path: Path, format: str, head: bytes) -> None:
    file = tmp_path / "t"
    with file.open("wb") as stream:  # a sparse file: NULs without end
        stream.write(head)
        os.truncate(stream.fileno(), 2 * 10**9)

    done = subprocess.run([sys.executable, "-c", LIMITED, file, format], capture_output=True, text=True, check=True)

    assert "must be" in done.stdout
    assert done.stdout.count("\n") == 1


def test_spot_file_of_two_gigabytes_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    file = tmp_path / "us-west-2a_v100_1.json"
    with file.open("wb") as stream:
        stream.write(b'{"metadata": {"gap_seconds": 1}, "data": [1')
        os.truncate(stream.fileno(), 2 * 10**9)

    with pytest.raises(InvalidInput, match="file must be at most 67,108,864 characters long, got 'more'"):
        read_node_events([file])


def test_hash_counts_what_a_reader_leaves(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text('[{"a": 1}, {"a": 2}]' + "\n" * 200_000)
    source = TraceFile(file)

    assert [one.value for one in json_elements(source)] == [{"a": 1}, {"a": 2}]
    assert source.sha256() == hashlib.sha256(file.read_bytes()).hexdigest()


def test_elements_have_the_lines_at_which_they_start(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text('{"kind": "List",\n"items": [\n1,\n\n{"a":\n[2]}, "x"\n]}')

    found = [(one.value, one.place.line) for one in json_elements(TraceFile(file), "items")]

    assert found == [(1, 3), ({"a": [2]}, 5), ("x", 6)]


def test_large_array_is_read_in_pieces(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text("[" + ",\n".join(f'{{"i": {i}, "text": "{"x" * (i % 997)}"}}' for i in range(2_000)) + "]")

    found = [(one.value["i"], one.place.line) for one in json_elements(TraceFile(file))]

    assert found == [(i, i + 1) for i in range(2_000)]


@pytest.mark.parametrize("text", ["[1, 2", "[1 2]", '[{"a": 1}, {"a": }]', '[{"a": 1, "a": 2}]', "{}", "[1,]", "[nul]"])
def test_bad_array_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)

    with pytest.raises(InvalidInput, match=r"t\.json:1: .* must be "):
        list(json_elements(TraceFile(file)))
