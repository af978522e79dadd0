"""Pages of log lines: every line once, in order, across rotated files; bounded for any query."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent import log_reader
from gavelpy.runtime.agent.leases.retention import ENDED, LeaseLogs, logs_of_leases, prune
from gavelpy.runtime.agent.log_reader import TIE_BITS, LogPage, LogPageQuery, read_page
from gavelpy.runtime.shim.log_files import LogFile, LogWriter
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, until

Leases = list[LeaseLogs]


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    """Lease 3 of job 7 and lease 4 of job 8."""
    return [_lease(tmp_path, 3, 7), _lease(tmp_path, 4, 8)]


def _lease(parent: Path, lease: int, job: int) -> LeaseLogs:
    directory = parent / f"{lease:08d}"
    directory.mkdir()
    return LeaseLogs(directory, lease, job)


def make_writer(
    directory: Path, rank: int = 0, *, is_error_stream: bool = False, bytes_max: int = 1 << 20
) -> LogWriter:
    return LogWriter(directory, rank, is_error_stream=is_error_stream, bytes_max=bytes_max, files_max=1000)


def put(directory: Path, text: str, rank: int = 0, *, at_s: float = 1e9, bytes_max: int = 1 << 20) -> None:
    writer = make_writer(directory, rank, bytes_max=bytes_max)
    for start, line in enumerate(text.splitlines(keepends=True)):
        writer.write(line.encode(), at_s + start // 3)  # several lines arrive at once
    writer.close(at_s)


def _key_of(time_s: float) -> int:
    return round(time_s * 1e6) << TIE_BITS


def page(leases: Leases, **query: object) -> LogPage:
    return read_page(lambda: leases, LogPageQuery(**query))  # type: ignore[arg-type]  # fields of any type


def pages(leases: Leases, **query: object) -> Iterator[LogPage]:
    """All pages until the end."""
    offset = 0
    while (found := page(leases, offset=offset, **query)).next_offset != offset:
        yield found
        offset = found.next_offset


def texts(*found: LogPage) -> list[str]:
    return [text for one in found for text in one.rows.texts]


def test_pages_contain_every_line_once_over_rotated_files(leases: Leases) -> None:
    lines = [f"line {number}" for number in range(500)]
    put(leases[0][0], "\n".join(lines) + "\n", bytes_max=2_000)
    assert len(list((leases[0][0] / "log").iterdir())) > 5

    found = list(pages(leases, job=7, lines_max=7))

    assert texts(*found) == lines
    assert max(len(one.rows) for one in found) == 7


def test_ranks_are_merged_by_time(leases: Leases) -> None:
    put(leases[0][0], "a\nb\nc\nd\n", rank=0)
    put(leases[0][0], "A\nB\nC\nD\n", rank=1)

    assert texts(*pages(leases, job=7, lines_max=2)) == ["a", "A", "b", "B", "c", "C", "d", "D"]
    assert texts(page(leases, job=7, rank=1)) == ["A", "B", "C", "D"]


def test_offset_stays_valid_when_older_files_are_removed(leases: Leases) -> None:
    put(leases[0][0], "".join(f"{number}\n" for number in range(300)), bytes_max=500)
    first = page(leases, job=7, lines_max=250)

    (leases[0][0] / "log" / "rank-0.out.1").unlink()

    assert texts(page(leases, job=7, offset=first.next_offset)) == [str(number) for number in range(250, 300)]


def test_read_from_the_beginning_has_the_number_of_removed_lines(leases: Leases) -> None:
    writer = LogWriter(leases[0][0], 0, is_error_stream=False, bytes_max=500, files_max=1)
    for number in range(300):
        writer.write(b"%d\n" % number, 1e9)
    put(leases[1][0], "whole\n")

    first = page(leases, job=7)

    assert first.removed == {7: int(first.rows.texts[0])}
    assert page(leases, jobs_allowed=frozenset({7, 8})).removed == first.removed
    assert page(leases, job=7, rank=1).removed == page(leases, job=8).removed == {}
    assert page(leases, job=7, tail_lines=300).removed == {}
    assert page(leases, job=7, offset=first.next_offset).removed == {}


def test_reader_that_follows_a_rotating_log_misses_nothing(leases: Leases) -> None:
    writer = make_writer(leases[0][0], bytes_max=3_000)
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from gavelpy.runtime.shim.log_files import LogFile, LogWriter\n"
        "writer = LogWriter(Path(sys.argv[1]), 0, is_error_stream=False, bytes_max=3000, files_max=1000)\n"
        "[writer.write(b'%d\\n%d\\n' % (n, n), time.time()) for n in range(10_000)]\n"
    )
    writer.close(time.time())
    found: list[str] = []
    offset = 0

    async def follow() -> None:
        nonlocal offset
        writing = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(leases[0][0]))
        while len(found) < 20_000:
            with suppress(OSError):  # the files were moved during each try
                got = await asyncio.to_thread(page, leases, job=7, offset=offset, lines_max=1_000)
                found.extend(texts(got))
                offset = got.next_offset
        await writing.wait()

    asyncio.run(asyncio.wait_for(follow(), 60))

    assert found == [str(number) for number in range(10_000) for _ in range(2)]


def test_tail_returns_the_last_lines_and_the_offset_after_them(leases: Leases) -> None:
    put(leases[0][0], "".join(f"{number}\n" for number in range(1000)), bytes_max=1_000)
    put(leases[0][0], "".join(f"{number}\n" for number in range(1000)), rank=1)

    last = page(leases, job=7, tail_lines=3)

    assert texts(last) == ["998", "999", "999"]
    assert texts(page(leases, job=7, offset=last.next_offset)) == []


def test_tail_counts_lines_that_match(leases: Leases) -> None:
    put(leases[0][0], "loss 1\nstep\nloss 2\nstep\nloss 3\nstep\n")

    assert texts(page(leases, job=7, tail_lines=2, pattern="^loss")) == ["loss 2", "loss 3"]


def test_all_jobs_means_those_that_are_allowed(leases: Leases) -> None:
    put(leases[0][0], "mine\n")
    put(leases[1][0], "of another user\n")

    assert texts(page(leases, job=-1, jobs_allowed=frozenset({7}))) == ["mine"]
    assert texts(page(leases, job=-1)) == []


def test_page_is_bounded_in_bytes(leases: Leases) -> None:
    put(leases[0][0], ("x" * 10_000 + "\n") * 300)

    found = list(pages(leases, job=7, lines_max=10_000))

    assert max(sum(len(text) for text in texts(one)) for one in found) <= log_reader.PAGE_BYTES_MAX
    assert len(texts(*found)) == 300


def test_long_line_is_returned_in_parts(leases: Leases) -> None:
    put(leases[0][0], "x" * 100_000 + "\nend\n")

    found = texts(*pages(leases, job=7))

    assert "".join(found) == "x" * 100_000 + "end"


def test_link_or_fifo_in_place_of_a_log_is_not_read(leases: Leases, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1000000000.000000 root:x:0:0\n")
    (leases[0][0] / "log").mkdir()
    (leases[0][0] / "log" / "rank-0.out").symlink_to(secret)
    os.mkfifo(leases[0][0] / "log" / "rank-1.out")

    assert texts(page(leases, job=7)) == []


def test_logs_of_others_are_read_although_a_job_put_a_link_in_place_of_its_own(leases: Leases) -> None:
    (leases[0].directory / "log").mkdir()
    (leases[0].directory / "log" / "rank-0.out").symlink_to(leases[1].directory)
    put(leases[1].directory, "mine\n")

    assert texts(page(leases, jobs_allowed=frozenset({7, 8}))) == ["mine"]


@pytest.mark.parametrize("moved_at_read", [1, 2])
def test_lease_that_is_forgotten_while_its_log_is_read_is_read_in_its_new_place(
    moved_at_read: int, leases: Leases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent moves the directory of a lease that ended when the scheduler knows of its end."""
    (tmp_path / ENDED).mkdir()
    put(leases[0].directory, "the last line\n")
    (leases[0].directory / "assignment.json").write_text('{"lease": 3, "job": 7, "assignment": null}')
    reads = itertools.count(1)

    def log_files(directory: Path) -> object:
        if next(reads) == moved_at_read:
            directory.rename(tmp_path / ENDED / directory.name)
        return list_log_files(directory)

    list_log_files = log_reader.log_files
    monkeypatch.setattr(log_reader, "log_files", log_files)

    found = read_page(partial(logs_of_leases, leases, tmp_path / ENDED), LogPageQuery(job=7))

    assert texts(found) == ["the last line"]


def test_files_that_move_at_every_try_are_an_error(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    put(leases[0].directory, "a line\n")
    tries = itertools.count()
    monkeypatch.setattr(log_reader, "log_files", lambda directory: (LogFile(0, False, next(tries), directory),))

    with pytest.raises(OSError, match="moved"):
        page(leases, job=7, rank=5)


def test_pattern_that_backtracks_takes_linear_time(leases: Leases) -> None:
    put(leases[0][0], ("a" * 10_000 + "b\n") * 50 + "aaa\n")

    assert texts(page(leases, job=7, pattern=r"(a+)+$")) == ["aaa"]


def test_pages_continue_where_the_time_of_a_page_ends(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "PAGE_S_MAX", 0.0)
    put(leases[0][0], "a 1\nb 1\na 2\n")

    found = list(pages(leases, job=7, pattern="^a"))

    assert [texts(one) for one in found] == [["a 1"], [], ["a 2"]]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", r"RE2 syntax \(missing \): \(\), got '\('"),
        (r"(?P<n>a)(?P=n)", "no back-references"),
        (r"a(?=b)", r"no back-references .* look-around"),
        ("a{1001}", "at most 1000 repeats"),
        ("x" * 1001, "at most 1000 characters, got 1001"),
        ("(a?b?){999}" * 9, "at most 5000 instructions"),
    ],
)
def test_unsupported_pattern_is_rejected_with_what_is_supported(pattern: str, message: str, leases: Leases) -> None:
    with pytest.raises(InvalidInput, match=message):
        page(leases, job=7, pattern=pattern)


def test_invalid_query_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="job and rank"):
        LogPageQuery(job=-2)


def test_logs_of_a_forgotten_lease_are_served(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(11, "seq 5", job=70))
    peer.until_phase(11, pb.LEASE_PHASE_ENDED)
    peer.drop(11)
    peer.forget = [11]
    peer.push()
    peer.until_heard_anew()

    (answer,) = peer.ask(job=70, rank=-1, lines_max=3)
    (rest,) = peer.ask(job=70, rank=-1, offset=answer.next_offset, lines_max=100)

    assert [line.text for line in (*answer.lines, *rest.lines)] == ["1", "2", "3", "4", "5"]
    assert (answer.lines[0].lease, answer.lines[0].node_id) == (11, "n0")


def test_batch_holds_the_same_lines_as_single_lines(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared
    peer.order(order(12, "seq 5", job=71))
    peer.until_phase(12, pb.LEASE_PHASE_ENDED)
    until(lambda: len(peer.ask(job=71, rank=-1)[0].lines) == 5)

    (singly,) = peer.ask(job=71, rank=-1, lines_max=3)
    (batched,) = peer.ask(job=71, rank=-1, lines_max=3, batches=True)

    batch, (origin,) = batched.batch, batched.batch.origins
    assert [(line.text, line.time_s) for line in singly.lines] == list(zip(batch.text, batch.time_s, strict=True))
    assert {(line.job, line.lease, line.rank, line.is_error_stream) for line in singly.lines} == {
        (origin.job, origin.lease, origin.rank, origin.is_error_stream)
    }
    assert batch.offset[-1] == batched.next_offset == singly.next_offset


def test_end_offset_is_between_existing_and_later_lines(leases: Leases) -> None:
    put(leases[0][0], "old\n", at_s=time.time() - 10.0)
    first = page(leases, job=7)
    put(leases[0][0], "new\n", rank=1, at_s=time.time() + 0.5)
    second = page(leases, job=7, offset=first.next_offset)

    assert first.next_offset < first.end_offset < second.end_offset
    assert _key_of(time.time() + 0.4) > first.end_offset


def test_lines_stamped_by_a_clock_that_was_ahead_are_before_the_end(leases: Leases) -> None:
    put(leases[0][0], "ahead\n", at_s=time.time() + 1_000.0)
    log = leases[0][0] / "log" / "rank-0.out"
    os.utime(log, (time.time() + 1_000.0,) * 2)

    found = page(leases, job=7)

    assert texts(found) == ["ahead"]
    assert found.next_offset <= found.end_offset


def test_page_does_not_end_between_lines_of_one_key(leases: Leases) -> None:
    put(leases[0][0], "a\nb\nc\n")
    put(leases[1][0], "A\nB\nC\n")
    both = frozenset({7, 8})

    found = list(pages(leases, job=-1, jobs_allowed=both, lines_max=3))

    assert sorted(texts(*found)) == ["A", "B", "C", "a", "b", "c"]
    assert max(len(one.rows) for one in found) == 2


def test_invalid_pattern_is_reported_to_the_scheduler(shared: tuple[Peer, Node]) -> None:
    peer, _ = shared

    (wrong,) = peer.ask(job=1, rank=-1, pattern="(")

    assert "pattern must be a regular expression in RE2 syntax" in wrong.error


def test_oldest_logs_are_removed_when_there_are_too_many(tmp_path: Path) -> None:
    old, new = (tmp_path / "ended" / name for name in ("00000001", "00000002"))
    old.mkdir(parents=True)
    new.mkdir()
    (old / "text").write_bytes(b"x" * 600)
    (new / "text").write_bytes(b"x" * 600)

    assert prune(tmp_path, bytes_max=1_000, retention_s=60.0, now_s=time.time()) == 1

    assert not old.exists()
    assert new.exists()
