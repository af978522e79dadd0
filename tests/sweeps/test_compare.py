"""`gavel compare`: a row for each policy, whatever becomes of it; resumption; pictures."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gavelpy.report.tradeoffs import ComparedPolicy, figures, front, render, sentences
from tests.cli.commands import Gavel

pytest.importorskip("pyarrow")

MAIN = "from gavelpy.cli.main import main; raise SystemExit(main())"
TRACE = "id,arrival_s,steps_total,gpus,rate_v100,rate_k80\n" + "".join(
    f"j{number},{100 * number},{9000 * (1 + number % 4)},1,10,{1 + number % 3}\n" for number in range(8)
)
POLICIES = """
import math
import time
from dataclasses import dataclass
from typing import ClassVar
from gavelpy.policies.fifo import Fifo

@dataclass(frozen=True)
class Slow(Fifo):
    \"\"\"Computes for longer than a test wants to wait, at every call.\"\"\"

    name: ClassVar[str] = "slow"
    time_varying: ClassVar[bool] = True
    in_order: ClassVar[bool] = False

    def allocate(self, problem, solver=None):
        sum(math.sqrt(number) for number in range(3_000_000))
        return super().allocate(problem, solver)

@dataclass(frozen=True)
class Endless(Slow):
    \"\"\"Never answers.\"\"\"

    name: ClassVar[str] = "endless"

    def allocate(self, problem, solver=None):
        while True:
            pass

@dataclass(frozen=True)
class Waiting(Slow):
    \"\"\"Waits for something.\"\"\"

    name: ClassVar[str] = "waiting"

    def allocate(self, problem, solver=None):
        time.sleep(1e6)
"""


def test_each_policy_has_a_row_also_if_it_is_too_slow(gavel: Gavel) -> None:
    trace, mine = gavel.trace(TRACE), gavel.file("mine.py", POLICIES)

    command = ("compare", trace, "--cluster", "v100:1,k80:1", "--policy", f"fifo,{mine}:Slow")
    answer = gavel(*command, "--time-limit", "0.5", "--report", "page.html")

    assert answer.code == 0, answer.err
    rows = {row.split()[0]: row for row in answer.out.splitlines()}
    assert "stopped after 0.5 s of CPU time at " in rows["mine.py:Slow"]
    assert "stopped" not in rows["fifo"]
    assert "mine.py:Slow was stopped after 0.5 s" in answer.err
    frame = pd.read_csv(gavel.folder / "trace.compare" / "results.csv", index_col="policy")
    assert math.isfinite(frame.loc["fifo", "ftf_worst"])
    assert math.isnan(frame.loc["mine.py:Slow", "avg_jct_s"])
    assert "<td>fifo</td>" in (gavel.folder / "page.html").read_text()


@pytest.mark.slow
def test_policy_that_never_answers_is_ended_by_its_cpu_time_or_by_the_clock(gavel: Gavel) -> None:
    trace, mine = gavel.trace(TRACE), gavel.file("mine.py", POLICIES)
    names = f"fifo,{mine}:Endless,{mine}:Waiting"

    answer = gavel("compare", trace, "--cluster", "v100:1,k80:1", "--policy", names, "--time-limit", "0.2")

    rows = {row.split()[0]: row for row in answer.out.splitlines()}
    assert "stopped after 0.2 s of CPU time within one call of the policy" in rows["mine.py:Endless"]
    assert "stopped after 94 s without an answer of the policy" in rows["mine.py:Waiting"]


def test_policies_that_cannot_serve_the_jobs_are_listed_with_the_reason(gavel: Gavel) -> None:
    rows = ["id,arrival_s,steps_total,gpus,sizes,rate_v100,rate_v100@1", 'a,0,100,2,"1,2",10,6']
    trace = gavel.trace("\n".join(rows) + "\n")

    found = gavel("compare", trace, "--cluster", "v100:2", "--policy", "fifo,gandiva", "-o", "json").json

    assert list(found["refused"]) == ["gandiva"]
    assert "policy 'gandiva' does not use sizes" in found["refused"]["gandiva"]
    assert [row["policy"] for row in found["policies"]] == ["fifo"]


def test_no_policy_that_can_serve_the_jobs_is_bad_input(gavel: Gavel) -> None:
    trace = gavel.trace('id,arrival_s,steps_total,gpus,sizes,rate_v100,rate_v100@1\na,0,100,2,"1,2",10,6\n')

    answer = gavel("compare", trace, "--cluster", "v100:2", "--policy", "gandiva")

    assert answer.code == 2
    assert answer.err.startswith("error: --policy must name a policy that can serve these jobs: policy 'gandiva' does")


@pytest.mark.slow
def test_stopped_policies_run_again_with_a_higher_limit_only(gavel: Gavel) -> None:
    trace, mine = gavel.trace(TRACE), gavel.file("mine.py", POLICIES)
    command = ("compare", trace, "--cluster", "v100:1,k80:1", "--policy", f"fifo,{mine}:Slow", "-o", "json")

    first = gavel(*command, "--time-limit", "0.5")
    again = gavel(*command, "--time-limit", "0.5")
    longer = gavel(*command, "--time-limit", "60")

    assert list(first.json["stopped"]) == ["mine.py:Slow"]
    assert "2 of 2 cells, 2 of them from before" in again.err
    assert again.json["policies"] == first.json["policies"]
    assert longer.json["stopped"] == {}
    assert "1 of 2 cells, 1 of them from before" in longer.err


@pytest.mark.slow
def test_comparison_that_was_killed_continues_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POLICIES)
    (tmp_path / "trace.csv").write_text(TRACE)
    program = [sys.executable, "-c", MAIN, "compare", "trace.csv", "--cluster", "v100:1,k80:1", "--jobs", "1",
               "--policy", "fifo,las,mine.py:Slow", "--time-limit", "600", "-o", "json"]  # fmt: skip
    started = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cells = tmp_path / "trace.compare" / "cells"
    deadline_s = time.monotonic() + 120
    while len(list(cells.glob("*.json"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(3.0)  # the third has begun

    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)

    assert "2 of 3 cells, 2 of them from before" in ended.stderr
    assert "3 of 3 cells" in ended.stderr
    assert not [pid for pid in children if _runs(pid)]


def _runs(pid: str) -> bool:
    """Whether a process of this program has this id."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_front_is_that_of_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(7)
    points = rng.integers(0, 6, (200, 2, 12)).astype(float)
    points[rng.random(points.shape) < 0.05] = np.nan

    found = np.array([front(x, y) for x, y in points])

    assert found.tolist() == [[_is_on_front(x, y, k) for k in range(12)] for x, y in points]


def _is_on_front(x: np.ndarray, y: np.ndarray, k: int) -> bool:
    dominated = (x <= x[k]) & (y <= y[k]) & ((x < x[k]) | (y < y[k])) & np.isfinite(x) & np.isfinite(y)
    return bool(np.isfinite(x[k] + y[k]) and not dominated.any())


def test_pictures_name_the_policies_on_the_front_and_leave_out_what_is_equal() -> None:
    policies = [
        ComparedPolicy(
            "quick", {"avg_jct_s": 10.0, "ftf_worst": 9.0, "makespan_s": 5.0, "jobs": 4.0, "preemptions": 8.0}
        ),
        ComparedPolicy(
            "fair", {"avg_jct_s": 20.0, "ftf_worst": 1.0, "makespan_s": 5.0, "jobs": 4.0, "preemptions": 2.0}
        ),
        ComparedPolicy(
            "poor", {"avg_jct_s": 30.0, "ftf_worst": 2.0, "makespan_s": 5.0, "jobs": 4.0, "preemptions": 6.0}
        ),
    ]

    drawn = figures(policies)

    assert [figure.name for figure in drawn] == ["tradeoff_ftf_worst", "tradeoff_stops_per_job"]
    named = [mark for mark in drawn[0].marks[""] if mark.is_named]
    assert [mark.text for mark in named] == [("quick", "fair")]
    assert drawn[1].marks[""][0].text == ("poor",)
    assert "No policy is better both in average JCT and in worst FTF than quick, fair." in sentences(policies)
    page = render("title", policies, (("policy",), [("quick",)]), ["a <note>"])
    assert "a &lt;note&gt;" in page
