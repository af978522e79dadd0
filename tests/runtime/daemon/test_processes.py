"""The daemon as operators use it: processes, signals, files, and agents that run real jobs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gavelpy.runtime.daemon.config import read_config
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb

CALL_S = 30.0
SOON_S = 60.0  # on a busy machine, and much less than the rounds of 10 min that leases last


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LocalCluster]:
    """A scheduler without nodes."""
    with LocalCluster(tmp_path, ()) as cluster:
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes with one GPU each, and rounds that do not end within a test."""
    nodes = LocalNode("n0", "v100:1"), LocalNode("n1", "v100:1")
    with LocalCluster(tmp_path, nodes, {"mechanism": {"round_s": 600.0}}) as running:
        running.start()
        yield running


def submit(cluster: LocalCluster, script: str) -> int:
    job = pb.JobDescription(
        steps_total=1e6, rates_steps_per_s={"v100": 10.0}, command=f"{sys.executable} -c '{script}'"
    )
    with cluster.client() as client:
        answer = client.SubmitJobs(pb.SubmitJobsRequest(idempotency_key="k", jobs=[job]), timeout=CALL_S)
    return answer.jobs[0].job


def job_of(cluster: LocalCluster, job: int) -> pb.Job:
    """Its state; GetJob would compute a forecast at each look."""
    with cluster.client() as client:
        return client.WaitJobs(pb.WaitJobsRequest(jobs=[str(job)]), timeout=CALL_S).jobs[0]


def until_state(cluster: LocalCluster, job: int, state: pb.JobState.ValueType) -> None:
    wait_until(lambda: job_of(cluster, job).state == state, f"job {job} is {pb.JobState.Name(state)}")


def scheduler(cluster: LocalCluster) -> subprocess.Popen[bytes]:
    return cluster.processes[SCHEDULER]


def run_scheduler(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gavelpy.runtime.daemon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)


def test_a_job_of_a_real_agent_outlives_the_scheduler(cluster: LocalCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = submit(cluster, f'import os, time\nwhile not os.path.exists("{go}"): time.sleep(0.02)')
    until_state(cluster, job, pb.JOB_STATE_RUNNING)

    cluster.kill(SCHEDULER)
    cluster.start_scheduler()
    until_state(cluster, job, pb.JOB_STATE_RUNNING)
    go.touch()
    until_state(cluster, job, pb.JOB_STATE_FINISHED)

    assert job_of(cluster, job).restarts == 0


def test_the_job_of_a_node_that_died_on_this_machine_runs_elsewhere_soon(cluster: LocalCluster) -> None:
    job = submit(cluster, "import time; time.sleep(600)")
    until_state(cluster, job, pb.JOB_STATE_RUNNING)
    (died,) = job_of(cluster, job).node_ids

    cluster.kill_node(next(node for node in cluster.nodes if node.node_id == died))
    began_s = time.monotonic()
    wait_until(lambda: job_of(cluster, job).node_ids not in ([], [died]), "it has another node")
    until_state(cluster, job, pb.JOB_STATE_RUNNING)

    assert time.monotonic() - began_s < SOON_S


def test_an_agent_that_is_killed_alone_is_no_dead_node(cluster: LocalCluster) -> None:
    job = submit(cluster, "import time; time.sleep(600)")
    until_state(cluster, job, pb.JOB_STATE_RUNNING)
    before = job_of(cluster, job)
    node = next(node for node in cluster.nodes if node.node_id == before.node_ids[0])

    cluster.kill(node.node_id)
    wait_until(lambda: cluster.nodes_up() == 1, "the node is silent")
    cluster.start_agent(node)
    wait_until(lambda: cluster.nodes_up() == 2, "it is back")

    after = job_of(cluster, job)
    assert (after.lease, after.node_ids, after.state) == (before.lease, before.node_ids, pb.JOB_STATE_RUNNING)


def test_it_stops_in_good_order_and_leaves_a_snapshot(lone: LocalCluster) -> None:
    lone.start_scheduler()
    job = submit(lone, "pass")

    scheduler(lone).terminate()
    code = scheduler(lone).wait(60.0)
    lone.start_scheduler()

    assert code == 0
    assert '"events": 0, "jobs": 1' in lone.log(SCHEDULER)  # no event had to be replayed
    assert job_of(lone, job).state == pb.JOB_STATE_WAITING


def test_a_second_scheduler_on_the_same_state_is_refused(lone: LocalCluster) -> None:
    lone.start_scheduler()

    second = run_scheduler("--config", str(lone.config))

    assert second.returncode == 2
    assert "in use" in second.stderr


def test_a_journal_that_has_lost_events_needs_a_word(lone: LocalCluster) -> None:
    lone.start_scheduler()
    first = submit(lone, "pass")
    lone.kill(SCHEDULER)
    log = Path(read_config(lone.config).scheduler.state_directory) / "journal.sqlite-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    harmed = log.read_bytes()

    refused = run_scheduler("--config", str(lone.config))

    assert refused.returncode == 3
    assert refused.stderr.startswith("error: ")
    assert " are lost (" in refused.stderr
    assert "--accept-loss" in refused.stderr
    assert log.read_bytes() == harmed
    command = [sys.executable, "-m", "gavelpy.runtime.daemon", "--config", str(lone.config), "--accept-loss"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as accepted:
        lone.processes[SCHEDULER] = accepted
        wait_until(lone.is_serving, "it serves")
        with lone.client() as client:
            lost = client.GetJob(pb.GetJobRequest(job=str(first)), timeout=CALL_S)
        again = submit(lone, "pass")
        accepted.terminate()
        accepted.communicate(timeout=60.0)
    assert lost.job.state == pb.JOB_STATE_FAILED
    assert "lost with the journal: events " in lost.history[-1]
    assert again > first
    assert accepted.returncode == 0


def test_hangup_reads_the_configuration_again_and_a_bad_one_changes_nothing(lone: LocalCluster) -> None:
    lone.start_scheduler()
    good = lone.config.read_text()

    lone.config.write_text(good.replace("max_min_fairness", "nonsense"))
    scheduler(lone).send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration not reloaded" in lone.log(SCHEDULER), "it complains")
    lone.config.write_text(good.replace("max_min_fairness", "fifo"))
    scheduler(lone).send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in lone.log(SCHEDULER), "it has read it")

    assert "policy must be one of" in lone.log(SCHEDULER)
    with lone.client() as client:
        assert client.GetCluster(pb.GetClusterRequest(), timeout=CALL_S).policy == "fifo"


def test_hangup_while_it_starts_is_heeded_when_it_is_up(lone: LocalCluster) -> None:
    good, pipe = lone.config.read_text(), lone.config
    pipe.unlink()
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "gavelpy.runtime.daemon", "--config", str(pipe)]
    with (lone.directory / "scheduler.log").open("ab") as log:
        lone.processes[SCHEDULER] = subprocess.Popen(command, stderr=log)

    with pipe.open("w") as writing:  # the scheduler is still reading its configuration at this moment
        scheduler(lone).send_signal(signal.SIGHUP)
        pipe.unlink()
        pipe.write_text(good)
        writing.write(good)
    wait_until(lambda: "configuration reloaded" in lone.log(SCHEDULER), "it has read it again")

    wait_until(lone.is_serving, "it serves")


def test_metrics_and_health_are_served(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, (), serves_http=True) as lone:
        lone.start_scheduler()
        wait_until(lambda: is_open(lone.http_port), "HTTP is served")

        metrics, ready, healthy = (read(lone, path) for path in ("metrics", "readyz", "healthz"))
        with grpc.insecure_channel(lone.address) as channel:
            request = health_pb2.HealthCheckRequest(service="gavelpy.v1.AgentService")
            health = health_pb2_grpc.HealthStub(channel).Check(request, timeout=CALL_S)

    assert (ready, healthy) == ("ok\n", "ok\n")
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert 'gavel_jobs{state="waiting"} 0.0' in metrics
    assert 'gavel_events_total{kind="SchedulerRestarted"} 1.0' in metrics
    assert "gavel_journal_commit_seconds_count" in metrics


def read(cluster: LocalCluster, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http_port}/{path}", timeout=CALL_S) as answer:
        return str(answer.read().decode())


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_service_manager_is_notified_when_it_is_ready(lone: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(30.0)
        environment = {**os.environ, "NOTIFY_SOCKET": str(path)}
        command = [sys.executable, "-m", "gavelpy.runtime.daemon", "--config", str(lone.config)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            first = manager.recv(100)
            process.send_signal(signal.SIGTERM)
            second = manager.recv(100)

    assert (first, second) == (b"READY=1", b"STOPPING=1")


def test_a_configuration_can_be_checked(lone: LocalCluster, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[scheduler]\nstate_directory = "x"\nlisten = "0.0.0.0:7077"\n')

    right, wrong, missing = (run_scheduler("check-config", str(path)) for path in (lone.config, bad, tmp_path / "none"))

    assert (right.returncode, wrong.returncode, missing.returncode) == (0, 2, 2)
    assert f"cluster {read_config(lone.config).scheduler.name!r}" in right.stdout
    assert wrong.stderr.startswith(f"error: {bad}:3: listen = '0.0.0.0:7077' is open to the network and needs TLS")
    assert "No such file" in missing.stderr


def test_a_tokens_file_that_is_not_there_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text('[scheduler]\nstate_directory = "x"\n[security]\ntokens = "/nowhere/tokens.json"\n')

    checked = run_scheduler("check-config", str(file))

    assert checked.returncode == 0
    assert checked.stderr.startswith(
        "warning: security.tokens = '/nowhere/tokens.json' does not exist: all calls are refused"
    )


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ('[nodes]\ncheckpoint_directory = "/proc/nowhere/x"', "nodes.checkpoint_directory = '/proc/nowhere/x'"),
        ('[scheduler]\njournal = "sqlite:////nowhere/x.db"', "journal's directory must exist"),
        ('[scheduler]\nlisten = "0.0.0.0:7077"', "needs TLS"),
        ('[policy]\nname = "nothing"', "policy must be one of"),
    ],
    ids=["checkpoints", "journal", "exposure", "policy"],
)
def test_a_configuration_that_is_refused_leaves_nothing_behind(tables: str, complaint: str, tmp_path: Path) -> None:
    state = f'[scheduler]\nname = "x"\nstate_directory = "{tmp_path}/deep/state"\nhttp_listen = ""'
    state += "" if "listen" in tables else '\nlisten = "127.0.0.1:0"'
    text = tables.replace("[scheduler]", state) if "[scheduler]" in tables else f"{state}\n{tables}"
    (tmp_path / "scheduler.toml").write_text(f"{text}\n")

    refused = run_scheduler("--config", str(tmp_path / "scheduler.toml"))

    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["scheduler.toml"]
