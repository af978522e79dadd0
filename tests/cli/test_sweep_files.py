"""Search files: parameters and placeholders, grids and samples, schedules, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gavelpy.cli.app import schedule_in_words
from gavelpy.cli.job_files import JobTemplate
from gavelpy.cli.sweep_files import read_sweep_file
from gavelpy.errors import InvalidInput
from gavelpy.model.apps import AppRole, check_apps

GRID = """
name = "tune"
schedule = "none"
[parameters]
lr = [0.1, 0.01]
optimizer = ["sgd", "adam w"]
[job]
command = "python train.py --lr {lr}"
steps_total = 900
environment = {OPTIMIZER = "{optimizer}"}
"""
RANDOM = """
name = "tune"
metric = "accuracy"
direction = "max"
eta = 3
steps_min = 100
jobs = 9
seed = 7
[parameters]
lr = { log_uniform = [1e-4, 1e-1] }
width = { int_uniform = [8, 16] }
momentum = { uniform = [0.5, 0.9] }
act = ["relu", "tanh"]
[job]
command = "python train.py {lr} {width} {momentum} {act}"
steps_total = 900
"""


def jobs(tmp_path: Path, text: str) -> list[JobTemplate]:
    file = tmp_path / "search.toml"
    file.write_text(text)
    return read_sweep_file(file)


def test_a_grid_has_every_combination_once_in_order(tmp_path: Path) -> None:
    found = jobs(tmp_path, GRID)

    assert [(job.command, job.environment["OPTIMIZER"]) for job in found] == [
        ("python train.py --lr 0.1", "sgd"),
        ("python train.py --lr 0.1", "adam w"),
        ("python train.py --lr 0.01", "sgd"),
        ("python train.py --lr 0.01", "adam w"),
    ]
    assert [job.name for job in found] == ["tune-0", "tune-1", "tune-2", "tune-3"]
    assert not AppRole.parse(found[0].app).rungs
    check_apps([job.app for job in found])


def test_a_value_is_quoted_in_the_command(tmp_path: Path) -> None:
    found = jobs(tmp_path, GRID.replace("--lr {lr}", "--lr {lr} {optimizer}"))

    assert found[1].command == "python train.py --lr 0.1 'adam w'"


def test_samples_are_within_their_ranges_and_depend_on_the_seed_only(tmp_path: Path) -> None:
    found = jobs(tmp_path, RANDOM)
    samples = [job.command.split()[2:] for job in found]

    assert len(found) == 9
    assert all(1e-4 <= float(lr) <= 1e-1 for lr, *_ in samples)
    assert {int(width) for _, width, *_ in samples} <= set(range(8, 17))
    assert all(0.5 <= float(momentum) <= 0.9 for *_, momentum, _ in samples)
    assert len({math.floor(math.log10(float(lr))) for lr, *_ in samples}) > 1, "decades are equally likely"
    assert found == jobs(tmp_path, RANDOM)
    assert found != jobs(tmp_path, RANDOM.replace("seed = 7", "seed = 8"))


def test_successive_halving_is_the_default_and_its_rungs_are_in_the_roles(tmp_path: Path) -> None:
    role = AppRole.parse(jobs(tmp_path, RANDOM)[4].app)

    assert (role.at, role.jobs, role.metric, role.direction) == (4, 9, "accuracy", "max")
    assert role.rungs == ((100.0, 3), (300.0, 1))


def test_a_limit_of_the_wait_at_rungs_is_in_each_role_and_in_words(tmp_path: Path) -> None:
    without, roles = (
        [AppRole.parse(job.app) for job in jobs(tmp_path, text)]
        for text in (RANDOM, RANDOM.replace("eta = 3", "eta = 3\nrung_wait_max_s = 7200"))
    )

    assert {role.rung_wait_max_s for role in without} == {0.0}
    assert {role.rung_wait_max_s for role in roles} == {7200.0}
    assert schedule_in_words(roles[0]) == (
        "successive halving (3 continue after 100 steps, 1 continue after 300 steps; "
        "a job waits there at most 7200 s for the others)"
    )


def test_hyperband_makes_as_many_jobs_as_its_brackets_have(tmp_path: Path) -> None:
    text = RANDOM.replace("jobs = 9\n", "").replace("eta = 3", 'schedule = "hyperband"').replace("900", "8100")

    found = [AppRole.parse(job.app) for job in jobs(tmp_path, text)]

    assert [sum(role.bracket == s for role in found) for s in (4, 3, 2, 1, 0)] == [81, 34, 15, 8, 5]
    assert found[0].rungs[0] == (100.0, 27)
    check_apps([role.text for role in found])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("name = ", "nome = ", "unknown field 'nome'"),
        ('"none"', '"best"', "schedule must be one of none, successive_halving, hyperband"),
        ("lr = [0.1, 0.01]", "lr = []", "parameters.lr must be a list of values"),
        ("lr = [0.1, 0.01]", "lr = {normal = [0, 1]}", "parameters.lr must be a list of values"),
        ("lr = [0.1, 0.01]", "lr = {log_uniform = [0, 1]}", r"parameters.lr.log_uniform must be \[low, high\]"),
        ("lr = [0.1, 0.01]", "lr = {uniform = [0, 1]}", "jobs must be given, the number of random samples"),
        ("{lr}", "{rate}", r"must contain \{lr\}, a parameter"),
        ("steps_total = 900", "", "job.steps_total must be given"),
        ("steps_total = 900", "steps_total = -1", "job.steps_total must be a number above 0"),
        ("[job]\n", '[job]\narray = "0-3"\n', "job must have no array"),
        ('schedule = "none"', "steps_min = 1000", "steps_min must be in"),
        ('schedule = "none"', 'schedule = "hyperband"\njobs = 4', "jobs must be left out or"),
        ('schedule = "none"', 'metric = "a b"', "metric must be 1 to 63"),
        ('schedule = "none"', "rung_wait_max_s = -1", "rung_wait_max_s must be a number of 0 or more, got -1"),
        ('schedule = "none"', 'rung_wait_max_s = "1 h"', "rung_wait_max_s must be a number of 0 or more, got '1 h'"),
        ('"none"', '"none"\nrung_wait_max_s = 9', "rung_wait_max_s of an app must be left out with schedule=none"),
    ],
)
def test_a_file_that_cannot_be_names_the_field(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in GRID

    with pytest.raises(InvalidInput, match=message) as error:
        jobs(tmp_path, GRID.replace(before, after, 1))

    assert error.value.file == str(tmp_path / "search.toml")
