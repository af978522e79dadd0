"""Random damage to the files of a SQLite journal: it is refused, or every acknowledged event is present."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.errors import EventsLost, JournalCorrupt
from gavelpy.journal.codec import encode_state
from gavelpy.journal.sqlite import PAGE_BYTES
from gavelpy.journal.store import open_store
from gavelpy.mechanism.events import AllocationFailed, JobSubmitted, ProgressReported
from gavelpy.model.job import JobId, JobSpec
from tests.journal.stores import Record, begun, bytes_of, execute, expected, loaded, path_of, submission

SOMEWHERE = st.floats(0.0, 1.0, exclude_max=True)  # as a fraction of a file's bytes
PLACES = st.lists(SOMEWHERE, min_size=1, max_size=8)
MASK = st.integers(1, 255)
FRAME_BYTES = 24 + PAGE_BYTES
FEW = settings(max_examples=6)  # hundreds in a slow test; each opens and loads a journal four times, durably


class Journal:
    """Files after a crash, and the acknowledged events: two per append."""

    def __init__(self, files: dict[str, bytes], records: list[Record]) -> None:  # hypothesis prints dataclasses whole
        self.files, self.records = files, records

    def placed(self, folder: str, *, marks: bool = True) -> str:
        """A copy that may be damaged; returns its URL."""
        for name, content in self.files.items():
            if marks or not name.endswith(".marks"):
                (Path(folder) / name).write_bytes(content)
        return f"sqlite:///{Path(folder) / 'journal.sqlite'}"


def record(k: int) -> Record:
    """Small events, some with arrays, and some that need several pages."""
    kinds = (
        JobSubmitted(JobSpec(JobId(f"job-{k}"), 100.0, rates_steps_per_s={"v100": 2.0})),
        ProgressReported(np.arange(k % 40), np.arange(k % 40), np.linspace(0.0, k, k % 40)),
        JobSubmitted(JobSpec(JobId(f"job-{k}"), 5.0, entity="vision")),
        AllocationFailed(k, "infeasible " * (2000 if k % 60 == 3 else 1)),
    )
    return float(k), kinds[k % len(kinds)]


def crashed(folder: Path, appends: int, snapshots: tuple[int, ...]) -> Journal:
    records = [record(k) for k in range(2 * appends)]
    url = f"sqlite:///{folder / 'journal.sqlite'}"
    with begun(url) as store:
        for k in range(appends):
            store.append(records[2 * k : 2 * k + 2], [submission(f"key-{k}", first_job=k)])
            if k in snapshots:
                store.save_snapshot(2 * k + 2, encode_state({"sequence": 2 * k + 2, "padding": "x" * 20_000}))
        names = [path_of(url).name + suffix for suffix in ("", "-wal", ".marks")]
        return Journal({name: (folder / name).read_bytes() for name in names}, records)


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """A journal that is entirely in the log."""
    return crashed(tmp_path_factory.mktemp("young"), 60, ())


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """A journal checkpointed into the file several times, with snapshots and a log of several generations."""
    return crashed(tmp_path_factory.mktemp("grown"), 700, (200, 400, 600))


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as made:
        yield made


def check(journal: Journal, url: str) -> bool:
    """Whether the store refuses to open; it must if anything is lost, and it must open once loss is accepted."""
    try:
        with open_store(url) as store:
            store.begin_incarnation()
            whole = store.load()
            first = whole.state["sequence"] if whole.state else 0
            assert bytes_of(list(whole.events)) == expected(journal.records, 1)[first:], "loss was not detected"
        is_refused = False
    except JournalCorrupt:
        is_refused = True
    try:
        found, events = loaded(url)
    except JournalCorrupt:  # no row is left, and no marks show that the file is a journal
        assert not Path(f"{path_of(url)}.marks").exists()
        return True
    first = found.state["sequence"] if found.state else 0
    assert events == expected(journal.records, 1)[first : found.sequence]
    assert found.sequence % 2 == 0, "appends are whole"
    with begun(url) as store:
        for k in (0, found.sequence // 2 - 1)[: found.sequence]:
            kept = store.submission("ann", f"key-{k}")
            assert kept is None or kept.first_job == k
        lost = store.submission("ann", f"key-{found.sequence // 2}")
        assert lost is None, "a submission without its events must create its jobs again"
        assert store.append(journal.records[:1]) == found.sequence + 1
    again, events = loaded(url)
    assert (again.damage, again.sequence) == ("", found.sequence + 1)
    return is_refused


def flip(path: Path, places: list[float], mask: int) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[int(place * len(data))] ^= mask
    path.write_bytes(data)


def cut(path: Path, place: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(place * len(data))])


@pytest.mark.parametrize("name", ["young", "grown"])
def test_what_a_crash_leaves_is_all_there(request: pytest.FixtureRequest, folder: str, name: str) -> None:
    journal = request.getfixturevalue(name)

    assert not check(journal, journal.placed(folder))


@FEW
@given(places=PLACES, mask=MASK)
def test_bytes_flipped_in_the_file(grown: Journal, places: list[float], mask: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        url = grown.placed(made)
        flip(path_of(url), places, mask)

        check(grown, url)


@FEW
@given(places=PLACES, mask=MASK)
def test_bytes_flipped_in_the_log(young: Journal, places: list[float], mask: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        url = young.placed(made)
        flip(Path(f"{path_of(url)}-wal"), places, mask)

        check(young, url)


@FEW
@given(places=PLACES, mask=MASK)
def test_bytes_flipped_in_the_log_of_an_old_journal(grown: Journal, places: list[float], mask: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        url = grown.placed(made)
        flip(Path(f"{path_of(url)}-wal"), places, mask)

        check(grown, url)


@pytest.mark.slow
@settings(max_examples=500)
@given(
    name=st.sampled_from(["young", "grown"]),
    suffix=st.sampled_from(["", "-wal"]),
    marks=st.booleans(),
    places=PLACES,
    mask=MASK,
)
def test_bytes_flipped_hundreds_of_times(
    young: Journal, grown: Journal, name: str, suffix: str, marks: bool, places: list[float], mask: int
) -> None:
    journal = {"young": young, "grown": grown}[name]
    with tempfile.TemporaryDirectory() as made:
        url = journal.placed(made, marks=marks)
        flip(Path(f"{path_of(url)}{suffix}"), places, mask)

        check(journal, url)


@FEW
@given(place=SOMEWHERE)
def test_a_file_cut_short(grown: Journal, place: float) -> None:
    with tempfile.TemporaryDirectory() as made:
        url = grown.placed(made)
        cut(path_of(url), place)

        check(grown, url)


@FEW
@given(place=SOMEWHERE, marks=st.booleans())
def test_a_log_cut_short_is_refused(young: Journal, place: float, marks: bool) -> None:
    with tempfile.TemporaryDirectory() as made:
        url = young.placed(made, marks=marks)
        cut(Path(f"{path_of(url)}-wal"), place)

        assert check(young, url)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    name=st.sampled_from(["young", "grown"]), suffix=st.sampled_from(["", "-wal"]), place=SOMEWHERE, marks=st.booleans()
)
def test_files_cut_hundreds_of_times(
    young: Journal, grown: Journal, name: str, suffix: str, place: float, marks: bool
) -> None:
    journal = {"young": young, "grown": grown}[name]
    with tempfile.TemporaryDirectory() as made:
        url = journal.placed(made, marks=marks)
        cut(Path(f"{path_of(url)}{suffix}"), place)

        check(journal, url)


@pytest.mark.parametrize("name", ["young", "grown"])
def test_a_log_that_is_gone_is_refused(request: pytest.FixtureRequest, folder: str, name: str) -> None:
    journal = request.getfixturevalue(name)
    url = journal.placed(folder)
    Path(f"{path_of(url)}-wal").unlink()

    assert check(journal, url)


@pytest.mark.parametrize("name", ["young", "grown"])
def test_a_journal_without_its_marks_is_refused_and_keeps_all_events(
    request: pytest.FixtureRequest, folder: str, name: str
) -> None:
    journal = request.getfixturevalue(name)
    url = journal.placed(folder, marks=False)

    with pytest.raises(EventsLost, match="marks are missing or damaged"):
        open_store(url)

    assert loaded(url)[0].sequence == len(journal.records)


@FEW
@given(tail=st.binary(min_size=1, max_size=3 * FRAME_BYTES))
def test_garbage_after_the_last_commit_costs_nothing(young: Journal, tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as made:
        url = young.placed(made)
        log = Path(f"{path_of(url)}-wal")
        log.write_bytes(log.read_bytes() + tail)

        assert not check(young, url)


@FEW
@given(place=SOMEWHERE, mask=MASK)
def test_a_write_torn_before_it_was_acknowledged_costs_nothing(young: Journal, place: float, mask: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        url = young.placed(made)
        with begun(url) as store:
            acknowledged = Path(f"{path_of(url)}-wal").stat().st_size
            marks = Path(f"{path_of(url)}.marks").read_bytes()
            store.append([record(900), record(901)])
            shutil.copytree(made, f"{made}/copy")
        Path(f"{made}/copy/journal.sqlite.marks").write_bytes(marks)
        copy = f"sqlite:///{made}/copy/journal.sqlite"
        log = Path(f"{path_of(copy)}-wal")
        data = bytearray(log.read_bytes())
        data[acknowledged + int(place * (len(data) - acknowledged))] ^= mask
        log.write_bytes(data)

        with open_store(copy) as store:
            store.begin_incarnation()
            events = bytes_of(list(store.load().events))

        assert events[: len(young.records)] == expected(young.records)
        assert events[len(young.records) :] in ([], expected([record(900), record(901)], len(young.records) + 1))


def forked(folder: str) -> tuple[str, Path]:
    """A journal whose history was abandoned after its first event, and a backup of the abandoned history."""
    path = Path(folder) / "journal.sqlite"
    url = f"sqlite:///{path}"
    with begun(url) as store:
        store.append([record(0)])
        old = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        store.append([record(1)])
        store.append([record(2)])
        backup = store.back_up()
        assert backup is not None
    hidden = backup.rename(Path(folder) / "hidden")
    path.write_bytes(old[0])
    Path(f"{path}-wal").write_bytes(old[1])
    with begun(url) as store:
        store.append([record(10)])
        store.append([record(11)])
    hidden.rename(backup)
    return url, backup


def test_a_backup_of_an_abandoned_history_adds_nothing(folder: str) -> None:
    url, _ = forked(folder)
    execute(url, "UPDATE gavel_meta SET crc32 = 7 WHERE name = 'incarnation'")

    found, events = loaded(url)

    assert events == expected([record(0), record(10), record(11)])
    assert "incarnation does not have its checksum" in found.damage


def test_an_abandoned_history_in_place_of_the_journal_is_refused(folder: str) -> None:
    url, backup = forked(folder)
    path_of(url).write_bytes(backup.read_bytes())

    with pytest.raises(EventsLost, match="event 3 is not the one that was acknowledged"):
        open_store(url)
