"""Samples of every TOML file that a user writes, their readers, and mutations of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gavelpy.cli.job_files import expanded, read_job_file
from gavelpy.cli.scheduler_config import read_scheduler_file
from gavelpy.cli.sweep_files import read_sweep_file
from gavelpy.runtime.agent.config import node_config
from gavelpy.runtime.client.settings import load_settings
from gavelpy.runtime.daemon.config import read_config, read_teams
from gavelpy.simulator.conditions.spec import read_conditions
from gavelpy.sweeps.grid import grid_of
from gavelpy.traces.cluster_file import read_cluster

TEAMS: Final = """
[teams.vision]
weight = 2
policy = "fairness"
members = ["alice", "bob"]
quota = {v100 = 8, "v100:cpus" = 64}
guaranteed = {v100 = 4}
[teams.speech]
parent = "vision"
policy = "fifo"
"""
SCHEDULER: Final = f"""
[scheduler]
state_directory = "state"
listen = "127.0.0.1:7077"
http_listen = "127.0.0.1:7078"
journal_backups = 2
[security]
tokens = "tokens.json"
[policy]
name = "hierarchical"
blind = false
parameters = {{}}
[mechanism]
round_s = 360
solve_interval_s = 1
lease_min_s = 20
move_lag_s = 100
placement = "best_fit"
consolidate_s = 60
defragment = true
failures_max = 5
retry_s = 10
gpus_a_user_max = 10
packing = true
[priorities.high]
value = 100
preempts = ["normal"]
owners = ["alice"]
{TEAMS}
[gpu_types.v100]
memory_gib = 16
[nodes]
checkpoint_directory = "/srv/checkpoints"
on_node_lost = "wait"
silent_after_s = 10
[journal]
retention = "7d"
[prices]
usd_per_gpu_h = {{ v100 = 2.5 }}
"""
NODE: Final = """
[node]
scheduler = "127.0.0.1:7077"
state_directory = "/var/lib/node"
node_id = "node-7"
gpus = "v100:4,k80:2"
address = "10.0.0.7"
memory_bytes_per_gpu = 68719476736
run_as = "agent"
users = { alice = "alice_local" }
images = ["docker.io/pytorch/*"]
image_tool = "none"
speed_factor = 1.0
log_files_max = 4
silent_start_s = 60
cpus = 4.0
rack = "r"
[node.types.v100]
devices = ["0", "1"]
cpus = 2.0
"""
GRID: Final = """
generate = 6
cluster = "v100:8,p100:8"
rate_per_h = [2, 4]
policy = ["fifo", "max_min_fairness"]
seed = "0..2"
round_s = 360
[[grid]]
multi_gpu = true
[[grid]]
restart_s = [1, 2]
"""
JOBS: Final = """
[[job]]
name = "resnet"
command = "python train.py"
steps_total = 20000
gpus = 2
weight = 2.0
hold = true
environment = { A = "b" }
working_directory = "."
venv = "venv"
rates_steps_per_s = { v100 = 40.0 }
[[job]]
name = "sweep"
command = ["python", "sweep.py", "{index}"]
steps_total = 500
job_type = "ResNet-18 (batch size 64)"
array = "0-9%2"
after = ["resnet"]
"""
SEARCH: Final = """
name = "tune"
metric = "loss"
direction = "min"
schedule = "successive_halving"
eta = 3
steps_min = 100
jobs = 9
seed = 7
[parameters]
lr = { log_uniform = [1e-4, 1e-1] }
width = [64, 128, 256]
[job]
command = "python train.py --lr {lr} --width {width}"
steps_total = 900
rates_steps_per_s = { v100 = 10.0 }
"""
CONDITIONS: Final = """
[costs]
start = 12
restore = { gib = 14, gib_per_s = 2 }
checkpoint = { median_s = 5, sigma = 0.4 }
[costs.types."LM (batch size 80)"]
checkpoint = 9
[nodes]
mtbf_h = 2000
repair = { median_s = 3600, sigma = 1 }
nodes_per_rack = 8
[job_failures]
early_share = 0.1
[trials]
most_s = 900
gpu_type = "k80"
gpus = 8
"""
CLUSTER: Final = """
[[nodes]]
name = "a"
gpu_type = "v100"
gpus = 4
count = 3
cpus = 16
rack = "r"
nodes_per_rack = 2
[prices_usd_per_gpu_h]
v100 = 2.5
"""
CLIENT: Final = """
scheduler = "127.0.0.1:7077"
token_file = "token"
timeout_s = 10
"""


def _read_client_settings(file: Path) -> object:
    place = file.parent / "gavel" / "config.toml"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(file.read_bytes())
    return load_settings({}, {"XDG_CONFIG_HOME": str(file.parent)})


READERS: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "scheduler": (read_config, SCHEDULER),
    "scheduler-of-simulation": (read_scheduler_file, SCHEDULER),
    "teams": (read_teams, TEAMS),
    "node": (lambda file: node_config({}, file), NODE),
    "grid": (grid_of, GRID),
    "jobs": (lambda file: [job.message() for job in expanded(read_job_file(file))], JOBS),
    "search": (lambda file: [job.message() for job in read_sweep_file(file)], SEARCH),
    "conditions": (read_conditions, CONDITIONS),
    "cluster": (read_cluster, CLUSTER),
    "client": (_read_client_settings, CLIENT),
}
VALUES: Final = (
    *("nan", "inf", "-inf", "1e999", "-1", "0", "1", "2", "-0.0", "0.5", "1e-320", "1e308", "18446744073709551616"),
    *("9" * 5_000, "9" * 400, "0x10", "1_000", "true", "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00"),
    *("[]", "{}", '""', '["a", 1]', '["a", "a"]', "[[[]]]", "[nan]", "[" * 3_000 + "]" * 3_000, "{a={b={c=1}}}"),
    *("{v100=nan}", "{v100=-1}", '{v100="x"}', '{""=1}', '{"a b\\n"=1}', '"\\u0000"', '"\\u001b[31mred"', '"\\n x"'),
    *('"%s"', '"nan"', '"1"', '"a"', '"~", "~nobody-here/x"', '"é"', '"../.."', "'''a\nb'''", '"' + "x" * 9_000 + '"'),
)  # fmt: skip
LINES: Final = (
    *("[x]", "[[x]]", "[x.y]", '[""]', "[mechanism]", "[teams]", "[[teams]]", '[teams.""]', '[teams."a b"]', "x = 1"),
    *("[priorities]", '[node.types."v 100"]', "[costs.types]", "[job]", "[[job]]", "[[grid]]", "[nodes]", "[[nodes]]"),
    *("[parameters]", "teams = 3", "job = 3", "grid = []", "\0", "= 1", "[teams.'\x1b']", '"\\u001b" = 1', "a.b.c = 1"),
)  # fmt: skip
SPLICES: Final = (b"nan", b"-1", b'"', b"\n", b"\0", b"\xff", b",", b"]", b"[", b"{", b"=", b"\\ud800", b"'''", b".")


def damaged(rng: random.Random, text: str) -> bytes:
    """`text` with another value, another line, a line less, or other bytes."""
    lines = text.split("\n")
    at = rng.choice([row for row, line in enumerate(lines) if "=" in line])
    match rng.randrange(8):
        case 0:
            lines.insert(at, rng.choice(LINES))
        case 1:
            lines[at] = lines[rng.randrange(len(lines))]
        case 2:
            data = text.encode()
            start = rng.randrange(len(data))
            return data[:start] + rng.choice(SPLICES) + data[start + rng.randint(0, 8) :]
        case _:
            lines[at] = lines[at].split("=")[0] + "= " + rng.choice(VALUES)
    return "\n".join(lines).encode()
