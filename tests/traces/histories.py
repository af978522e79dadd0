"""One small sample of each trace format, and 10 broken variants of each, with the line and the value to be named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.traces import histories_of_clusters as c
from tests.traces.samples import CSV_TRACE, gavel_line


@dataclass(frozen=True)
class Sample:
    """Files by name; of one file, the trace is the file, else the directory. Breaks: name → (old, new, line, value)."""

    format: str
    files: Mapping[str, str]
    breaks: Mapping[str, tuple[str, str, int, str]]


PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
    "2017-10-09 06:13:03,2951.0,4,11804.0,6214e9\n"
    "2017-09-29 07:58:32,0.0,1,0.0,6c71a0\n"
)
_ATTEMPT = {
    "start_time": "2017-10-07 01:05:28",
    "end_time": "2017-10-07 01:06:28",
    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
}
_PHILLY_JOB = {
    "status": "Pass",
    "vc": "ee9e8c",
    "jobid": "application_1506638472019_10258",
    "attempts": [_ATTEMPT, {**_ATTEMPT, "start_time": "2017-10-07 02:00:00", "end_time": "2017-10-07 02:00:30"}],
    "submitted_time": "2017-10-07 01:05:11",
    "user": "ce2b4c",
}
_NEVER = {**_PHILLY_JOB, "jobid": "application_2", "status": "Killed", "attempts": []}
PHILLY_LOG = json.dumps([_PHILLY_JOB, _NEVER], indent=1)


SAMPLES: dict[str, Sample] = {
    "csv": Sample(
        "csv",
        {"t.csv": CSV_TRACE},
        {
            "no steps": ("100.0", "", 2, "''"),
            "words": ("100.0", "many", 2, "'many'"),
            "NaN": ("100.0", "nan", 2, "'nan'"),
            "gpus": (",1,1.0", ",0,1.0", 2, "'0'"),
            "time": ("b,2.5", "b,-2.5", 3, "'-2.5'"),
            "column": ("weight", "wait", 1, "'wait'"),
            "twice": ("b,2.5", "a,2.5", 3, "'a'"),
            "cells": ("900.0,", "", 3, "9 cells"),
            "quote": ("ResNet", '"ResNet', 3, "unexpected end"),
            "deadline": ("900.0", "-1", 3, "'-1'"),
        },
    ),
    "gavel": Sample(
        "gavel",
        {"t.trace": f"{gavel_line()}\n{gavel_line(arrival_time='5')}\n"},
        {
            "steps": ("\t100\t", "\tmany\t", 1, "'many'"),
            "no steps": ("\t100\t", "\t0\t", 1, "'0'"),
            "gpus": ("\t100\t1\t", "\t100\t0\t", 1, "'0'"),
            "flag": ("--steps\t1", "--steps\t2", 1, "'2'"),
            "weight": ("\t1\t-1.0", "\t-1\t-1.0", 1, "'-1'"),
            "SLO": ("-1.000000", "nan", 1, "'nan'"),
            "no SLO": ("-1.000000", "0", 1, "'0'"),
            "order": ("\t0.0\n", "\t9\n", 2, "5.0"),
            "columns": ("images\t", "", 1, "9 columns"),
            "time": ("\t5", "\tsoon", 2, "'soon'"),
        },
    ),
    "philly": Sample(
        "philly",
        {"philly.csv": PHILLY},
        {
            "date": ("2017-10-09 07", "2017-13-09 07", 2, "'2017-13-09 07:01:55'"),
            "no date": ("2017-10-09 06:13:03", "yesterday", 3, "'yesterday'"),
            "duration": ("66.0,1", "-66.0,1", 2, "'-66.0'"),
            "NaN": ("2951.0,", "nan,", 3, "'nan'"),
            "gpus": ("66.0,1,", "66.0,1.5,", 2, "'1.5'"),
            "many gpus": ("2951.0,4", "2951.0,400000000", 3, "'400000000'"),
            "gpu time": ("11804.0", "2951.0", 3, "'2951.0'"),
            "cells": (",6214e9", "", 3, "4 cells"),
            "column": ("num_gpus", "gpus", 1, "timestamp,duration,gpus"),
            "bytes": ("6214e9", "\udcff", 3, "\\xff"),
        },
    ),
    "philly, log": Sample(
        "philly",
        {"cluster_job_log.json": PHILLY_LOG},
        {
            "status": ('"Pass"', '"Passed"', 2, "'Passed'"),
            "no job id": ('"jobid": "application_1506638472019_10258",', "", 2, "None"),
            "attempts": ('"attempts": [\n', '"attempts": 5, "x": [\n', 2, "5"),
            "time": ("2017-10-07 01:05:28", "2017-10-07 25:05:28", 2, "'2017-10-07 25:05:28'"),
            "backwards": ("2017-10-07 02:00:30", "2017-10-07 01:59:30", 2, "'2017-10-07 01:59:30'"),
            "submitted": ('"2017-10-07 01:05:11"', "7", 2, "7"),
            "user": ('"ce2b4c"', "null", 2, "None"),
            "gpus": ('"gpus": [', '"gpus": 2, "y": [', 2, "2"),
            "detail": ('"detail": [', '"detail": "m1", "y": [', 2, "'m1'"),
            "cut": ('"status": "Killed"', '"status": "Kill', 50, "vc"),
        },
    ),
    "slurm": Sample("slurm", {"sacct.txt": c.SACCT}, c.SACCT_BREAKS),
    "elasticflow": Sample("elasticflow", {"cluster01.csv": c.ELASTICFLOW}, c.ELASTICFLOW_BREAKS),
    "sia": Sample("sia", c.SIA, c.SIA_BREAKS),
    "helios": Sample("helios", {"cluster_log.csv": c.HELIOS}, c.HELIOS_BREAKS),
    "openb": Sample("openb", c.OPENB, c.OPENB_BREAKS),
    "pai": Sample("pai", c.PAI, c.PAI_BREAKS),
    "alibaba_spot": Sample("alibaba_spot", c.ALIBABA_SPOT, c.ALIBABA_SPOT_BREAKS),
    "kueue": Sample("kueue", {"workloads.json": c.KUEUE}, c.KUEUE_BREAKS),
    "azure_llm": Sample("azure_llm", {"AzureLLMInferenceTrace_code.csv": c.AZURE_LLM}, c.AZURE_LLM_BREAKS),
}


def write_sample(folder: Path, name: str, old: str = "", new: str = "") -> Path:
    """Writes a sample, with the first `old` replaced by `new`; returns the file or the directory."""
    sample = SAMPLES[name]
    assert not old or any(old in text for text in sample.files.values()), f"{old!r} is in no file of {name}"
    for file, text in sample.files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(
            text.replace(old, new, 1).encode("utf-8", "surrogateescape") if old else text.encode()
        )
        old = "" if old in text else old
    first = folder / next(iter(sample.files))
    return folder if len(sample.files) > 1 and first.parent == folder else first
