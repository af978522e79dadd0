"""The files of a lease directory: complete, typed, and never a cause of a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import End, Launch, LeaseOutcome, LeaseTerms, Progress, ShimPhase, ShimState
from gavelpy.runtime.whole_files import FILE_BYTES_MAX

LAUNCH = Launch(1, 2, ("python", "a b"), "/tmp", {"A": "ü"}, ({"RANK": "0"}, {"RANK": "1"}), speed_factor=0.5)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_launch_comes_back_as_written(tmp_path: Path) -> None:
    lease_files.write_launch(tmp_path, LAUNCH)

    assert lease_files.read_launch(tmp_path) == LAUNCH
    assert LAUNCH.local_ranks == 2


def test_all_others_come_back_as_written(tmp_path: Path) -> None:
    lease = LeaseTerms(3, 12.5, stop=True, steps_max=7.0)
    state = ShimState(1, 2, "boot", ShimPhase.RUNNING, 3, (3, 4), 1.5)
    progress = Progress(5.0, 4.0, 1.5, finished=True)
    end = End(LeaseOutcome.FAILED, -9, 5.0, 4.0, "rank 0 was killed by SIGKILL", 9.0)

    lease_files.write_lease(tmp_path, lease)
    lease_files.write_shim(tmp_path, state)
    lease_files.write_progress(tmp_path, 4, progress)
    lease_files.write_end(tmp_path, end)

    assert lease_files.read_lease(tmp_path) == lease
    assert lease_files.read_shim(tmp_path) == state
    assert lease_files.read_progress(tmp_path, 4) == progress
    assert lease_files.read_end(tmp_path) == end
    assert lease_files.reporting_ranks(tmp_path) == (4,)


def test_missing_file_is_none(tmp_path: Path) -> None:
    assert lease_files.read_lease(tmp_path) is None
    assert lease_files.reporting_ranks(tmp_path / "nowhere") == ()


def test_unknown_keys_are_ignored_and_absent_ones_take_their_default(tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text('{"version": 1, "until_clock_s": 5, "from_the_future": [1]}')

    assert lease_files.read_lease(tmp_path) == LeaseTerms(1, 5.0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "must be JSON"),
        (b'{"version": 1, "unti', "must be JSON"),
        (b"\xff\xfe", "must be UTF-8"),
        (b"[]", "must be a JSON object, got list"),
        (b"[" * 100_000, "must be JSON"),
        (b"{}", "version must be int, got 'None'"),
        (b'{"version": true, "until_clock_s": 1}', "version must be int, got 'True'"),
        (b'{"version": 1, "until_clock_s": NaN}', "until_clock_s must be float, got 'nan'"),
        (b'{"version": 1, "until_clock_s": 1e999}', "until_clock_s must be float, got 'inf'"),
        (b'{"version": 1, "until_clock_s": 1, "stop": 1}', "stop must be bool, got '1'"),
    ],
)
def test_damaged_lease_is_a_violation_that_names_the_field(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "lease.json").write_bytes(content)

    with pytest.raises(RemoteViolation, match=r"lease\.json") as caught:
        lease_files.read_lease(tmp_path)

    assert complaint in str(caught.value)


def test_pipe_link_directory_or_giant_in_place_of_a_file_is_a_violation(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lease.json")
    (tmp_path / "end.json").symlink_to("/dev/zero")
    (tmp_path / "shim.json").mkdir()
    (tmp_path / "launch.json").write_bytes(b" " * (FILE_BYTES_MAX + 1))

    with pytest.raises(RemoteViolation, match="plain file"):
        lease_files.read_lease(tmp_path)
    with pytest.raises(RemoteViolation, match="cannot be read"):
        lease_files.read_end(tmp_path)
    with pytest.raises(RemoteViolation, match="plain file"):
        lease_files.read_shim(tmp_path)
    with pytest.raises(RemoteViolation, match="at most"):
        lease_files.read_launch(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["outcome", "exit_code", "detail", "steps_done", "x"]), anything))
def test_any_json_is_read_or_refused(tmp_path: Path, content: dict[str, object]) -> None:
    (tmp_path / "end.json").write_text(json.dumps(content))

    try:
        end = lease_files.read_end(tmp_path)
    except RemoteViolation:
        return

    assert isinstance(end, End)


def test_writing_leaves_nothing_else_behind(tmp_path: Path) -> None:
    lease_files.write_lease(tmp_path, LeaseTerms(1, 1.0))
    lease_files.write_lease(tmp_path, LeaseTerms(2, 2.0))

    assert [entry.name for entry in tmp_path.iterdir()] == ["lease.json"]


def test_only_whole_checkpoints_are_seen(tmp_path: Path) -> None:
    directory = lease_files.lease_checkpoints(tmp_path, 12, 34)
    (directory / lease_files.step_name(5)).mkdir(parents=True)
    (directory / lease_files.step_name(40)).mkdir()
    (directory / ".writing-step-000000000041-7").mkdir()
    (directory / "step-000000000042").write_text("a file")

    assert directory == tmp_path / "12" / "lease-00000034"
    assert lease_files.whole_checkpoints(directory) == (5, 40)
    assert lease_files.newest_checkpoint(directory) == directory / "step-000000000040"
    assert lease_files.newest_checkpoint(directory, steps_min=41) is None
    assert lease_files.newest_checkpoint(tmp_path / "nowhere") is None
