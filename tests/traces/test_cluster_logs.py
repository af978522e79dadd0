"""What readers of clusters' logs make of their samples, and of the real files that are here."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.durations import gpu_type_named
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.reader import read_trace
from tests.traces.histories import write_sample

SECONDS = ReadOptions(durations=DurationRule.SECONDS)
BERLIN = ReadOptions(durations=DurationRule.SECONDS, time_zone="Europe/Berlin")


def test_sacct_adds_runs_of_a_job_and_splits_arrays(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "slurm"), options=SECONDS)

    found = {job.id: (at, job.steps_total, job.gpus) for at, job in zip(trace.arrival_s, trace.jobs, strict=True)}
    assert found == {
        "7": (0.0, 100.0, 2),
        "8_1": (5.0, 3600.0, 1),
        "8_2": (5.0, 30.0, 1),
        "9": (20.0, 60.0, 4),  # two runs, of 20 and 40 s
        "10": (30.0, 30.0, 1),  # cancelled while it waited: the median of 1-GPU jobs
        "11": (40.0, 10.0, 1),
    }
    assert trace.provenance["left_out"] == {"waiting or running": 7, "GPUs of several types": 1, "no GPU": 1}
    assert trace.provenance["requeued"] == 1


def test_sacct_cancels_a_job_that_waited_when_its_user_did(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "slurm"), options=SECONDS)

    cancelled = {job.id: at for job, at in zip(trace.jobs, trace.cancelled_s.tolist(), strict=True) if at < 1e9}
    assert cancelled == {"10": 330.0}


def test_sacct_names_users_accounts_and_gpu_types(tmp_path: Path) -> None:
    jobs = {job.id: job for job in read_trace(write_sample(tmp_path, "slurm")).jobs}

    assert (jobs["7"].owner, jobs["7"].entity) == ("ann", "vision")
    a100 = jobs["8_1"]
    assert a100.steps_total == pytest.approx(3600.0 * a100.rates_steps_per_s["a100"], abs=1.0)


@pytest.mark.parametrize(
    ("tasks", "found"),
    [("1,3-5%2", "1 3 4 5"), ("0-6:3", "0 3 6"), ("7", "7"), ("1-2,8,...%5", "1 2 8"), ("1-2,8...", "1 2 8")],
)
def test_tasks_of_an_array_that_was_cancelled_while_it_waited_are_a_job_each(
    tmp_path: Path, tasks: str, found: str
) -> None:
    path = write_sample(tmp_path, "slurm", "\n10|", f"\n10_[{tasks}]|")

    trace = read_trace(path, options=SECONDS)

    jobs = [job.id for job, at in zip(trace.jobs, trace.cancelled_s.tolist(), strict=True) if at == 330.0]
    assert jobs == [f"10_{task}" for task in found.split()]
    assert trace.provenance["cancelled_while_waiting"] == len(jobs)
    assert trace.provenance.get("arrays_cut", 0) == ("..." in tasks)


def test_tasks_of_all_lines_of_a_file_are_bounded(tmp_path: Path) -> None:
    row = "10|ann|vision|CANCELLED by 1000|2024-03-30T10:00:30|None|2024-03-30T10:05:30|0||gres/gpu=1\n"
    more = row.replace("10|", "20_[0-999]|", 1) + row.replace("10|", "21_[1,2,4-999002]|", 1)
    path = write_sample(tmp_path, "slurm", row, more)

    with pytest.raises(
        InvalidInput, match=r":10: JobID must be one of at most 1,000,000 tasks, .* got '1,000,001"
    ) as caught:
        read_trace(path, options=SECONDS)

    assert str(caught.value).endswith("'1,000,001 with 21_[1,2,4-999002]'")


def test_waiting_tasks_of_an_array_are_counted_without_a_job_each(tmp_path: Path) -> None:
    waiting = "8_[3-9]|bob|text|PENDING|2024-03-30T10:00:05|Unknown|Unknown|0||gres/gpu=1\n"
    path = write_sample(tmp_path, "slurm", waiting, waiting.replace("3-9", "0-4000000") * 30)

    trace = read_trace(path, options=SECONDS)

    assert trace.provenance["left_out"]["waiting or running"] == 30 * 4_000_001


def test_id_of_slurm_that_is_used_again_is_another_job(tmp_path: Path) -> None:
    path = write_sample(tmp_path, "slurm", "9|ann|vision|NODE_FAIL", "9|ann|vision|COMPLETED")

    assert {"9", "9@2"} <= {job.id for job in read_trace(path).jobs}


def test_clocks_that_change_do_not_change_durations(tmp_path: Path) -> None:
    """The night of 30 March 2024 in Berlin lacks an hour: 8 h 50 min on the clocks are 7 h 50 min."""
    text = "JobID|State|Submit|Start|End|AllocTRES\n1|COMPLETED|2024-03-31T00:10:00|2024-03-31T00:10:00|"
    file = tmp_path / "sacct.txt"
    file.write_text(text + "2024-03-31T09:00:00|gres/gpu=1\n")

    (job,) = read_trace(file, options=BERLIN).jobs

    assert job.steps_total == 7 * 3600 + 50 * 60


@pytest.mark.parametrize(("text", "seconds"), [("1-00:00:01", 86_401.0), ("02:03:04", 7_384.0), ("00:05", 5.0)])
def test_elapsed_is_read_in_slurms_forms(tmp_path: Path, text: str, seconds: float) -> None:
    file = tmp_path / "sacct.txt"
    file.write_text(f"JobIDRaw|State|Submit|Elapsed|AllocGRES\n1|COMPLETED|1700000000|{text}|gpu:tesla:2\n")

    (job,) = read_trace(file, options=SECONDS).jobs

    assert (job.steps_total, job.gpus) == (seconds, 2)
    assert job.rates_steps_per_s["tesla"] == 1.0


def test_elasticflow_keeps_iterations_and_durations(tmp_path: Path) -> None:
    first, second = read_trace(write_sample(tmp_path, "elasticflow")).jobs

    assert (first.steps_total, first.deadline_s, first.gpus) == (45_775.0, 1_879.0, 64)
    assert first.steps_total / first.rates_steps_per_s["v100"] == pytest.approx(2_429.0)
    assert second.job_type == "gpt2 (batch size 128)"
    assert first.rates_steps_per_s["a100"] / first.rates_steps_per_s["v100"] == pytest.approx(
        2.55, abs=0.05
    )  # ResNet-50's


def test_sia_takes_steps_and_rates_from_profiles(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "sia"))

    assert [job.id for job in trace.jobs] == ["x-0", "x-1"]
    assert [job.steps_total for job in trace.jobs] == [300.0, 900.0]
    assert trace.jobs[1].rates_steps_per_s == {"t4": pytest.approx(1 / 0.6)}  # 2 GPUs of one node, local batch 32
    accumulated_s = 0.9 + 3 * (0.9 - 0.1)  # 256 on one GPU: four parts of 64
    assert trace.jobs[0].rates_steps_per_s == {"t4": pytest.approx(1 / accumulated_s)}


def test_openb_has_nodes_and_limits_of_gpu_types(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "openb"), options=SECONDS)

    assert [(node.node_id, node.gpu_type, node.gpu_count) for node in trace.nodes] == [("n1", "v100", 2)]
    assert [(job.id, job.gpus, job.steps_total, job.gpu_types) for job in trace.jobs] == [
        ("p0", 1, 995.0, ("v100",)),
        ("p1", 1, 250.0, ()),
    ]
    assert trace.provenance["gpus_rounded_up"] == 1
    assert trace.provenance["left_out"] == {"no GPU": 1, "never started": 1}


def test_pai_adds_the_tasks_of_a_job(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "pai"), options=SECONDS)

    found = [(job.id, job.gpus, job.steps_total, job.owner) for job in trace.jobs]
    assert found == [("j1", 1, 300.0, "u1"), ("j2", 1, 60.0, ""), ("j4", 8, 600.0, "u4")]
    assert trace.arrival_s.tolist() == [0.0, 150.0, 200.0]


def test_spot_jobs_hold_the_gpus_of_all_workers(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "alibaba_spot"), options=SECONDS)

    assert [(job.gpus, job.entity) for job in trace.jobs] == [(1, "13"), (16, "57"), (2, "57")]
    assert [(node.gpu_type, node.gpu_count) for node in trace.nodes] == [("gpu-series-1", 4), ("a10", 1)]


def test_helios_leaves_out_jobs_without_gpus_and_without_a_start(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "helios"), options=SECONDS)

    assert [(job.id, job.gpus, job.steps_total, job.owner, job.entity) for job in trace.jobs] == [
        ("101", 8, 3600.0, "u1", "vcA")
    ]
    assert trace.provenance["left_out"] == {"no GPU": 1, "never started": 1}


def test_kueue_counts_gpus_of_all_pods_on_the_admitted_flavor(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "kueue"))

    (job,) = trace.jobs
    assert (job.id, job.gpus, job.owner, job.entity) == ("team-a/job-a", 6, "team-a", "gpu-queue")
    assert job.steps_total == pytest.approx(600 * job.rates_steps_per_s["v100"], abs=1.0)
    assert trace.provenance["left_out"] == {"not admitted, or not finished": 1}


def test_kueue_reads_one_workload_as_a_list_of_one(tmp_path: Path) -> None:
    whole = write_sample(tmp_path, "kueue")
    alone = tmp_path / "alone.json"
    workload = json.loads(whole.read_text())["items"][0]
    workload["metadata"]["annotations"] = {"items": [1]}  # a key of that name inside
    alone.write_text(json.dumps(workload, indent=4))

    trace = read_trace(alone)

    assert trace.jobs == read_trace(whole).jobs
    assert trace.provenance["format"] == "kueue"


@pytest.mark.parametrize(
    "text",
    [
        '{"apiVersion": "v1", "items": [], "kind": "List", "metadata": {"resourceVersion": ""}}',
        '{"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "WorkloadList", "metadata": {}, "items": [ ]}',
    ],
)
def test_kueue_names_a_list_without_workloads(tmp_path: Path, text: str) -> None:
    file = tmp_path / "none.json"
    file.write_text(text)

    with pytest.raises(
        InvalidInput, match=r"none\.json: items must be workloads, got \[\]: the file holds no workloads"
    ):
        read_trace(file)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"kind": "Pod", "metadata": {}}', "kind must be one of Workload, got 'Pod'"),
        ('{"kind": "List", "items": null}', "text must be an object with an array 'items', got 'None'"),
        ('{"kind": "Workload"}[{}]', "text must be over after the array, got ']'"),
        ('{"kind": "Workload", "kind": "Pod"}', "text must be an object whose keys are strings, each once, got 'kind'"),
        ('{"kind" "Workload"}', "text must be ':' after a key, got '\"'"),
        ('{"kind": "Workload" "a": 1}', "text must be a comma or the end of the object, got '\"'"),
        ('{"kind": "Workload"', "text must be a comma or the end of the object, got 'the end'"),
        ("{}", "kind must be a string, got None"),
    ],
)
def test_kueue_names_what_is_wrong_with_an_object(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "one.json"
    file.write_text(text)

    with pytest.raises(InvalidInput, match=re.escape(f"one.json:1: {complaint}")):
        read_trace(file, from_format="kueue")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("V100M32", "v100"), ("A100-SXM4-80GB", "a100"), ("A10", "a10"), ("Tesla T4", "t4"), ("MISC", "misc")],
)
def test_gpu_types_are_named_as_in_the_table(text: str, expected: str) -> None:
    assert gpu_type_named(text, ("a10", "a100", "t4", "v100")) == expected


@pytest.mark.reference
def test_elasticflow_cluster_is_read_whole(reference_directory: Path) -> None:
    """Counts by awk: jobs by GPUs, and the sum of GPU-seconds."""
    file = reference_directory / "data" / "elasticflow" / "cluster01.csv"
    program = 'NR > 1 { n[$7]++; s += $7 * $8 } END { for (g in n) print g, n[g]; print "gpu_s", s }'
    counted = subprocess.run(["awk", "-F,", program, file], capture_output=True, text=True, check=True).stdout
    expected = {key: float(value) for key, value in (line.split() for line in counted.splitlines())}

    trace = read_trace(file)

    assert len(trace) == 1_595
    assert Counter(str(job.gpus) for job in trace.jobs) == {k: v for k, v in expected.items() if k != "gpu_s"}
    gpu_s = sum(job.gpus * job.steps_total / job.rates_steps_per_s["v100"] for job in trace.jobs)
    assert gpu_s == pytest.approx(expected["gpu_s"])


@pytest.mark.reference
@pytest.mark.parametrize(("name", "jobs"), [("philly-workload-1", 160), ("newtrace-workload-1", 960)])
def test_sia_workload_is_read_whole(reference_directory: Path, name: str, jobs: int) -> None:
    file = reference_directory / "data" / "sia" / "workloads" / f"{name}.csv"

    trace = read_trace(file)

    frame = pd.read_csv(file)
    assert len(trace) == jobs == len(frame)
    assert sum(job.gpus for job in trace.jobs) == frame.num_replicas.sum()
    assert all(set(job.rates_steps_per_s) >= {"t4", "a100"} for job in trace.jobs)


@pytest.mark.reference
def test_openb_is_read_whole(reference_directory: Path, tmp_path: Path) -> None:
    data = reference_directory / "data" / "openb"
    for name in ("openb_node_list_gpu_node.csv", "openb_pod_list_default.csv"):
        (tmp_path / name).symlink_to(data / name)

    trace = read_trace(tmp_path)

    frame = pd.read_csv(data / "openb_pod_list_default.csv")
    ran = frame[(frame.num_gpu > 0) & (frame.deletion_time > frame.scheduled_time)]
    assert (len(trace), sum(job.gpus for job in trace.jobs)) == (len(ran), ran.num_gpu.sum())
    nodes = pd.read_csv(data / "openb_node_list_gpu_node.csv")
    assert sum(node.gpu_count for node in trace.nodes) == nodes.gpu.sum()
    assert trace.provenance["gpus_rounded_up"] == (frame[frame.scheduled_time.notna()].gpu_milli.between(1, 999)).sum()
