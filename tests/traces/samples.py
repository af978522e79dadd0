"""Small traces, tables and problem files for tests of the readers, and strategies that draw them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.throughput import Provenance, ThroughputTable

CSV_HEADER = "id,arrival_s,steps_total,gpus,weight,job_type,deadline_s,entity,rate_k80,rate_v100"
CSV_TRACE = f"{CSV_HEADER}\na,0.0,100.0,1,1.0,ResNet,,,0.5,4.0\nb,2.5,50.0,2,2.0,LSTM,900.0,text,,3.0\n"
CSV_TABLE = "job_type,gpus,gpu_type,rate_steps_per_s\nResNet,1,k80,0.5\nResNet,1,v100,4\nLSTM,2,v100,3\n"
GAVEL_JSON = {
    "k80": {"('ResNet', 1)": {"null": 0.5, "('LSTM', 1)": [0.25, 0.5]}, "('LSTM', 1)": {"null": 1.0}},
    "v100": {"('ResNet', 1)": {"null": 4.0}, "('LSTM', 1)": {"null": 0.0, "('ResNet', 1)": [1.5, 2.0]}},
    "v100_unconsolidated": {"('ResNet', 1)": {"null": 3.0}},
}


def gavel_line(**changes: str) -> str:
    """One line of the 10 columns, without its newline."""
    cells = {
        "job_type": "ResNet",
        "command": "python3 main.py --data %s/x",
        "working_directory": "images",
        "num_steps_arg": "--steps",
        "needs_data_dir": "1",
        "total_steps": "100",
        "scale_factor": "1",
        "priority_weight": "1",
        "SLO": "-1.000000",
        "arrival_time": "0.0",
    }
    return "\t".join((cells | changes).values())


def csv_row(**changes: str) -> str:
    """One row of the trace CSV under CSV_HEADER, without its newline."""
    cells = dict(
        zip(CSV_HEADER.split(","), ["a", "0.0", "100.0", "1", "1.0", "ResNet", "", "", "0.5", "4.0"], strict=True)
    )
    return ",".join((cells | changes).values())


def make_table(rates: dict[tuple[str, int], list[float]], gpu_types: tuple[str, ...] = ("k80", "v100")) -> Any:
    """A table of measured rates without pairs."""
    values = np.array(list(rates.values()), dtype=np.float64).reshape(len(rates), len(gpu_types))
    kinds = np.full(values.shape, int(Provenance.MEASURED))
    return ThroughputTable(tuple(rates), gpu_types, values, kinds, ("test",) * len(rates))


def make_problem(**changes: Any) -> dict[str, Any]:
    """A problem file with two jobs, as JSON values."""
    jobs = [
        {"id": "a", "rates_steps_per_s": {"v100": 4.0, "k80": 1.0}},
        {"id": "b", "gpus": 2, "rates_steps_per_s": {"v100": 3.0}},
    ]
    return {"cluster": {"v100": 4, "k80": 8}, "jobs": jobs} | changes


def problem_with_job(**changes: Any) -> str:
    """A problem file with one job, as text."""
    return json.dumps(make_problem(jobs=[{"id": "a", "rates_steps_per_s": {"v100": 4.0}} | changes]))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.text(st.characters(exclude_categories=["Cs", "Z", "C"], exclude_characters=","), min_size=1, max_size=6)
positive = st.floats(1e-6, 1e12)
_rates = st.dictionaries(st.sampled_from(["k80", "v100", "h 100,x"]), st.floats(0, 1e6), max_size=3)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces with any text that a CSV can contain."""
    ids = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    jobs = tuple(
        JobSpec(
            JobId(job_id),
            draw(positive),
            gpus=draw(st.integers(1, 1_000_000)),
            weight=draw(positive),
            job_type=draw(texts),
            rates_steps_per_s=draw(_rates),
            deadline_s=draw(positive | st.just(math.inf)),
            entity=draw(texts),
            command=draw(texts),
            working_directory=draw(texts),
        )
        for job_id in ids
    )
    arrivals = sorted(draw(st.lists(st.floats(0, 1e9), min_size=len(ids), max_size=len(ids))))
    return Trace(jobs, np.array(arrivals), "drawn")


@st.composite
def tables(draw: st.DrawFn) -> ThroughputTable:
    """Tables with unknown entries, any provenance, and pairs of equal gang size."""
    keys = draw(st.lists(st.tuples(names, st.integers(1, 3)), min_size=1, max_size=4, unique=True))
    gpu_types = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    N, T = len(keys), len(gpu_types)
    rate = st.floats(0, 1e9) | st.just(math.nan)
    rows = [(i, j) for i in range(N) for j in range(N) if keys[i][1] == keys[j][1]]
    pairs = draw(st.lists(st.sampled_from(rows), max_size=3, unique=True))
    return ThroughputTable(
        tuple(keys),
        gpu_types,
        np.array(draw(st.lists(rate, min_size=N * T, max_size=N * T))).reshape(N, T),
        np.array(draw(st.lists(st.integers(0, 3), min_size=N * T, max_size=N * T))).reshape(N, T),
        tuple(draw(st.lists(texts, min_size=N, max_size=N))),
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        np.array(draw(st.lists(rate, min_size=2 * T * len(pairs), max_size=2 * T * len(pairs)))).reshape(-1, 2, T),
    )
