"""`gavel demo`: the shipped trace, the comparison of policies, and the part with real jobs."""

import re
from pathlib import Path

import numpy as np
import pytest

from gavelpy.cli import demo
from gavelpy.cli.demo import JOBS, measured_start_s, run_live
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.simulator.compare import simulate
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.reader import read_trace
from gavelpy.traces.workloads import published_throughputs, workloads_directory
from tests.cli.commands import Answer, Gavel

LABELS = {f"{policy}{view}" for policy in ("fifo", "max_min_fairness", "min_makespan") for view in ("", "@blind")}

FEW = """id,arrival_s,steps_total,gpus,rate_v100,rate_p100,rate_k80
a,0,36000,1,10,4,1
b,10,7200,1,2,1.5,1
c,20,7200,2,4,3,2
d,900,3600,4,1,1,0.5
"""


@pytest.fixture(scope="module")
def shipped() -> Trace:
    return read_trace(workloads_directory() / "demo_trace.csv")


def test_demo_trace_is_what_the_generator_draws_from_the_published_table(shipped: Trace) -> None:
    options = GeneratorOptions(360, mean_interarrival_s=250.0, multi_gpu=True)

    drawn = generate(options, published_throughputs(), np.random.default_rng(0))

    assert shipped.jobs == drawn.jobs
    assert shipped.arrival_s.tolist() == drawn.arrival_s.tolist()


def test_demo_trace_has_three_hundred_jobs_or_more(shipped: Trace) -> None:
    assert len(shipped) >= 300


def check_comparison(answer: Answer) -> None:
    """Checks that table and report cover three policies, blind and aware, and that the report's path comes last."""
    assert answer.code == 0
    assert set(re.findall(r"^ (\w+(?:@blind)?) +\d", answer.out, re.MULTILINE)) == LABELS
    assert answer.out.splitlines()[-1] == "report: out/demo/report.html"
    page = Path("out/demo/report.html").read_text(encoding="utf-8")
    assert set(re.findall(r'data-run="([^"]+)"', page)) == LABELS
    assert len(page.encode()) < 600_000


def test_demo_compares_three_policies_blind_and_aware_and_ends_with_the_path(
    gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_TRACE", gavel.trace(FEW))

    check_comparison(gavel("demo", "--no-live"))


def figures(text: str, *columns: int) -> dict[str, list[str]]:
    """The chosen columns of a printed table by policy, without units."""
    rows = (line.replace(" h", "").replace(" %", "").split() for line in text.splitlines())
    return {row[0]: [row[k] for k in columns] for row in rows if row and row[0] in LABELS}


@pytest.mark.slow
def test_demo_compares_the_policies_on_the_whole_trace_as_in_the_readme(gavel: Gavel) -> None:
    answer = gavel("demo", "--no-live")

    check_comparison(answer)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert figures(answer.out, 1, 6, 7) == figures(readme, 1, 2, 3)


def test_readme_quotes_what_the_quickest_policy_of_the_demo_does(shipped: Trace) -> None:
    found = simulate(shipped, Cluster.parse("v100:36,p100:36,k80:36"), "fifo").metrics

    readme = figures((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"), 1, 2, 3)
    hours = [f"{seconds / 3600.0:,.1f}" for seconds in (found.avg_jct_s, found.makespan_s)]
    assert readme["fifo"] == [*hours, f"{found.utilization:.1%}".removesuffix("%")]


def test_start_of_a_lease_is_what_is_left_of_its_time_after_the_steps() -> None:
    job = pb.Job(name="a", steps_total=100.0, restarts=1)
    accounts = [
        pb.TypeAccount(gpu_type="v100", received_s=8.0),
        pb.TypeAccount(gpu_type="p100", received_s=16.0),
    ]

    start_s = measured_start_s([pb.GetJobResponse(job=job, accounts=accounts)], {"a": 10.0})

    assert start_s == pytest.approx(24.0 * (1.0 - 10.0 / 16.0) / 2)  # 10 s of steps in 8 + 16 / 2 s, two leases


@pytest.mark.slow
def test_live_part_finishes_all_jobs_and_prints_the_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_live(tmp_path / "live")

    told = capsys.readouterr()

    assert told.out.count("finished") == len(JOBS)
    assert re.search(r"average time in the system: live [\d.]+ s, simulated [\d.]+ s", told.err)
