"""A journal replayed: unchanged it repeats what happened, and changed it does what a simulation of the change does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.recording import Recording
from gavelpy.mechanism.events import Event, JobCancelled, JobsHeld, JobsReleased, LeaseStarted, NodeJoined, NodeLost
from gavelpy.model.job import JobSpec, NodeId
from gavelpy.simulator.past.change import Change, gpu_changes
from gavelpy.simulator.past.observed import observe
from gavelpy.simulator.past.replay import Replay, Replayed
from gavelpy.simulator.past.whatif import what_if
from gavelpy.simulator.past.work import Noise, rates_of
from tests.simulator.builders import make_job, make_settings, make_trace, random_trace, run
from tests.simulator.past.builders import CLUSTER, COSTS, RecordedReplay, recorded, work_in


def ends(replayed: Replayed) -> list[float]:
    return [job.end_s for _, job in sorted(replayed.ledger.jobs.items())]


@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo", "finish_time_fairness"])
def test_an_unchanged_replay_repeats_what_happened(policy: str) -> None:
    work = work_in(recorded(random_trace(3, 30), policy))

    replayed = Replay(work, Change(), Noise()).run()

    happened = np.array([job.jct_s for job in work.seen])
    again = np.array([replayed.ledger.jobs[row].jct_s for row in range(len(work.seen))])
    assert again.mean() == pytest.approx(happened.mean(), rel=0.01)
    assert np.quantile(np.abs(again / happened - 1.0), 0.9) < 0.05


def test_rates_and_costs_of_a_simulation_are_found_in_its_journal() -> None:
    trace = random_trace(5, 30)
    work = work_in(recorded(trace, "fifo"))

    costs = work.learned.all_costs.mean()
    true = {(k, name): rate for k, job in enumerate(trace.jobs) for name, rate in job.rates_steps_per_s.items()}
    found = {(job, name): rate for (job, _, name), rate in work.learned.own.items()}
    assert (costs.checkpoint_s, costs.restart_s, costs.migration_s) == pytest.approx(
        dataclasses.astuple(COSTS), rel=0.05
    )
    assert [key for key, rate in found.items() if rate != pytest.approx(true[key], rel=0.01)] == []


@pytest.mark.parametrize("cluster", [{"v100": 4}, {"k80": -8}, {"p100": -4, "v100": 2}])
def test_a_changed_cluster_does_what_a_simulation_of_it_does(cluster: dict[str, int]) -> None:
    trace, counts = random_trace(7, 30), {"v100": 4, "p100": 4, "k80": 8}
    work = work_in(recorded(trace, "fifo"))

    replayed = Replay(work, Change(gpus=cluster), Noise()).run()

    whole = {name: count + cluster.get(name, 0) for name, count in counts.items()}
    text = ",".join(f"{name}:{count}" for name, count in whole.items() if count)
    simulated = run(trace, text, "fifo", settings=make_settings(COSTS))
    assert np.nanmean([job.jct_s for job in replayed.ledger.jobs.values()]) == pytest.approx(
        simulated.metrics.avg_jct_s, rel=0.02
    )


def test_another_policy_does_what_a_simulation_of_it_does() -> None:
    trace = random_trace(9, 30)
    work = work_in(recorded(trace, "max_min_fairness"))

    replayed = Replay(work, Change("fifo"), Noise()).run()

    simulated = run(trace, CLUSTER, "fifo", settings=make_settings(COSTS))
    jct_s = [job.jct_s for job in replayed.ledger.jobs.values()]
    assert np.mean(jct_s) == pytest.approx(simulated.metrics.avg_jct_s, rel=0.05)


def test_orders_and_nodes_come_at_their_recorded_times() -> None:
    base = work_in(recorded(random_trace(11, 12)))
    node = NodeId("spare")
    inputs: list[tuple[float, Event]] = [
        (10.0, NodeJoined(node, "v100", 2)),
        (5.0, JobsHeld(np.array([2]))),
        (60.0, JobCancelled(1)),
        (2_000.0, NodeLost(node)),
        (9_000.0, JobsReleased(np.array([2]))),
    ]
    journal = RecordedReplay(base, inputs).journal()

    work = work_in(journal)
    replayed = Replay(work, Change(), Noise()).run()

    assert [job.end for job in work.seen] == [job.end for _, job in sorted(replayed.ledger.jobs.items())]
    assert work.seen[1].end == "cancelled"
    assert ends(replayed) == pytest.approx([job.end_s for job in work.seen], rel=0.02)


def test_a_replay_may_begin_in_the_middle() -> None:
    recording = recorded(random_trace(13, 20), "fifo")
    whole = work_in(recording)
    middle_s = float(np.median([job.arrival_s for job in whole.seen])) + 1.0

    answer = what_if(recording, since=str(middle_s))

    assert answer.recorded.jobs > 0
    assert abs(answer.deviations["avg_jct_s"]) < 0.02
    assert abs(answer.deviations["gpu_hours"]) < 0.02


def test_a_node_that_is_absent_gets_no_lease() -> None:
    recording = recorded(random_trace(15, 10))
    node = next(event.node_id for _, event in recording.events if isinstance(event, NodeJoined))
    work = work_in(recording)
    replay = Replay(work, Change(without_nodes=(str(node),)), Noise())

    started: list[int] = []
    handle = replay.ledger.apply

    def watch(core, event, now_s, commands):  # type: ignore[no-untyped-def]  # as the ledger's
        if isinstance(event, LeaseStarted):
            started.extend(core.pool.node_of[event.gpus].tolist())
        handle(core, event, now_s, commands)

    replay.ledger.apply = watch  # type: ignore[method-assign]  # a spy that calls the method
    replay.run()

    assert started
    assert node not in {replay.core.pool.node_ids[row] for row in started}


def test_rates_on_a_new_type_are_the_owners_or_estimates() -> None:
    told = make_job("told", rates={"v100": 1.0, "h100": 3.0})
    silent = make_job("silent", rates={"v100": 1.0})
    work = work_in(recorded(make_trace(told, silent), "fifo", "v100:1"))

    rates = rates_of(work, ("v100", "h100"), Noise()).requested

    assert rates[0, 1] == pytest.approx(3.0, rel=0.01)
    assert rates[1, 1] > 0
    assert len(work.estimated) == 1


def test_work_of_a_job_that_did_not_end_is_what_it_declared() -> None:
    recording = recorded(make_trace(make_job("long", steps=3600.0)), "fifo", "v100:1")

    work = work_in(recording, until_s=1_000.0)

    assert work.steps_total.tolist() == [3600.0]


def test_a_job_that_failed_fails_after_as_much_work() -> None:
    specs: list[JobSpec] = [make_job("bad"), dataclasses.replace(make_job("after"), after_ok=(0,))]
    work = work_in(recorded(make_trace(specs[0]), "fifo", "v100:1"))
    work.seen[0].end = "failed"

    replayed = Replay(work, Change(), Noise()).run()

    assert replayed.ledger.jobs[0].end == "cancelled"
    assert replayed.ledger.jobs[0].end_s == pytest.approx(work.seen[0].end_s)


def test_noise_is_paired_over_changes_and_differs_between_seeds() -> None:
    work = work_in(recorded(random_trace(3, 10), "fifo"))
    one, wider = (rates_of(work, types, Noise(1)).requested for types in (("v100", "p100"), ("v100", "p100", "k80")))

    other = rates_of(work, ("v100", "p100"), Noise(2)).requested

    assert one.tolist() == wider[:, :2].tolist()
    assert one.tolist() != other.tolist()


def test_an_answer_has_an_interval_and_names_the_jobs_that_change_most() -> None:
    recording = recorded(random_trace(17, 20), "fifo")

    answer = what_if(recording, Change(gpus={"v100": 4}), seeds=2)

    one = answer.differences["avg_jct_s"]
    assert one.low <= one.mean <= one.high < 0
    assert answer.sentence.startswith("With +4 v100, jobs would have completed in")
    worst = answer.jobs["difference_s"].abs().max()
    assert abs(answer.most_affected["difference_s"].iloc[0]) == worst
    assert answer.changed.avg_jct_s - answer.baseline.avg_jct_s == pytest.approx(one.mean)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8 h100", "must look like"),
        ("+0 h100", "1 to 100,000 GPUs"),
        ("+1 h100,-2 h100", "name each GPU type once"),
        ("+99999999999 h100", "1 to 100,000 GPUs"),
    ],
)
def test_changes_of_a_cluster_that_are_no_changes_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        gpu_changes(text)


def test_times_outside_the_journal_are_refused() -> None:
    recording = Recording("j", recorded(make_trace(make_job("a")), "fifo", "v100:1").events)

    with pytest.raises(InvalidInput, match="since must be at most"):
        observe(recording, 1e9)
    with pytest.raises(InvalidInput, match="until must be after"):
        observe(recording, None, -1.0)
    with pytest.raises(InvalidInput, match="does not record dates"):
        recording.time_s("2026-11-01", "since")
