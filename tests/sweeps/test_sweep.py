"""Sweeps: results are those of single simulations, survive kills, and keep failures as rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gavelpy
from gavelpy.sweeps import run
from gavelpy.sweeps.backends import DIED, Backend, run_all
from gavelpy.sweeps.cells import Cell, run_cell
from gavelpy.sweeps.grid import grid_of
from gavelpy.sweeps.store import CELLS, RESULTS, Store, finished_in

pytest.importorskip("pyarrow")

SMALL: dict[str, Any] = {"generate": 8, "cluster": "v100:2,k80:2", "rate_per_h": 4.0, "policy": ["fifo", "las"]}
TIMES = ["wall_s", "cpu_s", "cpu_solve_s", "cell_cpu_s"]
DYING = """
import os
from gavelpy.policies.fifo import Fifo
class Dying(Fifo):
    name = "dying"
    def allocate(self, problem, solver=None):
        os._exit(3)
"""
FILE = 'generate = 6\ncluster = "v100:2,k80:2"\nrate_per_h = [2, 4]\npolicy = "fifo,las"\nseed = "0..4"\n'


def same(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Whether two sweeps have equal results; run times differ."""
    return a.drop(columns=TIMES).equals(b.drop(columns=TIMES))


def begin(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """A sweep of FILE as a command, in a process group of its own."""
    (folder / "sweep.toml").write_text(FILE)
    command = [str(Path(sys.executable).parent / "gavel"), "sweep", "sweep.toml", "--out", "out", *more]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_row_is_the_result_of_the_same_simulation(tmp_path: Path) -> None:
    frame = gavelpy.sweep({**SMALL, "seed": 3}, jobs=1)
    row = frame[frame["policy"] == "las"].iloc[0]

    command = [str(Path(sys.executable).parent / "gavel"), "simulate", "--generate", "8", "--rate-per-h", "4"]
    command += ["--cluster", "v100:2,k80:2", "--policy", "las", "--seed", "3", "-o", "json"]
    alone = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["results"]["las"]
    hours = {f"gpu_hours_{name}": value for name, value in alone.pop("gpu_hours").items()}
    known = {name: value for name, value in (alone | hours).items() if value is not None and name not in TIMES}
    assert {name: row[name] for name in known} == known


def test_finished_cells_do_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = gavelpy.sweep(SMALL, out=tmp_path, jobs=1)
    ran: list[Cell] = []

    def record(cells: list[Cell], *_: object, **__: object) -> Any:
        ran.extend(cells)
        return run_all(cells, Backend.PROCESSES, jobs=1)

    monkeypatch.setattr(run, "run_all", record)
    again = gavelpy.sweep({**SMALL, "seed": [0, 1]}, out=tmp_path)

    assert len(first) == 2
    assert [cell.options["seed"] for cell in ran] == [0, 1, 0, 1], "a given seed is another input than a default"
    again = gavelpy.sweep({**SMALL, "seed": [0, 1]}, out=tmp_path)
    assert len(ran) == 4
    assert pd.read_parquet(tmp_path / RESULTS).equals(again)


@pytest.mark.parametrize("length", [0, 1, 40, -2])
def test_half_of_a_file_does_not_count(length: int, tmp_path: Path) -> None:
    grid = grid_of({**SMALL, "policy": "fifo"})
    (cell,) = grid.cells
    Store(tmp_path).add(cell, {"avg_jct_s": 1.0})
    path = tmp_path / CELLS / f"{cell.key}.json"
    assert finished_in(tmp_path, grid.cells) == {cell.key: {"avg_jct_s": 1.0}}

    path.write_bytes(path.read_bytes()[:length])

    assert finished_in(tmp_path, grid.cells) == {}


@pytest.mark.slow
def test_table_stays_whole_when_a_sweep_is_killed_while_it_writes(tmp_path: Path) -> None:
    first = gavelpy.sweep(SMALL, out=tmp_path, jobs=1)
    program = f"""
import os, signal, pandas, gavelpy
def killed(self, path, **_):
    path.write_bytes(b"PAR1 half of a table")
    os.kill(os.getpid(), signal.SIGKILL)
pandas.DataFrame.to_parquet = killed
gavelpy.sweep({SMALL | {"seed": 5}!r}, out={str(tmp_path)!r}, jobs=1)
"""

    code = subprocess.run([sys.executable, "-c", program], check=False).returncode

    assert code == -signal.SIGKILL
    assert pd.read_parquet(tmp_path / RESULTS).equals(first)
    (half,) = tmp_path.glob(f".{RESULTS}.*")
    os.utime(half, (1.0, 1.0))
    resumed = gavelpy.sweep(SMALL | {"seed": 5}, out=tmp_path, jobs=1)
    assert pd.read_parquet(tmp_path / RESULTS).equals(resumed)
    assert not half.exists()


def test_leftovers_of_killed_sweeps_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    store, names = Store(tmp_path), (f".{RESULTS}", f"{CELLS}/.a.json")
    old, fresh = ([tmp_path / f"{name}.{kind}" for name in names] for kind in ("old", "fresh"))
    for path in (*old, *fresh):
        path.write_bytes(b"half")
    for path in old:
        os.utime(path, (1.0, 1.0))

    store.write_table(pd.DataFrame({"a": [1.0]}))

    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in fresh)
    assert {path.name for path in tmp_path.iterdir()} == {CELLS, RESULTS, fresh[0].name}


def test_two_sweeps_at_the_same_time_in_one_directory_have_their_own_results(tmp_path: Path) -> None:
    grids = [{**SMALL, "policy": "fifo", "seed": seeds} for seeds in ([0, 1], [1, 2])]
    with ThreadPoolExecutor(2) as pool:
        frames = list(pool.map(lambda grid: gavelpy.sweep(grid, out=tmp_path, jobs=1), grids))

    alone = [gavelpy.sweep(grid, jobs=1) for grid in grids]
    assert [same(a, b) for a, b in zip(frames, alone, strict=True)] == [True, True]
    table = pd.read_parquet(tmp_path / RESULTS)
    assert any(table.equals(frame) for frame in frames)
    assert len(list(tmp_path.glob(f"{CELLS}/*.json"))) == 3


@pytest.mark.parametrize("age_s", [0, 100])
def test_change_of_a_file_that_leaves_size_and_time_is_another_content(
    age_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now_ns = tmp_path / "a.csv", time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + age_s * 10**9)
    keys = []
    for steps in (100, 900):
        path.write_text(f"id,arrival_s,steps_total,gpus,rate_v100\na,0,{steps},1,10\n")
        os.utime(path, (1e9, 1e9))
        keys.append(Cell.of({"trace": str(path), "cluster": "v100:1"}).key)
        time.sleep(0.02)  # a tick of the clock of the file system

    assert keys[0] != keys[1]


def test_killed_sweep_resumes_to_the_results_of_an_undisturbed_one(tmp_path: Path) -> None:
    process = begin(tmp_path, "--jobs", "1")
    deadline_s = time.monotonic() + 60
    while len(list(tmp_path.glob(f"out/{CELLS}/*.json"))) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    kill(process)
    grid = grid_of(tmp_path / "sweep.toml")
    done = finished_in(tmp_path / "out", grid.cells)

    resumed = gavelpy.sweep(tmp_path / "sweep.toml", out=tmp_path / "out", jobs=1)

    assert 3 <= len(done) < len(grid.cells)
    assert same(resumed, gavelpy.sweep(tmp_path / "sweep.toml", jobs=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_sweep_killed_at_random_moments_loses_nothing(seed: int, tmp_path: Path) -> None:
    chance, kills = random.Random(seed), 0
    begin(tmp_path, "--dry-run").wait()
    undisturbed = gavelpy.sweep(tmp_path / "sweep.toml", jobs=1)
    while (process := begin(tmp_path, "--jobs", "2")).poll() is None:
        if kills == 4:
            process.wait()
            break
        time.sleep(chance.uniform(1.0, 4.0))
        kill(process)
        kills += 1

    assert process.returncode == 0
    assert same(pd.read_parquet(tmp_path / "out" / RESULTS), undisturbed)


def test_failures_are_rows_with_their_errors(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(DYING.replace("os._exit(3)", "return 1 / 0"))
    options = {**SMALL, "policy": [f"{tmp_path}/bad.py:Dying", "fifo"]}

    frame = gavelpy.sweep(options, out=tmp_path / "out", jobs=1)

    assert frame["error_type"].tolist() == ["ZeroDivisionError", ""]
    assert frame["policy"].tolist() == ["bad.py:Dying", "fifo"]
    assert frame["avg_jct_s"].isna().tolist() == [True, False]
    assert gavelpy.sweep(options, out=tmp_path / "out", jobs=1, retry_failed=True)["error_type"].iloc[0]


def test_cell_that_kills_its_process_is_a_row_and_the_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    grid = grid_of({**SMALL, "policy": ["fifo", f"{tmp_path}/dying.py:Dying", "las"]})

    ended = {cell.label: results for cell, results in run_all(grid.cells, Backend.PROCESSES, jobs=2)}

    assert len(ended) == 3
    assert [label for label, results in ended.items() if results == DIED] == [
        cell.label for cell in grid.cells if "dying" in cell.label
    ]


def test_file_that_changed_since_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,arrival_s,steps_total,gpus,rate_v100\na,0,100,1,10\n")
    (cell,) = grid_of({"trace": str(path), "cluster": "v100:1"}).cells

    path.write_text("id,arrival_s,steps_total,gpus,rate_v100\na,0,900,1,10\n")

    assert run_cell(cell)["error"].endswith("a.csv: trace must be as it was at the start, got another content")


@pytest.mark.filterwarnings("ignore")  # of Dask
def test_dask_cluster_gives_the_same_results(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        frame = gavelpy.sweep(SMALL, out=tmp_path, backend="dask", address=cluster.scheduler_address)

    assert same(frame, gavelpy.sweep(SMALL, jobs=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_ray_cluster_gives_the_same_results() -> None:
    pytest.importorskip("ray")

    frame = gavelpy.sweep(SMALL, backend="ray", jobs=1)

    assert same(frame, gavelpy.sweep(SMALL, jobs=1))


def test_address_of_nothing_is_one_line() -> None:
    pytest.importorskip("distributed")

    with pytest.raises(gavelpy.InvalidInput, match="--address must be that of a Dask scheduler, got"):
        gavelpy.sweep(SMALL, backend="dask", address="tcp://127.0.0.1:1")
    with pytest.raises(gavelpy.InvalidInput, match="--address needs --backend dask or ray"):
        gavelpy.sweep(SMALL, address="tcp://127.0.0.1:1")
    with pytest.raises(gavelpy.InvalidInput, match="backend must be one of processes, dask, ray, got 'spark'"):
        gavelpy.sweep(SMALL, backend="spark")
