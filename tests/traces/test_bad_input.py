"""Any error in a file is one InvalidInput, which names the place, the value and the accepted range."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.problem_json import read_problem
from gavelpy.traces.reader import read_throughputs, read_trace
from tests.traces.samples import CSV_HEADER, CSV_TABLE, csv_row, gavel_line, make_problem, problem_with_job

TABLE_HEADER = CSV_TABLE.split("\n", 1)[0]


def row(**changes: str) -> str:
    """A trace CSV with one row."""
    return f"{CSV_HEADER}\n{csv_row(**changes)}\n"


# (contents, line, field, the part of the value that the message shows)
TRACES = {
    "no job": (f"{CSV_HEADER}\n", 0, "file", "no job"),
    "missing column": ("id,arrival_s\na,0\n", 1, "'steps_total'", "id,arrival_s"),
    "unknown column": ("id,arrival_s,steps_total,gpu\na,0,1,1\n", 1, "column", "'gpu'"),
    "rate without a type": ("id,arrival_s,steps_total,rate_\na,0,1,1\n", 1, "column", "'rate_'"),
    "repeated column": ("id,arrival_s,steps_total,id\na,0,1,a\n", 1, "header", "'id'"),
    "short row": (f"{row()}a,0\n", 3, "row", "2 cells"),
    "long row": (f"{CSV_HEADER}\n{csv_row()},9\n", 2, "row", "11 cells"),
    "open quote": (row(id='"a'), 2, "row", "unexpected end"),
    "huge cell": (row(job_type="x" * 200_000), 2, "row", "field larger"),
    "empty id": (row(id=""), 2, "id", "''"),
    "comma in an id": (row(id='"a,b"'), 2, "id", "'a,b'"),
    "duplicate id": (f"{row()}{csv_row()}\n", 3, "id", "'a'"),
    "times out of order": (f"{row(arrival_s='5')}{csv_row(id='b')}\n", 3, "arrival_s", "0.0"),
    "negative time": (row(arrival_s="-1"), 2, "arrival_s", "'-1'"),
    "NaN time": (row(arrival_s="nan"), 2, "arrival_s", "'nan'"),
    "infinite time": (row(arrival_s="1e999"), 2, "arrival_s", "'1e999'"),
    "negative steps": (row(steps_total="-3"), 2, "steps_total", "'-3'"),
    "no steps": (row(steps_total="0"), 2, "steps_total", "'0'"),
    "a word for steps": (row(steps_total="many"), 2, "steps_total", "'many'"),
    "half a GPU": (row(gpus="0.5"), 2, "gpus", "'0.5'"),
    "a billion GPUs": (row(gpus="1000000000"), 2, "gpus", "'1000000000'"),
    "digits without end": (row(gpus="1" * 5000), 2, "gpus", "5002 characters"),
    "foreign digits": (row(gpus="\u0661"), 2, "gpus", "\u0661"),
    "zero weight": (row(weight="0"), 2, "weight", "'0'"),
    "deadline before the start": (row(deadline_s="-5"), 2, "deadline_s", "'-5'"),
    "NaN rate": (row(rate_v100="NaN"), 2, "rate_v100", "'NaN'"),
    "negative rate": (row(rate_v100="-4"), 2, "rate_v100", "'-4'"),
    "8 TAB columns": (gavel_line().rsplit("\t", 2)[0] + "\n", 1, "line", "8 columns"),
    "columns change": (f"{gavel_line()}\n{gavel_line()}\t1\n", 2, "line", "11 columns"),
    "blank line inside": (f"{gavel_line()}\n\n{gavel_line()}\n", 2, "line", "1 columns"),
    "Gavel: negative steps": (gavel_line(total_steps="-100"), 1, "total_steps", "'-100'"),
    "Gavel: fractional steps": (gavel_line(total_steps="1.5"), 1, "total_steps", "'1.5'"),
    "Gavel: zero scale factor": (gavel_line(scale_factor="0"), 1, "scale_factor", "'0'"),
    "Gavel: data flag": (gavel_line(needs_data_dir="yes"), 1, "needs_data_dir", "'yes'"),
    "Gavel: weight": (gavel_line(priority_weight="-1"), 1, "priority_weight", "'-1'"),
    "Gavel: SLO of zero": (gavel_line(SLO="0"), 1, "SLO", "'0'"),
    "Gavel: SLO that is no number": (gavel_line(SLO="nan"), 1, "SLO", "'nan'"),
    "Gavel: SLO without throughputs": (gavel_line(SLO="1.2"), 1, "SLO", "'1.2'"),
    "Gavel: times out of order": (
        f"{gavel_line(arrival_time='7')}\n{gavel_line(arrival_time='6')}\n",
        2,
        "arrival_time",
        "6.0",
    ),
    "Shockwave: mode": (
        gavel_line(scale_factor="1\telastic", SLO="-1\t100"),
        1,
        "mode",
        "'elastic'",
    ),
    "Shockwave: duration": (gavel_line(scale_factor="1\tstatic", SLO="-1\t-9"), 1, "duration", "'-9'"),
}

TABLES = {
    "no rate": (f"{TABLE_HEADER}\n", 0, "file", "no rate"),
    "missing column": ("job_type,gpus,gpu_type\nA,1,v100\n", 1, "'rate_steps_per_s'", "job_type,gpus,gpu_type"),
    "negative rate": (f"{TABLE_HEADER}\nA,1,v100,-1\n", 2, "rate_steps_per_s", "'-1'"),
    "NaN rate": (f"{TABLE_HEADER}\nA,1,v100,nan\n", 2, "rate_steps_per_s", "'nan'"),
    "no GPUs": (f"{TABLE_HEADER}\nA,0,v100,1\n", 2, "gpus", "'0'"),
    "no job type": (f"{TABLE_HEADER}\n,1,v100,1\n", 2, "job_type", "''"),
    "no GPU type": (f"{TABLE_HEADER}\nA,1,,1\n", 2, "gpu_type", "''"),
    "given twice": (f"{TABLE_HEADER}\nA,1,v100,1\nA,1,v100,2\n", 3, "gpu_type", "'v100'"),
    "provenance": (f"{TABLE_HEADER},provenance\nA,1,v100,1,guessed\n", 2, "provenance", "'guessed'"),
    "pair of a stranger": (
        f"{TABLE_HEADER},pair_job_type,pair_rate_steps_per_s\nA,1,v100,1,,\nA,1,v100,1,B,1\n",
        3,
        "pair_job_type",
        "('B', 1)",
    ),
    "pair given twice": (
        f"{TABLE_HEADER},pair_job_type,pair_rate_steps_per_s\nA,1,v100,1,,\nA,1,v100,1,A,1\nA,1,v100,1,A,1\n",
        4,
        "pair_job_type",
        "'A'",
    ),
    "JSON cut short": ('{"v100": {', 1, "text", "end of the file"),
    "JSON: no type": ("{}", 1, "file", "{}"),
    "JSON: list for a type": ('{\n"v100": []}', 2, "v100", "[]"),
    "JSON: key": ('{"v100": {"ResNet, 1": {"null": 1}}}', 1, "v100['ResNet, 1']", "'ResNet, 1'"),
    "JSON: code as a key": ('{"v100": {"__import__(\'os\')": {"null": 1}}}', 1, "v100", "__import__"),
    "JSON: zero GPUs": ('{"v100": {"(\'A\', 0)": {"null": 1}}}', 1, "v100", "('A', 0)"),
    "JSON: no rate alone": ('{"v100": {\n"(\'A\', 1)": {}}}', 2, "v100", "[]"),
    "JSON: negative rate": ('{"v100": {"(\'A\', 1)": {\n"null": -1}}}', 2, "null", "-1"),
    "JSON: NaN rate": ('{"v100": {"(\'A\', 1)": {"null": NaN}}}', 1, "null", "nan"),
    "JSON: text for a rate": ('{"v100": {"(\'A\', 1)": {"null": "1"}}}', 1, "null", "'1'"),
    "JSON: true for a rate": ('{"v100": {"(\'A\', 1)": {"null": true}}}', 1, "null", "True"),
    "JSON: pair of one": ('{"v100": {"(\'A\', 1)": {"null": 1, "(\'A\', 1)": [1]}}}', 1, "('A', 1)", "[1]"),
    "JSON: negative pair": ('{"v100": {"(\'A\', 1)": {"null": 1, "(\'A\', 1)": [1, -2]}}}', 1, "[1]", "-2"),
    "JSON: pair of unequal gangs": (
        '{"v100": {"(\'A\', 1)": {"null": 1, "(\'A\', 2)": [1, 2]}, "(\'A\', 2)": {"null": 1}}}',
        1,
        "the same number of GPUs",
        "('A', 2)",
    ),
    "JSON: pair of a stranger": (
        '{"v100": {"(\'A\', 1)": {"null": 1, "(\'B\', 1)": [1, 2]}}}',
        1,
        "rate alone",
        "('B', 1)",
    ),
    "JSON: the same key in two spellings": (
        '{"v100": {"(\'A\', 1)": {"null": 1},\n"(\'A\',1)": {"null": 1}}}',
        2,
        "given once",
        "('A', 1)",
    ),
    "JSON: repeated key": ('{"v100": {}, "v100": {}}', 0, "key", "'v100'"),
}


def problem(**changes: object) -> str:
    return json.dumps(make_problem(**changes))


PAIR = {"jobs": ["a", "b"], "rates_steps_per_s": {"v100": [1, 2]}}
TWO = [{"id": "a", "rates_steps_per_s": {}}, {"id": "b", "rates_steps_per_s": {}}]
PROBLEMS = {
    "a list": ("[]", 1, "file", "[]"),
    "a number": ("7", 1, "file", "7"),
    "not JSON": ("cluster: v100", 1, "text", "'cluster: v100'"),
    "nested without end": ("[" * 100_000, 0, "text", "[[["),
    "digits without end": ('{"cluster": ' + "9" * 5000 + "}", 0, "number", "more"),
    "lone surrogate": ('{"cluster": {"\\ud800": 1}, "jobs": []}', 0, "text", "ud800"),
    "repeated key": ('{"jobs": [], "jobs": []}', 0, "key", "'jobs'"),
    "no cluster": ('{"jobs": []}', 1, "`cluster`", "['jobs']"),
    "empty cluster": (problem(cluster={}), 1, "cluster", "none"),
    "cluster of zero": (problem(cluster={"v100": 0, "k80": 0}), 1, "cluster", "0"),
    "a billion GPUs": (problem(cluster={"v100": 10**9, "k80": 1}), 1, "cluster", "1,000,000,001"),
    "negative GPUs": (problem(cluster={"v100": -1, "k80": 8}), 1, "cluster['v100']", "-1"),
    "half a GPU": (problem(cluster={"v100": 0.5, "k80": 8}), 1, "cluster['v100']", "0.5"),
    "nested cluster": (problem(cluster={"v100": {"a": 1}, "k80": 8}), 1, "cluster['v100']", "{'a': 1}"),
    "price of an unknown type": (problem(prices_usd_per_gpu_h={"t4": 1}), 1, "prices_usd_per_gpu_h.t4", "'t4'"),
    "negative price": (problem(prices_usd_per_gpu_h={"v100": -1}), 1, "prices_usd_per_gpu_h.v100", "-1"),
    "text for a price": (problem(prices_usd_per_gpu_h={"v100": "1"}), 1, "prices_usd_per_gpu_h.v100", "'1'"),
    "unknown key": (problem(job=[]), 1, "jobs, prices_usd_per_gpu_h, resources", "'job'"),
    "unknown key of a job": (problem_with_job(gpu=1), 1, "jobs[0]", "'gpu'"),
    "job without id": (problem(jobs=[{"rates_steps_per_s": {}}]), 1, "`id`", "rates_steps_per_s"),
    "job without rates": (problem(jobs=[{"id": "a"}]), 1, "`rates_steps_per_s`", "['id']"),
    "number for an id": (problem_with_job(id=7), 1, "jobs[0].id", "7"),
    "empty id": (problem_with_job(id=""), 1, "jobs[0].id", "''"),
    "comma in an id": (problem_with_job(id="a,b"), 1, "jobs[0].id", "'a,b'"),
    "duplicate id": (problem(jobs=[TWO[0], TWO[0]]), 1, "jobs[1].id", "'a'"),
    "text for gpus": (problem_with_job(gpus="x"), 1, "jobs[0].gpus", "'x'"),
    "no gpus": (problem_with_job(gpus=0), 1, "jobs[0].gpus", "0"),
    "huge gpus": (problem_with_job(gpus=10**30), 1, "jobs[0].gpus", "1000000000"),
    "true for gpus": (problem_with_job(gpus=True), 1, "jobs[0].gpus", "True"),
    "huge weight": (problem_with_job(weight=10**400), 1, "jobs[0].weight", "401 characters"),
    "NaN weight": (problem_with_job(weight=float("nan")), 1, "jobs[0].weight", "nan"),
    "negative steps": (problem_with_job(steps_remaining=-1), 1, "jobs[0].steps_remaining", "-1"),
    "infinite steps": (problem_with_job(steps_total=float("inf")), 1, "jobs[0].steps_total", "inf"),
    "negative age": (problem_with_job(age_s=-1), 1, "jobs[0].age_s", "-1"),
    "NaN deadline": (problem_with_job(deadline_s=float("nan")), 1, "jobs[0].deadline_s", "nan"),
    "rate on an unknown type": (problem_with_job(rates_steps_per_s={"t4": 1}), 1, "(v100, k80)", "'t4'"),
    "negative rate": (problem_with_job(rates_steps_per_s={"v100": -1}), 1, "rates_steps_per_s.v100", "-1"),
    "NaN rate": (problem_with_job(rates_steps_per_s={"v100": float("nan")}), 1, "rates_steps_per_s.v100", "nan"),
    "list for a rate": (problem_with_job(rates_steps_per_s={"v100": [1]}), 1, "rates_steps_per_s.v100", "[1]"),
    "entity that is not listed": (
        problem(jobs=[TWO[0] | {"entity": "x"}], entities=[{"id": "y"}]),
        1,
        "jobs[0].entity",
        "'x'",
    ),
    "entity twice": (problem(entities=[{"id": "x"}, {"id": "x"}]), 1, "entities[1].id", "'x'"),
    "unknown parent": (problem(entities=[{"id": "x", "parent": "z"}]), 1, "entities[0].parent", "'z'"),
    "parent within it": (
        problem(entities=[{"id": "x", "parent": "y"}, {"id": "y", "parent": "x"}]),
        1,
        "entities[0].parent",
        "'y'",
    ),
    "weightless entity": (problem(entities=[{"id": "x", "weight": 0}]), 1, "entities[0].weight", "0"),
    "entity's policy": (problem(entities=[{"id": "x", "policy": "lifo"}]), 1, "entities[0].policy", "'lifo'"),
    "pair of one": (problem(pairs=[PAIR | {"jobs": ["a"]}]), 1, "pairs[0].jobs", "['a']"),
    "pair of a stranger": (problem(pairs=[PAIR | {"jobs": ["a", "z"]}]), 1, "pairs[0].jobs", "'z'"),
    "pair of unequal gangs": (problem(pairs=[PAIR]), 1, "1 and 2", "['a', 'b']"),
    "pair with itself": (problem(pairs=[PAIR | {"jobs": ["a", "a"]}]), 1, "pairs[0].jobs", "['a', 'a']"),
    "pair given twice": (
        problem(jobs=TWO, pairs=[PAIR, PAIR | {"jobs": ["b", "a"]}]),
        1,
        "pairs[1].jobs",
        "['b', 'a']",
    ),
    "pair on an unknown type": (
        problem(jobs=TWO, pairs=[PAIR | {"rates_steps_per_s": {"t4": [1, 1]}}]),
        1,
        "pairs[0].rates_steps_per_s.t4",
        "'t4'",
    ),
    "pair with one rate": (
        problem(jobs=TWO, pairs=[PAIR | {"rates_steps_per_s": {"v100": [1]}}]),
        1,
        "pairs[0].rates_steps_per_s.v100",
        "[1]",
    ),
}

BYTES = {
    "empty": (b"", 0, "file", "''"),
    "blank": (b" \n\t\n", 0, "file", "only white space"),
    "undecodable": (b"id,arrival_s\n\xff\xfe\x00\n", 2, "text", "\\xff"),
    "binary": (bytes(range(256)), 2, "text", "\\x80"),
}
Reader = Callable[[str | Path], object]
READERS: dict[str, Reader] = {"trace": read_trace, "table": read_throughputs, "problem": read_problem}
CASES = [
    *((f"trace: {name}", read_trace, text.encode(), *wanted) for name, (text, *wanted) in TRACES.items()),
    *((f"table: {name}", read_throughputs, text.encode(), *wanted) for name, (text, *wanted) in TABLES.items()),
    *((f"problem: {name}", read_problem, text.encode(), *wanted) for name, (text, *wanted) in PROBLEMS.items()),
    *((f"{kind}: {name}", READERS[kind], *case) for kind in READERS for name, case in BYTES.items()),
]


@pytest.mark.parametrize(
    ("reader", "data", "line", "field", "value"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_complaint_names_file_line_field_and_value(
    tmp_path: Path, reader: Reader, data: bytes, line: int, field: str, value: str
) -> None:
    file = tmp_path / "input"
    file.write_bytes(data)

    with pytest.raises(InvalidInput) as caught:
        reader(file)

    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: " if line else f"{file}: ")
    assert field in message
    assert value in message.rpartition("got ")[2]
    assert " must " in message
    assert "\n" not in message


def test_gpu_type_with_a_blank_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text(problem(cluster={"v 100": 1}, jobs=[]))

    with pytest.raises(InvalidInput, match=r"input:1: cluster: a GPU type is .*, got 'v 100'"):
        read_problem(file)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_file_that_does_not_exist_is_the_callers_fault(tmp_path: Path, reader: Reader) -> None:
    file = tmp_path / "nowhere"

    with pytest.raises(InvalidInput, match=r"file must be readable, got .*nowhere.*No such file"):
        reader(file)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_directory_is_no_file(tmp_path: Path, reader: Reader) -> None:
    with pytest.raises(InvalidInput, match="file must be readable"):
        reader(tmp_path)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_path_with_a_nul_is_refused(reader: Reader) -> None:
    with pytest.raises(InvalidInput, match="file must be readable"):
        reader("a\0b")
