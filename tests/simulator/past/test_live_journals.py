"""Journals of live runs, replayed: unchanged they repeat each lease, also where two decisions are nearly as good.

Each has 12 jobs of 8 to 30 s on six GPUs of three types, with rounds of 5 s, as in tests/runtime/live/test_whatif.py.
Those named busy are of two cores at a load of 10 to 20: a round ended up to 20 s late, and starts took 10 s. Commands,
directories and evidence of jobs are left out.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gavelpy.journal.recording import Recording, read_recording
from gavelpy.mechanism.events import ProgressReported
from gavelpy.simulator.past.change import Change
from gavelpy.simulator.past.lease_turns import turn_of
from gavelpy.simulator.past.ledger import Ledger, ObservedLease
from gavelpy.simulator.past.replay import Replay
from gavelpy.simulator.past.whatif import what_if
from gavelpy.simulator.past.work import Noise
from tests.simulator.past.builders import work_in

FIXTURES = Path(__file__).with_name("fixtures")


def live(name: str, directory: Path) -> Recording:
    path = directory / f"{name}.journal"
    path.write_bytes(gzip.decompress((FIXTURES / f"{name}.journal.gz").read_bytes()))
    return read_recording(path)


def started(ledger: Ledger) -> list[tuple[int, str, int]]:
    leases = [one for one in ledger.leases.values() if one.started_s > 0]
    return [(one.job, one.gpu_type, one.gpus) for one in sorted(leases, key=lambda one: (one.started_s, one.job))]


@pytest.mark.parametrize("policy", ["finish_time_fairness", "max_min_fairness"])
def test_an_unchanged_replay_repeats_each_lease_of_a_live_run(policy: str, tmp_path: Path) -> None:
    work = work_in(live(policy, tmp_path))

    replayed = Replay(work, Change(), Noise()).run()

    assert started(replayed.ledger) == started(work.observed.ledger)
    jct_s = [replayed.ledger.jobs[row].jct_s for row in range(12)]
    assert jct_s == pytest.approx([job.jct_s for job in work.seen], rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "busy_max_min_fairness_13",  # a job finishes after its lease was revoked, while its next lease is granted
        "busy_max_min_fairness_14",  # a job finishes while the end of the round is overdue
        "busy_max_min_fairness_41",  # a program makes its first step after its lease was revoked
        "busy_finish_time_fairness_12",  # leases end seconds after they were revoked, before their first steps
        "busy_finish_time_fairness_31",  # late answers of nodes, reports of no step, late ends, a checkpoint that fails
        "busy_finish_time_fairness_43",  # a node that was unreachable is back while leases there are stopping
        "finish_time_fairness_23",  # a job reports before its first step
    ],
)
def test_an_unchanged_replay_repeats_a_run_on_a_busy_machine(name: str, tmp_path: Path) -> None:
    work = work_in(live(name, tmp_path))

    replayed = Replay(work, Change(), Noise()).run()

    jct_s = [replayed.ledger.jobs[row].jct_s for row in range(12)]
    assert jct_s == pytest.approx([job.jct_s for job in work.seen], rel=0.01)


@pytest.mark.parametrize("name", ["max_min_fairness", "finish_time_fairness", "busy_max_min_fairness_13"])
def test_leases_are_repeated_with_all_their_reports_also_those_without_new_steps(name: str, tmp_path: Path) -> None:
    recording = live(name, tmp_path)
    seen, lag_s = work_in(recording).observed.ledger, 0.05
    tracks = {serial: turn_of(one, 1.0, lag_s).track for serial, one in seen.leases.items() if one.readings}
    reports = [
        (now_s, lease, steps)
        for now_s, event in recording.events
        if isinstance(event, ProgressReported)
        for lease, steps in zip(event.leases.tolist(), event.steps_done.tolist(), strict=True)
    ]

    repeated = 0
    for now_s, lease, steps in reports:
        one, track = seen.leases[lease], tracks.get(lease)
        if track is None or not track[0, 0] < now_s - one.ready_s < track[-1, 0]:
            continue
        repeated += 1
        found = one.steps_before + np.interp(now_s - one.ready_s, track[:, 0], track[:, 1])
        assert found == pytest.approx(steps), (now_s, lease)
    assert repeated > 50


def test_a_lease_misses_no_report_that_it_made_just_before_or_after() -> None:
    """A failed job is reported alone, and the others follow with the wake-up, some milliseconds later."""
    reports, others = [(10.0, 1.0), (20.01, 2.0), (29.99, 3.0)], [20.0, 25.0, 30.0]
    lease = ObservedLease(0, "v100", 1, 4.0, 0.0, ready_s=5.0, started_s=5.5, readings=reports, missed_s=others)

    assert turn_of(lease, 1.0, 0.05).missed_s.tolist() == [20.0]  # seconds after it was ready


def test_more_gpus_for_a_live_run_have_an_interval(tmp_path: Path) -> None:
    answer = what_if(live("max_min_fairness", tmp_path), Change(gpus={"v100": 2}), seeds=0)

    one = answer.differences["avg_jct_s"]
    assert one.low < one.mean < one.high < 0
    assert answer.warnings == ()


def test_a_lease_that_was_withdrawn_before_its_start_does_not_change_the_work_of_its_job(tmp_path: Path) -> None:
    """Job 7 ended while its next lease was granted already: the end of that one reports steps of a checkpoint."""
    work = work_in(live("max_min_fairness", tmp_path))

    seen = work.observed.ledger
    withdrawn = [one for one in seen.leases.values() if one.job == 7 and not one.started_s > 0]
    assert len(withdrawn) == 1
    assert withdrawn[0].steps_end < seen.jobs[7].steps == seen.jobs[7].spec.steps_total
