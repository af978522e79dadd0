"""Damage to the journal's files: job and lease numbers are never reused."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.errors import EventsLost, InvalidInput, JournalCorrupt
from gavelpy.journal.loss_detection import MarkFile, Marks, Numbers
from gavelpy.journal.store import open_store
from gavelpy.mechanism.events import IdsReserved, JobCancelled, JobSubmitted
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.checkpoint_directory import MARKER_FILE, used_numbers
from gavelpy.runtime.daemon.recovery import recover
from gavelpy.runtime.daemon.service import Service
from gavelpy.runtime.lease_files import lease_checkpoints
from tests.conftest import costly
from tests.runtime.daemon.clerk import JOURNAL, Clerk, clerk, url_in
from tests.runtime.daemon.harness import make_config, make_spec

PAGE_BYTES = 4096
SOMEWHERE = st.floats(0.0, 1.0, exclude_max=True)  # as a fraction of a file's bytes
FEW = costly(8)  # hundreds in a slow test


class Crashed:
    """The files of a journal after kill -9, and the numbers of jobs and leases that it had acknowledged."""

    def __init__(self, files: dict[str, bytes], jobs: int, leases: int) -> None:  # no dataclass: hypothesis shows all
        self.files, self.jobs, self.leases = files, jobs, leases

    def placed(self, folder: Path) -> Path:
        """A copy that may be damaged."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder


def image(folder: Path, work: Clerk) -> Crashed:
    kept = {name: (folder / name).read_bytes() for name in (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}.marks")}
    return Crashed(kept, max(work.jobs) + 1, max(work.leases) + 1)


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """A journal that is entirely in the write-ahead log."""
    folder = tmp_path_factory.mktemp("young")
    with clerk(folder) as work:
        for _ in range(25):
            work.work()
        return image(folder, work)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """A journal with snapshots, mostly in the file, the rest in the log."""
    folder = tmp_path_factory.mktemp("grown")
    with clerk(folder) as work:
        for _ in range(90):
            work.work()
        work.snapshot()
        for _ in range(60):
            work.work()
        work.snapshot()
    with clerk(folder) as work:
        for _ in range(20):
            work.work()
        return image(folder, work)


def harm(path: Path, how: str, place: float) -> None:
    """Flips a byte, zeroes a page or cuts the file at this position."""
    data = bytearray(path.read_bytes())
    at = int(place * len(data))
    match how:
        case "flip":
            data[at] ^= 0x55
        case "zero":
            at -= at % PAGE_BYTES
            data[at : at + PAGE_BYTES] = bytes(len(data[at : at + PAGE_BYTES]))
        case "cut":
            del data[at:]
        case "cut a page":
            del data[at - at % PAGE_BYTES :]
    path.write_bytes(data)


def bytes_in(folder: Path) -> dict[str, bytes]:
    """The files an operator would copy: neither SQLite's shared memory nor the lock."""
    kept = sorted(path for path in folder.iterdir() if path.suffix not in (".lock", ".sqlite-shm"))
    return {path.name: path.read_bytes() for path in kept}


def check(crashed: Crashed, folder: Path) -> None:
    """The start is refused and leaves files untouched, or nothing is lost; a forced start uses larger numbers."""
    before = bytes_in(folder)
    try:
        with clerk(folder) as work:
            assert work.core.jobs.count == crashed.jobs, "acknowledged jobs are missing, and it started"
            return
    except JournalCorrupt:
        assert bytes_in(folder) == before
    try:
        open_store(url_in(folder), accept_loss=True).close()
    except JournalCorrupt:  # it contains nothing usable any more, and the operator moves it away
        for name in (JOURNAL, f"{JOURNAL}-wal"):
            (folder / name).unlink(missing_ok=True)
    with clerk(folder, accept_loss=True) as work:
        assert work.core.leases.next_lease >= crashed.leases
        assert work.submit() >= crashed.jobs
        work.work()
        assert all(lease >= crashed.leases for lease in work.leases)
        given_out = work.core.jobs.count
    with clerk(folder) as work:
        assert work.submit() == given_out, "it is told once"


@FEW
@given(how=st.sampled_from(["flip", "zero", "cut", "cut a page"]), place=SOMEWHERE)
def test_damage_to_the_log(young: Crashed, how: str, place: float) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = young.placed(Path(made))
        harm(folder / f"{JOURNAL}-wal", how, place)

        check(young, folder)


@FEW
@given(
    name=st.sampled_from([JOURNAL, f"{JOURNAL}-wal"]),
    how=st.sampled_from(["flip", "zero", "cut", "cut a page"]),
    place=SOMEWHERE,
)
def test_damage_to_a_journal_with_snapshots(grown: Crashed, name: str, how: str, place: float) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = grown.placed(Path(made))
        harm(folder / name, how, place)

        check(grown, folder)


@pytest.mark.slow
@settings(max_examples=400)
@given(
    name=st.sampled_from([JOURNAL, f"{JOURNAL}-wal"]),
    how=st.sampled_from(["flip", "zero", "cut", "cut a page"]),
    places=st.lists(SOMEWHERE, min_size=1, max_size=6),
)
def test_damage_hundreds_of_times(grown: Crashed, name: str, how: str, places: list[float]) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = grown.placed(Path(made))
        for place in places:
            harm(folder / name, how, place)

        check(grown, folder)


@FEW
@given(place=SOMEWHERE, how=st.sampled_from(["flip", "zero", "cut"]))
def test_damage_to_the_marks_alone_costs_no_job(young: Crashed, place: float, how: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = young.placed(Path(made))
        harm(folder / f"{JOURNAL}.marks", how, place)

        try:
            with clerk(folder) as work:
                assert work.submit() == young.jobs
        except EventsLost:  # both slots are damaged
            with clerk(folder, accept_loss=True) as work:
                assert (work.core.jobs.state[: young.jobs] != JobState.FAILED).all()
                assert work.submit() >= young.jobs


def test_a_journal_that_is_gone_is_missed(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        (folder / name).unlink()

    with pytest.raises(EventsLost, match="events 1 to 79 are lost"), clerk(folder):
        pass

    assert bytes_in(folder).keys() == {f"{JOURNAL}.marks"}
    with clerk(folder, accept_loss=True) as work:
        assert (work.submit(), work.core.leases.next_lease) == (young.jobs, young.leases)


def test_an_older_copy_in_its_place_is_known_as_such(tmp_path: Path) -> None:
    with clerk(tmp_path) as work:
        work.work()
        old = image(tmp_path, work)
        work.work()
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        (tmp_path / name).write_bytes(old.files[name])

    with pytest.raises(EventsLost, match=r"events 8 to 10 are lost \(3\), after .* at most 3 jobs"), clerk(tmp_path):
        pass
    with clerk(tmp_path, accept_loss=True) as work:
        assert work.submit() == 2


def test_the_message_says_what_is_lost_and_what_to_do(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    log = folder / f"{JOURNAL}-wal"
    log.write_bytes(log.read_bytes()[: len(log.read_bytes()) // 2])

    with pytest.raises(EventsLost) as refusal, clerk(folder):
        pass

    told = str(refusal.value)
    assert str(folder / JOURNAL) in told
    assert " to 79 are lost (" in told
    assert ", after 20" in told
    assert " up to 20" in told
    assert "with numbers below 25" in told
    assert "Nothing was changed" in told
    assert "--accept-loss" in told


def test_a_lost_job_is_answered_for(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    (folder / f"{JOURNAL}-wal").unlink()

    with clerk(folder, accept_loss=True) as work:
        core, history = work.core, work.recovered.history
        assert core.jobs.state[24] == JobState.FAILED
        assert history.detail(24).startswith("lost with the journal: events ")
        assert [happened.kind for happened in history.entries(24)] == ["noted"]
        work.tell(JobCancelled(24))
        assert core.jobs.state[24] == JobState.FAILED
        work.snapshot()
    with clerk(folder) as work:
        assert work.core.jobs.state[24] == JobState.FAILED
        assert work.recovered.history.detail(24).startswith("lost with the journal")


def test_a_crash_after_loss_was_accepted_does_not_make_it_forgotten(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    harm(folder / f"{JOURNAL}-wal", "cut", 0.5)
    with open_store(url_in(folder), accept_loss=True) as store:
        recover(store, make_config(folder))

    with pytest.raises(EventsLost), clerk(folder):
        pass
    with clerk(folder, accept_loss=True) as work:
        assert work.submit() >= young.jobs


def test_without_marks_numbers_go_on_far_above_what_is_left(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    (folder / f"{JOURNAL}.marks").unlink()
    harm(folder / f"{JOURNAL}-wal", "flip", 0.5)

    with pytest.raises(EventsLost), clerk(folder):
        pass
    with clerk(folder, accept_loss=True) as work:
        assert work.submit() >= young.jobs
        assert work.core.leases.next_lease >= young.leases


def test_directories_of_checkpoints_are_evidence(young: Crashed, tmp_path: Path) -> None:
    folder, root = young.placed(tmp_path), tmp_path / "checkpoints"
    lease_checkpoints(root, 5_000, 70_000).mkdir(parents=True)
    (root / "lost+found").mkdir()
    (root / "5001").write_text("no folder", encoding="utf-8")
    harm(folder / f"{JOURNAL}-wal", "cut", 0.5)
    config = make_config(folder, nodes={"checkpoint_directory": str(root)})

    with open_store(url_in(folder), accept_loss=True) as store:
        recovered = recover(store, config)

    (skipped,) = [event for event in recovered.events if isinstance(event, IdsReserved)]
    assert (skipped.jobs, skipped.leases) == (5_001, 70_001)
    assert used_numbers(str(tmp_path / "none")) == used_numbers(str(root / "lost+found")) == (0, 0)


def test_checkpoints_that_hang_end_a_start_in_time(young: Crashed, tmp_path: Path) -> None:
    folder, root = young.placed(tmp_path), tmp_path / "checkpoints"
    root.mkdir()
    os.mkfifo(root / MARKER_FILE)  # a reader waits for a writer
    harm(folder / f"{JOURNAL}-wal", "cut", 0.5)
    config = make_config(folder, nodes={"checkpoint_directory": str(root)})

    with (
        open_store(url_in(folder), accept_loss=True) as store,
        pytest.raises(InvalidInput, match=r"it does not answer within 0\.5 s; start again when it answers"),
    ):
        recover(store, config, storage_s=0.5)


def test_an_append_that_was_never_acknowledged_needs_no_word(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    with clerk(folder) as work:
        acknowledged = (folder / f"{JOURNAL}-wal").stat().st_size
        marks = (folder / f"{JOURNAL}.marks").read_bytes()
        work.tell(JobSubmitted(make_spec("late#25")), key="late")
        files = bytes_in(folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / f"{JOURNAL}.marks").write_bytes(marks)
    with (folder / f"{JOURNAL}-wal").open("r+b") as log:
        log.truncate(acknowledged + 100)

    with clerk(folder) as work:
        assert work.submit() == young.jobs


def test_the_cluster_keeps_its_id_and_its_checkpoints_when_the_journal_is_lost(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    config = make_config(folder, nodes={"checkpoint_directory": str(tmp_path / "checkpoints")})
    with open_store(url_in(folder)) as store:
        Service(config, store)
        before = store.cluster_id
    (folder / f"{JOURNAL}-wal").unlink(missing_ok=True)
    (folder / JOURNAL).unlink()

    with open_store(url_in(folder), accept_loss=True) as store:
        service = Service(config, store)

    assert service.scheduler.cluster_id == before


def test_a_cluster_whose_marks_have_no_id_has_that_of_its_checkpoints(young: Crashed, tmp_path: Path) -> None:
    folder = young.placed(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / MARKER_FILE).write_text("c0ffee\n", encoding="utf-8")
    (folder / f"{JOURNAL}-wal").unlink()
    (folder / f"{JOURNAL}.marks").unlink()
    marks = MarkFile(folder / f"{JOURNAL}.marks")
    marks.write(Marks(sequence=79, numbers=Numbers(25, 25)), durably=True)
    marks.close()

    with open_store(url_in(folder), accept_loss=True) as store:
        recovered = recover(store, make_config(folder, nodes={"checkpoint_directory": str(tmp_path / "checkpoints")}))

    assert recovered.cluster_id == "c0ffee"
