"""Every row of docs/coming-from-slurm.md is tried: its command runs against a real scheduler and two agents.

A row without a trial fails, as does a trial without a row. What a row with a dash claims to be missing must be missing.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.main import main
from gavelpy.cli.output import BAD_INPUT
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2
from tests.conftest import PROJECT, every_third_fast
from tests.docs.reservation_trials import RESERVATION_TRIALS, prepare_reservation, reclassed, runs_within_reservation
from tests.docs.shell import Ran, User, page_at, posted_to

PAGE = (PROJECT / "docs" / "coming-from-slurm.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n\n((?:.|\n)*?)(?=^## |\Z)", PAGE, re.MULTILINE))
NOT_COMMANDS = ("In a job", "States")
DASH = "–"
SETTINGS = {
    "priorities.high": {"value": 100, "preempts": ["normal"]},
    "mechanism": {"round_s": 2.0, "failures_max": 0},
    "notifications": {"webhook_hosts": ["127.0.0.1:18999"]},
    "nodes": {"grace_s": 0.5, "silent_after_s": 3.0, "lease_margin_s": 0.2, "lease_overlap_s": 1.0,
              "unsaved_overlap_s": 1.0},
}  # fmt: skip
FILES = {
    "job.sh": "#!/bin/sh\necho from the script; sleep 0.1\n",
    "train.py": "import os, sys\nprint('trained', *sys.argv[1:], 'LR =', os.environ.get('LR'), flush=True)\n",
    "ranks.py": "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n",
    "jobs.toml": '[[job]]\nname = "filed"\ncommand = "python train.py"\nsteps_total = 9\nrates_steps_per_s.v100 = 9\n',
    "long.py": "import time\nprint('begun', flush=True)\ntime.sleep(600)\n",
    "env.py": "import json, os\nprint(json.dumps(dict(os.environ)), flush=True)\n",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    slurm: str
    command: str  # empty = there is no equivalent
    remarks: str


def rows_of(section: str) -> list[Row]:
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in section.splitlines() if "|" in line]
    full = [[*row, ""][:3] for row in cells[2:]]
    return [Row(slurm, command.strip("`").replace(DASH, ""), remarks.strip("| ")) for slurm, command, remarks in full]


ROWS = [row for title, section in SECTIONS.items() if title not in NOT_COMMANDS for row in rows_of(section)]
COMMANDS, ABSENT = [row for row in ROWS if row.command], [row for row in ROWS if not row.command]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A scheduler, two nodes, and a third that is lost."""
    nodes = LocalNode("n1", "v100:4"), LocalNode("n2", "k80:2"), LocalNode("n3", "k80:1")
    with LocalCluster(tmp_path_factory.mktemp("slurm"), nodes, SETTINGS) as started:
        started.start()
        started.kill_node(nodes[2])
        yield started


@pytest.fixture
def user(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> User:
    """A user with a running job `resnet`, a waiting one `queued`, and `short` and `broken`, which are over."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "job.sh").chmod(0o755)
    found = User(cluster, capsys)
    if not found.has("resnet"):
        found("gavel submit --name resnet --entity vision --rate v100:10 --steps 10000 -- python long.py")
    if not found.has("queued"):
        found("gavel submit --name queued --gpus 8 --rate v100:10 --steps 10000 -- python long.py")
    if json.loads(found("gavel jobs --ended -o json").out)["jobs"] == []:
        found("gavel submit --name short --rate v100:10 --steps 1 -- python train.py")
        found("gavel submit --name broken --rate v100:10 --steps 1 -- false")
    found.until("resnet", "running")
    found.until("short", "finished")
    found.until("broken", "failed")
    return found


def submitted(check: Callable[[dict[str, Any]], bool]) -> Callable[[Ran], None]:
    """The description of the submitted job has the value, and the job ends well."""

    def trial(ran: Ran) -> None:
        assert check(ran.user.description(ran.job)), ran.user.description(ran.job)
        ran.user.finish(ran.job)

    return trial


def prints(*words: str) -> Callable[[Ran], None]:
    """The output contains these words."""

    def trial(ran: Ran) -> None:
        assert [word for word in words if not re.search(word, ran.out + ran.err)] == [], ran.out

    return trial


def outputs(text: str) -> Callable[[Ran], None]:
    """The submitted job prints this text."""

    def trial(ran: Ran) -> None:
        assert text in ran.user.finish(ran.job)

    return trial


def _warned(ran: Ran) -> None:
    described, _ = ran.user.description(ran.job), ran.user(f"gavel cancel {ran.job}")
    assert (described["warning_s"], described["warning_signal"]) == (60, signal.SIGUSR1)


def _array(ran: Ran) -> None:
    names = [line.split("\t")[1] for line in ran.out.splitlines()]
    assert names == ["sweep-0", "sweep-1", "sweep-2", "sweep-3"]
    assert "trained --seed 2" in ran.user.finish("sweep-2")


def _bounded_array(ran: Ran) -> None:
    assert ran.user.description("few-3")["array_limit"] == 2
    ran.user.finish("few-3")


def _ranks(ran: Ran) -> None:
    text = ran.user.finish("ranks")
    wait_until(lambda: text.count(" of 2") == 2 or ran.user("gavel logs ranks").out.count(" of 2") == 2, "both printed")


def _dry_run(ran: Ran) -> None:
    again = "gavel submit --dry-run --rate v100:10 --steps 100 -- true"  # a busy machine may cut a forecast off
    wait_until(lambda: all(word in ran.out or word in ran.user(again).out for word in ("v100", "n1")), "a forecast")


def _held(ran: Ran) -> None:
    assert ran.user.job("held")["held_by"] == "owner"
    ran.user("gavel release held")
    ran.user.finish("held")


def _later(ran: Ran) -> None:
    assert ran.user.job("later")["begin_at_s"] - time.time() == pytest.approx(7200, abs=60)
    ran.user("gavel cancel later")


def _requeued(ran: Ran) -> None:
    wait_until(lambda: ran.user.job("again")["restarts"] == 1, "it runs under its second lease")
    ran.user("gavel cancel again")


def _notified(ran: Ran) -> None:
    assert posted_to(18_999)["event"] == "end"


def _hold(ran: Ran) -> None:
    assert ran.user.job("queued")["held_by"]
    ran.user("gavel release queued")


def _released(ran: Ran) -> None:
    assert not ran.user.job("queued")["held_by"]


def _drained(ran: Ran) -> None:
    assert ran.user.node("n2")["state"] in ("draining", "drained")
    ran.user("gavel node resume n2")


def _resumed(ran: Ran) -> None:
    assert ran.user.node("n2")["state"] == "up"


def _lost(ran: Ran) -> None:
    assert ran.user.node("n3")["state"] == "lost"


def _listed(*present: str, absent: tuple[str, ...] = ()) -> Callable[[Ran], None]:
    def trial(ran: Ran) -> None:
        names = {line.split()[1] for line in ran.out.splitlines()[1:]}
        assert set(present) <= names
        assert not names & set(absent)

    return trial


def _as_json(ran: Ran) -> None:
    assert {"resnet", "queued"} <= {job["name"] for job in ran.json["jobs"]}


def _nodes_as_json(ran: Ran) -> None:
    details = {node["node_id"]: (node["state"], node["detail"]) for node in ran.json["nodes"]}
    assert details.keys() == {"n1", "n2", "n3"}
    assert details["n3"][0] in ("silent", "lost")


def _usage(ran: Ran) -> None:
    assert "GPU-hours" in ran.out
    assert "vision" in ran.out or "v100" in ran.out


def _spent(ran: Ran) -> None:
    (job,) = ran.json["jobs"]
    assert job["gpu_s"] > 0
    assert job["steps_done"] == 1


def _token(ran: Ran) -> None:
    assert ran.out.startswith("gavel_")


TRIALS: dict[str, Callable[[Ran], None]] = {
    "`sbatch job.sh`": outputs("from the script"),
    "`#SBATCH` lines": outputs("trained"),
    "`sbatch --job-name`": outputs("trained"),
    "`sbatch --gpus=2`": submitted(lambda job: job["gpus"] == 2),
    "`sbatch --ntasks-per-node=1`": submitted(lambda job: job["one_process_a_node"] and job["gpus"] == 2),
    "`sbatch --gres=gpu:v100:1`, `--partition`": submitted(lambda job: job["rates_steps_per_s"] == {"v100": 10.0}),
    "`sbatch --array=0-3`": _array,
    "`sbatch --array=0-3%2`": _bounded_array,
    "`sbatch --wait`": prints("finished"),
    "`sbatch --hold`": _held,
    "`sbatch --begin=now+2hours`": _later,
    "`sbatch --dependency=afterok:JOB`": outputs("trained"),
    "`sbatch --dependency=afterany:JOB`": outputs("trained"),
    "`sbatch --time=1:30:00`": submitted(lambda job: job["time_s"] == 5400),
    "`sbatch --constraint=v100`": submitted(lambda job: job["gpu_types"] == ["v100"]),
    "`sbatch --nodelist=n1`": outputs("on n1"),
    "`sbatch --exclude=n2,n3`": submitted(lambda job: job["exclude"] == ["n2", "n3"]),
    "`sbatch --reservation=course`": runs_within_reservation,
    "`PreemptMode=OFF`": submitted(lambda job: job["no_preempt"]),
    "`sbatch --test-only`": _dry_run,
    "`sbatch --export=LR=0.1`": outputs("LR = 0.1"),
    "`sbatch --chdir=DIR`": outputs("/tmp"),
    "`sbatch --signal=USR1@60`": _warned,
    "`sbatch --account=vision`": submitted(lambda job: job["entity"] == "vision"),
    "`sbatch --qos=high`, `--priority`": submitted(lambda job: job["priority"] == "high"),
    "`sbatch --nice`": submitted(lambda job: job["weight"] == 2),
    "`sbatch --deadline`": submitted(lambda job: job["deadline_s"] == 3600),
    "`sbatch --requeue`": submitted(lambda job: job["preemptible"]),
    "`sbatch --mail-type=END,FAIL --mail-user=ann`": submitted(
        lambda job: job["notify"]["kinds"] == ["end", "failure"]
    ),
    "`sbatch --container-image` (Pyxis), `--container`": lambda ran: wait_until(
        lambda: bool(re.search("containers|cannot be pulled", ran.user("gavel explain contained").out)), "it is refused"
    ),
    "`sbatch --output=FILE`": lambda ran: wait_until(lambda: "begun" in ran.user("gavel logs resnet").out, "arrived"),
    "`sbatch --cpus-per-gpu=1 --mem-per-gpu=1G`": submitted(lambda job: job["cpus_per_gpu"] == 1),
    "`srun COMMAND`": lambda ran: prints("trained")(ran.user("gavel logs now")),
    "`srun --pty bash`, `salloc`": prints(r"on GPU \d"),
    "`ssh -L` to a node": lambda ran: prints("served")(ran.user("gavel cancel served")),
    "`srun` inside a job": _ranks,
    "`sattach`": prints("trained"),
    "`sstat`": prints("resnet", "running"),
    "`squeue`": _listed("resnet", "queued", absent=("short", "broken")),
    "`squeue --array`": _listed("resnet", "queued"),
    "`squeue --states=PENDING`": _listed("queued", absent=("resnet",)),
    "`squeue --user=alice`": prints("^job +name"),
    "`squeue --job=0`": prints("^job +name"),
    "`squeue --start`": prints("needs 8 GPUs|Why: "),
    "`squeue --iterate=1`": prints("resnet", "v100"),
    "`squeue --json`": _as_json,
    "`sprio`": prints("class +weight +share +owed +received +lag +urgency", "resnet"),
    "`sshare`": prints("owed +received"),
    "`scancel 1 2`": lambda ran: ran.user.until("typo", "cancelled"),
    "`scancel --state=PENDING --name=...`": lambda ran: ran.user.until("bulk-1", "cancelled"),
    "`scontrol requeue`": _requeued,
    "`scontrol hold`": _hold,
    "`scontrol release`": _released,
    "`scontrol show job`": prints("History:", "started lease"),
    "`scontrol wait_job`": prints("finished"),
    "`scontrol update JobId=... QOS=...`, `Priority=...`": reclassed,
    "`sinfo`": prints(r"n1 +up +4 ", r"n2 +up +2 "),
    "`sinfo -R`": _nodes_as_json,
    "`scontrol update State=DRAIN`": _drained,
    "`scontrol update State=RESUME`": _resumed,
    "`scontrol update State=DOWN`": _lost,
    **RESERVATION_TRIALS,
    "`scontrol show config`": prints("max_min_fairness"),
    "`scontrol ping`": prints("max_min_fairness"),
    "`slurmctld.log`": prints("submitted by local", "started: job"),
    "`sacct`": _listed("short", "broken", absent=("resnet", "queued")),
    "`sacct --starttime=now-7days`": _listed("short", "broken", absent=("resnet", "queued")),
    "`sacct --state=FAILED`": _listed("broken", absent=("short", "resnet")),
    "`sacct --jobs=0`": prints("finished", "History:"),
    "`seff`": _spent,
    "`sreport cluster AccountUtilizationByUser`": _usage,
    "`sreport cluster Utilization`": _usage,
    "`sdiag`": prints("max_min_fairness"),
    "`sacctmgr add user`": _token,
    "`sacctmgr show qos`": prints("Priority class high: value 100, preempts normal"),
    "`sacctmgr show account`": prints(r"No teams are configured \(\[teams.NAME\] of the scheduler\)"),
}
MISSING = {  # options that a row calls missing
    "`sbatch --exclusive`": "submit --exclusive --steps 1 -- true",
    "`scontrol update JobId=... NumNodes=`": "update resnet",
    "`scontrol suspend`": "suspend resnet",
    "`sacctmgr` limits": "submit --qos high --steps 1 -- true",
}


def prepare(user: User, row: Row) -> None:
    """What a row's command needs, other than a reservation."""
    if row.slurm == "`scancel 1 2`" and not user.has("typo"):
        user("gavel submit --name typo --rate v100:10 --steps 1000 -- python long.py")
    if row.slurm == "`scancel --state=PENDING --name=...`":
        user("gavel submit --name bulk-1 --gpus 8 --rate v100:10 --steps 1000 -- python long.py")
    if row.slurm == "`scontrol requeue`":
        user("gavel submit --name again --rate v100:10 --steps 1000 -- python long.py")
        user.until("again", "running")
    if row.slurm == "`scontrol release`":
        user("gavel hold queued")
    if row.slurm == "`ssh -L` to a node":
        Path("page").write_text("served", encoding="utf-8")
        user("gavel submit --name served --rate v100:10 --steps 1000 -- python -m http.server --bind 127.0.0.1 8888")
        user.until("served", "running")
    if row.slurm == "`sattach`":
        user("gavel submit --name followed --rate v100:10 --steps 10 -- python train.py")
    if row.slurm == "`scontrol update State=DOWN`":
        wait_until(lambda: user.node("n3")["state"] in ("silent", "lost"), "node n3 is silent")


def command_of(row: Row) -> str:
    """The row's command; it follows a job that ends, so that the test ends, and keeps its tokens in its folder."""
    if row.slurm == "`sattach`":
        return row.command.replace("resnet", "followed")
    if row.slurm == "`sacctmgr add user`":
        return f"{row.command} --file {Path.cwd() / 'tokens.json'}"
    return row.command


def run_of(user: User, row: Row) -> Ran:
    """Runs the command: on a terminal if it needs one, in the background if it lasts, else in this process."""
    if " --pty " in row.command:
        return user.on_terminal(row.command, "echo on GPU $CUDA_VISIBLE_DEVICES", r"on GPU \d")
    if " forward " in row.command:
        with user.in_background(row.command.replace("resnet", "served")):
            wait_until(lambda: page_at(18_888) == "served", "the port is forwarded")
        return Ran("", "", user)
    return user(command_of(row))


def test_every_row_has_a_trial() -> None:
    assert [row.slurm for row in COMMANDS] == list(TRIALS)
    assert [row.slurm for row in ABSENT] == list(MISSING)


@pytest.mark.parametrize("row", every_third_fast(COMMANDS, [row.slurm for row in COMMANDS]))
def test_the_command_of_the_row_works(row: Row, user: User) -> None:
    prepare(user, row)
    prepare_reservation(user, row.slurm)

    ran = run_of(user, row)

    TRIALS[row.slurm](ran)


@pytest.mark.parametrize("row", ABSENT, ids=lambda row: row.slurm)
def test_what_is_missing_is_missing_for_a_reason(row: Row, user: User) -> None:
    assert len(row.remarks.split()) >= 6
    assert main(shlex.split(MISSING[row.slurm])) == BAD_INPUT


def test_a_job_has_the_variables_of_the_page(user: User) -> None:
    names = re.findall(r"[A-Z_]{4,}", " ".join(row.command for row in rows_of(SECTIONS["In a job"])))
    ran = user("gavel submit --name variables --rate v100:10 --steps 1 -- python env.py")

    environment = json.loads(user.finish(ran.job))

    assert len(names) > 6
    assert set(names) - set(environment) == set()
    assert environment["GAVEL_JOB_NAME"] == "variables"


def test_the_states_of_the_page_are_those_of_jobs() -> None:
    states = {name.removeprefix("JOB_STATE_").lower() for name in dict(client_pb2.JobState.items())} - {"unspecified"}

    assert {row.command for row in rows_of(SECTIONS["States"])} == states
