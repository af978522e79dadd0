"""The scheduler's configuration: its defaults, and messages that locate every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.settings import rules_of
from gavelpy.runtime.daemon.config import parse_config, read_config

LEAST = '[scheduler]\nstate_directory = "/var/lib/gavel"\n'


def test_a_state_directory_is_all_it_takes() -> None:
    config = parse_config(LEAST)

    assert config.scheduler.journal_url == "sqlite:////var/lib/gavel/journal.sqlite"
    assert (config.scheduler.listen, config.policy.name) == ("127.0.0.1:7077", "max_min_fairness")
    assert (config.nodes.on_node_lost, config.mechanism.round_s) == ("wait", 360.0)


def test_paths_may_begin_with_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/ann")

    config = parse_config(
        '[scheduler]\nstate_directory = "~/gavel"\njournal_backup_directory = "~/copies"\n'
        '[nodes]\ncheckpoint_directory = "~/saved"\n[throughputs]\nfile = "~/rates.json"\n'
    )

    assert config.scheduler.journal_url == "sqlite:////srv/ann/gavel/journal.sqlite"
    assert config.scheduler.journal_backup_directory == "/srv/ann/copies"
    assert (config.nodes.checkpoint_directory, config.throughputs.file) == ("/srv/ann/saved", "/srv/ann/rates.json")


def test_every_section_is_read() -> None:
    config = parse_config(
        LEAST
        + """
        [policy]
        name = "shortest_job_first"
        parameters = { by = "total" }
        [mechanism]
        round_s = 60
        queue = "by_type"
        [nodes]
        on_node_lost = "fence"
        [limits]
        jobs_living_max = 7
        """
    )

    assert config.policy.parameters == {"by": "total"}
    assert (config.mechanism.round_s, config.mechanism.rules) == (60.0, rules_of({"queue": "by_type"}))
    assert config.mechanism_given == {"round_s", "queue"}
    assert (config.nodes.on_node_lost, config.limits.jobs_living_max) == ("fence", 7)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[nodes]\ngrace_s = 1\n", "f.toml: scheduler.state_directory must be given"),
        (
            '[scheduler]\nstate_directory = "~nobody7/x"\n',
            "scheduler.state_directory must be a path, or start with ~ or ",
        ),
        (LEAST + "journal_backups = -1\n", r"journal_backups must be in \[0, 1000\], got -1"),
        (LEAST + "[nodes]\n\ngrace_s = 5000\n", r"f.toml:5: nodes.grace_s must be in \[0, 3600\], got 5000"),
        (LEAST + '[nodes]\ngrace_s = "long"\n', "f.toml:4: nodes.grace_s must be a number, got 'long'"),
        (LEAST + "[nodes]\ngrace_s = nan\n", r"f.toml:4: nodes.grace_s must be in \[0, 3600\], got nan"),
        (LEAST + "[nodes]\nsilence = 3\n", "f.toml:4: nodes.silence is not known; allowed are heartbeat_interval_s, "),
        (LEAST + '[nodes]\non_node_lost = "panic"\n', "f.toml:4: nodes.on_node_lost must be 'wait' or 'fence', got 'p"),
        (LEAST + "[mechanism]\nround_s = 0\n", r"f.toml:4: mechanism.round_s must be in \[1, 86400\], got 0"),
        (
            LEAST + "[mechanism]\npacking = true\n",
            "f.toml:4: mechanism.packing must be false where no .gpu_types.NAME. has memory_gib: jobs share a GPU only",
        ),
        (
            LEAST + "[gpu_types.v100]\nmemory_gib = -1\n",
            r"f.toml:4: gpu_types.v100.memory_gib must be in \[0, 1e\+06\], got -1",
        ),
        (
            LEAST + "[policy.parameters]\na = [1]\n",
            r"f.toml:3: policy.parameters must be a number or a string, got {'a': \[1\]}",
        ),
        (
            LEAST + "[throughputs]\nprofile_gpu_s = -1\n",
            r"f.toml:4: throughputs.profile_gpu_s must be in \[0, 1e\+09\]",
        ),
        (LEAST + "[throughputs]\nestimate = 1\n", "f.toml:4: throughputs.estimate must be true or false, got 1"),
        (LEAST + "[priorities.high]\nvalue = 1.5\n", "f.toml:4: priorities.high.value must be a whole number, got 1.5"),
        (LEAST + "[priorities.high]\nowners = []\n", "f.toml:3: priorities.high.value must be given"),
        (
            LEAST + "[priorities.high]\nvalue = 1\nrank = 1\n",
            "f.toml:5: priorities.high.rank is not known; allow",
        ),
        (
            LEAST + '[priorities.high]\nvalue = 1\npreempts = ["low"]\n',
            r"f.toml:5: priorities.high.preempts must be lower classes \(normal\), got 'low'",
        ),
        (LEAST + "[priorities]\nhigh = 1\n", r"f.toml:4: priorities.high must be a table, \[priorities.high\], got 1"),
        (LEAST + '[priorities."a b"]\nvalue = 1\n', "f.toml.* priorities must be named by 1 to 63 letters"),
        (LEAST + '[teams.a]\npolicy = "lifo"\n', "f.toml:4: teams.a.policy must be one of fairness, fifo, got 'lifo'"),
        (LEAST + '[teams.a]\nparent = "b"\n', "f.toml:4: teams.a.parent must be one of a, or empty, got 'b'"),
        (LEAST + "[teams.a]\ncolour = 1\n", "f.toml:4: teams.a.colour is not known; allowed are weight, policy,"),
        (LEAST + "[teams]\na = 1\n", r"f.toml:4: teams.a must be a table, \[teams.a\], got 1"),
        (LEAST + "[mechanism]\npriorities = []\n", "f.toml:4: mechanism.priorities is not known"),
        (LEAST + "[jobs]\ntime_max_s = 60\ntime_s = 90\n", r"f.toml:5: jobs.time_s must be in \[0, 60\], got 90"),
        (LEAST + "[jobs]\nstall_max_s = -1\n", r"f.toml:4: jobs.stall_max_s must be in \[0, 1e\+09\], got -1"),
        (LEAST + "[colours]\n", r"f.toml:3: \[colours\] is not known; allowed are scheduler, policy, "),
        ("scheduler = 1\n", r"f.toml:1: scheduler must be a table, \[scheduler\], got 1"),
        (LEAST + "round_s = \n", "f.toml:3: text must be TOML: "),
        (LEAST + 'name = "a b"\n', "f.toml:3: scheduler.name must be 1 to 63 letters, digits, .* got 'a b'"),
        (LEAST + 'listen = "0.0.0.0:7077"\n', "f.toml:3: listen = '0.0.0.0:7077' is open to the network and needs TLS"),
        (LEAST + 'http_listen = "0.0.0.0:1"\n', "f.toml:3: scheduler.http_listen must be on loopback, got '0.0.0.0:1'"),
        (
            LEAST + 'web_listen = "0.0.0.0:1"\n',
            "f.toml:3: web_listen = '0.0.0.0:1' is open to the network and needs TLS",
        ),
        (LEAST + 'web_listen = "here"\n', "f.toml:3: web_listen must be HOST:PORT, .* got 'here'"),
        (LEAST + 'http_listen = "here"\n', "f.toml:3: scheduler.http_listen must be HOST:PORT .* got 'here'"),
        (LEAST + 'journal = "mysql://a:secret@b"\n', "f.toml:3: scheduler.journal must begin with .* got 'mysql'$"),
        (LEAST + '[policy]\nname = "nosuch"\n', "f.toml:4: policy.name: policy must be one of allox, .* got 'nosuch'"),
        (LEAST + '[policy]\nname = "mine.py:A"\n', "f.toml:4: policy.name must have an absolute path, got 'mine.py:A'"),
        (LEAST + '[policy]\nname = "/nosuch/a.py:A"\n', "f.toml:4: policy.name: /nosuch/a.py: .* cannot be read"),
        (
            LEAST + '[policy]\nname = "fifo"\nparameters = { colour = 1 }\n',
            "f.toml:5: policy.parameters: policy 'fifo' has no parameter",
        ),
        (
            LEAST + '[policy]\nname = "shortest_job_first"\n[policy.parameters]\ncolour = 1\n',
            "f.toml:5: policy.parameters: policy 'shortest_job_first' has no parameter",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        parse_config(text, "f.toml")


def test_priority_classes_become_settings_of_the_mechanism() -> None:
    config = parse_config(LEAST + '[priorities.high]\nvalue = 9\npreempts = ["normal"]\nowners = ["ann"]\n')

    assert config.mechanism.priorities == (PriorityClass("high", 9, ("normal",), ("ann",)),)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidInput, match=rf"{path}: must be UTF-8"):
        read_config(path)


def test_the_shipped_examples_are_right() -> None:
    examples = sorted((Path(__file__).parents[3] / "deploy").glob("scheduler*.toml"))

    assert len(examples) == 2
    assert [read_config(path).scheduler.name for path in examples] == ["laptop", "gavel"]


def test_another_round_keeps_the_interval_between_allocations() -> None:
    config = parse_config(LEAST + "[mechanism]\nround_s = 1\n")

    changed = config.with_round(config.mechanism, 60.0)

    assert (config.mechanism.solve_interval_s, changed.solve_interval_s, changed.lease_min_s) == (1.0, 1.0, 30.0)
