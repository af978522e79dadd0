"""Grids: the cells of a file, and one clear line for each mistake in it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gavelpy.cli.simulate import simulate
from gavelpy.errors import InvalidInput
from gavelpy.sweeps.cells import Cell, cell_options
from gavelpy.sweeps.grid import grid_of

OUTPUTS = {"output", "report", "figures", "journal", "ablate"}  # ablate: several simulations
TRACE = "id,arrival_s,steps_total,gpus,rate_v100\na,0,100,1,10\nb,5,200,1,2\n"


def sweep_file(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_option_of_simulate_but_its_outputs_is_one_of_cells() -> None:
    assert set(cell_options()) == set(inspect.signature(simulate).parameters) - OUTPUTS


def test_cells_are_all_combinations_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = 'generate = 5\ncluster = "v100:2"\nrate_per_h = [2, 4.0]\npolicy = "fifo,las@blind"\nseed = "3..5"\n'

    grid = grid_of(sweep_file(tmp_path, text))

    assert len(grid.cells) == 2 * 2 * 3
    assert grid.varied == ("rate_per_h", "policy", "seed")
    assert grid.numeric == ("rate_per_h",)
    assert grid.cells[0].label == "generate=5 cluster=v100:2 rate_per_h=2.0 policy=fifo seed=3"
    assert grid.cells[-1].label == "generate=5 cluster=v100:2 rate_per_h=4.0 policy=las@blind seed=5"


def test_tables_are_grids_of_their_own_and_equal_cells_count_once(tmp_path: Path) -> None:
    tables = ("seed = [0, 1]", "seed = [1, 2]", "multi_gpu = true")
    text = 'generate = 5\ncluster = "v100:2"\n' + "".join(f"[[grid]]\n{table}\n" for table in tables)

    grid = grid_of(sweep_file(tmp_path, text))

    assert [cell.options.get("seed") for cell in grid.cells] == [0, 1, 2, None]
    assert grid.varied == ("seed", "multi_gpu")


def test_mapping_is_a_grid_too() -> None:
    grid = grid_of({"generate": 5, "cluster": "v100:2", "seed": range(3)})

    assert [cell.options["seed"] for cell in grid.cells] == [0, 1, 2]


def test_key_follows_the_whole_input(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TRACE)
    (tmp_path / "copy.csv").write_text(TRACE)
    (tmp_path / "b.csv").write_text(TRACE.replace("200", "201"))
    key = {name: Cell.of({"trace": str(tmp_path / f"{name}.csv")}).key for name in ("a", "copy", "b")}

    assert key["a"] == key["copy"] != key["b"]
    assert Cell.of({"generate": 5}).key != Cell.of({"generate": 6}).key
    assert Cell({"generate": 5}, version="1").key != Cell({"generate": 5}, version="2").key


def test_key_follows_the_rates_that_a_scheduler_s_file_names(tmp_path: Path) -> None:
    rates, config, trace = tmp_path / "rates.csv", tmp_path / "scheduler.toml", tmp_path / "trace.csv"
    config.write_text(f'[throughputs]\nfile = "{rates}"\n')
    trace.write_text("id,arrival_s,steps_total,gpus,job_type\na,0,1000,1,small\n")
    options = {"trace": str(trace), "scheduler_config": str(config), "policy": "fifo", "cluster": "v100:1"}
    found = []

    for rate in (10, 2000, 10):
        rates.write_text(f"job_type,gpus,gpu_type,rate_steps_per_s\nsmall,1,v100,{rate}\n")
        cell = Cell.of(options)
        (job,) = cell.experiment().trace.jobs
        found.append((cell.key, job.rates_steps_per_s["v100"]))

    assert found[0] == found[2]
    assert found[0][0] != found[1][0]
    assert [rate for _, rate in found] == [10.0, 2000.0, 10.0]


def test_files_of_an_option_that_is_repeatable_are_joined_by_commas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("at_s,event,node,gpu_type,gpus\n0,joined,n1,v100,4\n")
    (tmp_path / "b.csv").write_text("at_s,event,node,gpu_type,gpus\n9,joined,n2,v100,4\n")
    path = sweep_file(tmp_path, 'generate = 5\ncluster = "v100:2"\nnode_events = ["a.csv", "a.csv, b.csv"]')

    one, both = grid_of(path).cells

    assert (one.shown()["node_events"], both.shown()["node_events"]) == ("a.csv", "a.csv,b.csv")
    assert one.key != both.key
    assert len(one.experiment().trace.node_changes) == 1
    assert len(both.experiment().trace.node_changes) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('generate = 3\npolcy = "x"', "sweep.toml:2: polcy is not an option of simulations; did you mean 'policy'?"),
        ('generate = 5\nrate_per_h = [1, "x"]', "sweep.toml:2: rate_per_h must be a number in [1e-09, 1e+09], got 'x'"),
        ("generate = 5\nrate_per_h = nan", "sweep.toml:2: rate_per_h must be a number in [1e-09, 1e+09], got 'nan'"),
        ("generate = 5\nseed = 1.5", "sweep.toml:2: seed must be a whole number in [0, 9223372036854775807], got"),
        ("generate = 5\nseed = []", "sweep.toml:2: seed must have at least one value, got []"),
        ("generate = 5\nseed = [1, 1]", "sweep.toml:2: seed must have each value once, got 1 twice"),
        ('generate = 5\ncluster = ["v100:3", "v100"]', "sweep.toml:2: cluster must look like v100:36,k80:12, got"),
        ("generate = 5\npolicy = 3", "sweep.toml:2: policy must be a text in quotes, got 3"),
        ('generate = 5\npolicy = ["fifo", "fufo"]', "sweep.toml:2: policy must be one of allox, "),
        ("generate = 5\nmulti_gpu = 1", "sweep.toml:2: multi_gpu must be true or false, got 1"),
        ("generate = 5\nround_s = true", "sweep.toml:2: round_s must be a text or a number, not a table, date or flag"),
        ("generate = 5\nround_s = 1979-05-27", "sweep.toml:2: round_s must be a text or a number, not a table, date"),
        ("generate = 5\nclaims_off = 2", "sweep.toml:2: --claims-off needs --estimate, got --claims-off 2 without"),
        ("generate = 5\n\n[[grid]]\nseed = 1\n[[grid]]\nseed = -1", "sweep.toml:6: seed must be a whole number in [0,"),
        ("[grid]\nseed = 1", "sweep.toml:1: grid must be tables, [[grid]], got {'seed': 1}"),
        ("[cluster]\nv100 = 3", "sweep.toml:1: cluster must be a value or a list of values, got the table {'v100': 3}"),
        ("generate = 5\nseed = [", "sweep.toml:2: text must be TOML: "),
        ("seed = 1\nseed = 2", "sweep.toml:2: text must be TOML: "),
        ("seed = 1", "sweep.toml: simulate takes either a TRACE or --generate N, got neither"),
        ('trace = "no.csv"', "sweep.toml:1: trace must be a readable file, got "),
        ('seed = "0..2000000"\ngenerate = 1', "sweep.toml:1: seed must be a whole number in [0,"),
    ],
)  # fmt: skip
def test_mistake_is_one_line_with_file_line_key_and_value(text: str, message: str, tmp_path: Path) -> None:
    path = sweep_file(tmp_path, text)

    with pytest.raises(InvalidInput) as caught:
        grid_of(path)

    assert str(caught.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(caught.value)


def test_paths_are_relative_to_the_file_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text(TRACE)
    path = sweep_file(tmp_path, 'trace = "a.csv"\ncluster = "v100:1"')
    monkeypatch.chdir("/")

    (cell,) = grid_of(path).cells

    assert len(cell.experiment().trace) == 2
    assert cell.shown()["trace"] == "a.csv"
