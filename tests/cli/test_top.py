"""`gavel top`: what keys change, what fits on narrow and wide screens, and the real command on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from gavelpy.cli.top_view import Frame, TopView, lines
from gavelpy.runtime.wire import client_pb2 as pb
from tests.cli.test_main import RUN
from tests.runtime.client.serving import make_description, serving

HEIGHT = 24


def make_job(number: int, name: str = "", **fields: object) -> pb.Job:
    described: dict[str, object] = {"owner": "alice", "gpus": 1, "steps_total": 100.0, "lease": -1} | fields
    return pb.Job(job=number, name=name or f"job-{number}", **described)  # type: ignore[arg-type]  # by field


def make_frame(*jobs: pb.Job, page: tuple[str, ...] = ()) -> Frame:
    kinds = [pb.TypeStatus(gpu_type="v100", gpus=4, gpus_in_use=3, price=0.5)]
    cluster = pb.GetClusterResponse(cluster_name="main", policy="fifo", jobs_running=1, types=kinds)
    nodes = [pb.NodeStatus(node_id="n1", state="up", gpu_type="v100", gpu_count=4, gpus_in_use=3, address="10.0.0.2")]
    return Frame(cluster, nodes, jobs, page, page_of=jobs[0].job)


RUNNING = make_job(7, "train", state=pb.JOB_STATE_RUNNING, lease=1, gpu_type="v100", node_ids=["n1"], steps_done=50.0)
WAITING = make_job(3, "evaluate", state=pb.JOB_STATE_WAITING, reason="all GPUs are in use", owner="bob")
FRAME = make_frame(WAITING, RUNNING)


def after(*keys: str, frame: Frame = FRAME) -> TopView:
    view = TopView()
    for key in keys:
        view = view.after(key, frame, HEIGHT)
    return view


def drawn(view: TopView, frame: Frame = FRAME, width: int = 120, height: int = HEIGHT) -> list[str]:
    return [line.plain.rstrip() for line in lines(view, frame, width, height)]


def numbers(view: TopView, frame: Frame = FRAME) -> list[int]:
    return [job.job for job in view.shown(frame)]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("page", [(), ("n",), ("e",), ("l",)])
def test_frame_fills_the_screen_exactly(width: int, page: tuple[str, ...]) -> None:
    found = lines(after(*page), FRAME, width, HEIGHT)

    assert len(found) == HEIGHT
    assert max(line.cell_len for line in found) <= width


def test_narrow_screen_keeps_the_main_columns_and_a_wide_one_has_all() -> None:
    narrow, wide = (
        next(line for line in drawn(TopView(), width=width) if "state" in line and "done" in line)
        for width in (60, 200)
    )

    assert narrow.split() == ["job", "name", "state", "GPUs", "done"]
    assert wide.split() == ["job", "name", "owner", "state", "GPUs", "done", "on", "steps/s", "steps", "why"]


def test_bars_show_use_and_progress() -> None:
    found = drawn(TopView(), width=80)

    assert any("3/4 GPUs" in line and "█" in line for line in found)
    assert any("train" in line and "█████░░░░░" in line and "50 %" in line for line in found)


def test_running_jobs_come_first_and_s_changes_the_order() -> None:
    assert numbers(TopView()) == [7, 3]
    assert numbers(after("s")) == [3, 7]
    assert numbers(after("s", "r")) == [7, 3]


def test_filter_keeps_jobs_with_all_words() -> None:
    typed = after("/", *"bob wait")

    assert typed.is_typing
    assert numbers(typed) == [3]
    assert "filter: bob wait_" in drawn(typed)[-1]
    assert numbers(after("/", *"bobx", "backspace", "enter")) == [3]
    assert numbers(after("/", *"bob", "enter", "escape")) == [7, 3]


def test_q_in_a_filter_is_a_letter() -> None:
    assert not after("/", "q").is_over
    assert after("q").is_over


def test_arrows_select_and_the_selection_follows_its_job() -> None:
    view = after("down")

    assert view.chosen(FRAME) == WAITING
    assert view.after("s", FRAME, HEIGHT).chosen(FRAME) == WAITING
    assert after("down", "down", "up").chosen(FRAME) == RUNNING


def test_list_scrolls_with_the_selection() -> None:
    frame = make_frame(*(make_job(number) for number in range(100)))

    view = after(*["page-down"] * 3, frame=frame)

    chosen = view.chosen(frame)
    assert chosen is not None
    assert any(chosen.name in line for line in drawn(view, frame))
    assert not any("job-0 " in line for line in drawn(view, frame))


def test_logs_scroll_and_escape_goes_back() -> None:
    frame = make_frame(RUNNING, page=tuple(f"line {number}" for number in range(100)))

    opened, view = after("l", frame=frame), after("l", "page-up", frame=frame)

    assert "line 99" in drawn(opened, frame)
    assert "line 99" not in drawn(view, frame)
    assert "line 79" in drawn(view, frame)
    assert "line 0" in drawn(after("l", *["page-up"] * 9, frame=frame), frame)
    assert view.after("escape", frame, HEIGHT).page == ""


def test_page_of_another_job_is_not_shown_under_this_ones_name() -> None:
    frame = make_frame(WAITING, RUNNING, page=("of job 3",))

    assert "of job 3" not in drawn(after("l", frame=frame), frame)
    assert "of job 3" in drawn(after("down", "l", frame=frame), frame)


def test_control_characters_of_a_log_are_escaped() -> None:
    frame = make_frame(RUNNING, page=("\x1b[2J",))

    assert not any("\x1b" in line for line in drawn(after("l", frame=frame), frame))


def read_until(terminal: int, text: str, seconds: float = 30.0) -> str:
    """The output of the terminal until it contains the text."""
    found, ends_s = "", time.monotonic() + seconds
    while text not in found and time.monotonic() < ends_s:
        if select.select([terminal], [], [], 0.2)[0]:
            found += os.read(terminal, 65_536).decode(errors="replace")
    return found


def test_keys_work_on_a_real_terminal_and_q_ends_it(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        with served.client("") as client:
            client.submit([make_description("train")])
        terminal, inner = pty.openpty()
        environment = os.environ | {"GAVEL_SCHEDULER": served.address, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        process = subprocess.Popen(
            [*RUN, "top", "--every", "0.2"], stdin=inner, stdout=inner, stderr=inner, env=environment
        )
        try:
            listed = read_until(terminal, "q quit")
            os.write(terminal, b"e")
            explained = read_until(terminal, "History:")
            os.write(terminal, b"q")
            code = process.wait(30)
        finally:
            process.kill()
            process.wait()
            os.close(inner)
            os.close(terminal)

    assert "train" in listed
    assert "explain: job" in explained
    assert code == 0
