"""Requests under a policy that is a queue: without the jobs that it does not reach, the same leases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.journal.codec import decode_state, encode, encode_state
from gavelpy.mechanism import competition, invariants
from gavelpy.mechanism.commands import SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationFailed,
    AllocationSolved,
    ConfigChanged,
    Event,
    JobSubmitted,
    NodeUnhealthy,
    ProgressReported,
    WakeupDue,
)
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import NodeId, Trace
from gavelpy.policies.base import PolicyRun, is_queue, policy_named
from gavelpy.simulator.compare import engine_for
from gavelpy.simulator.conditions.spec import conditions_of
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs
from tests.mechanism.builders import answer, make_core, make_spec, start, tell, wake

CLUSTER = Cluster.parse("v100:8,p100:4,k80:8")
DEFAULT = SimulationSettings()
FAILING = replace(DEFAULT, conditions=conditions_of({"nodes": {"mtbf_h": 2000}, "job_failures": {"early_share": 0.2}}))
UNHEALTHY = replace(
    DEFAULT, conditions=conditions_of({"nodes": {"gpu_mtbf_h": 2000, "gpu_repair": {"median_s": 20_000, "sigma": 1}}})
)
LIMITED = replace(
    DEFAULT,
    mechanism=replace(DEFAULT.mechanism, solve_interval_s=0.0, jobs_running_a_user_max=2),
    mechanism_given=frozenset({"solve_interval_s"}),
)


EFFORT = (ConfigChanged, ProgressReported, WakeupDue, AllocationSolved)  # fewer, and at other times


class Observed(Simulation):
    """Notes how many jobs requests have, and checks the core's lists after each."""

    sizes: list[int]
    waiting: list[int]

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        invariants.check(self.core)
        self.sizes.append(len(question.jobs))
        self.waiting.append(len(self.core.jobs.active))
        return super().solve(question)


def queue_trace(seed: int) -> Trace:
    options = GeneratorOptions(jobs=60, mean_interarrival_s=100.0, multi_gpu=True)
    trace = generate(options, published_throughputs(), np.random.default_rng(seed))
    some = [job if k % 5 else replace(job, rates_steps_per_s={"v100": 3.0}) for k, job in enumerate(trace.jobs)]
    return replace(trace, jobs=tuple(some))


def run(settings: SimulationSettings, run: PolicyRun, *, seed: int, whole: bool) -> tuple[list[bytes], Observed]:
    """Records of what happens to leases, jobs and nodes, the reasons of jobs, and the simulation."""
    found: list[bytes] = []
    simulation = Observed(
        queue_trace(seed),
        CLUSTER,
        engine_for(run, settings, None, None, 0.0),
        settings,
        observers=[lambda event, now_s: found.append(encode(event, now_s)) if not isinstance(event, EFFORT) else None],
    )
    simulation.sizes, simulation.waiting = [], []
    simulation.in_order &= not whole
    found.append(repr(simulation.run().reasons).encode())
    return found, simulation


@pytest.mark.parametrize(
    ("settings", "blind", "seed"),
    [(DEFAULT, False, 0), (DEFAULT, True, 1), (FAILING, False, 2), (UNHEALTHY, False, 1)],
)
def test_jobs_that_a_queue_does_not_reach_change_no_lease(
    settings: SimulationSettings, blind: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competition, "FIRST_ASKED", 1)
    fifo = PolicyRun("fifo", blind)

    shortened, short = run(settings, fifo, seed=seed, whole=False)
    whole, long = run(settings, fifo, seed=seed, whole=True)

    assert shortened == whole
    assert sum(short.sizes) < 0.9 * sum(long.sizes)
    assert len(short.sizes) < 0.9 * len(long.sizes)
    assert max(short.sizes) <= max(long.waiting)


def test_limits_of_users_need_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competition, "FIRST_ASKED", 1)

    _, simulation = run(LIMITED, PolicyRun("fifo"), seed=0, whole=False)
    _, whole = run(LIMITED, PolicyRun("fifo"), seed=0, whole=True)

    assert simulation.core.settings.in_order
    assert simulation.sizes == whole.sizes


def test_a_core_without_a_policy_replays_a_run_with_fewer_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competition, "FIRST_ASKED", 1)
    events: list[tuple[Event, float]] = []
    simulation = Simulation(
        queue_trace(0),
        CLUSTER,
        engine_for(PolicyRun("fifo"), DEFAULT, None, None, 0.0),
        DEFAULT,
        observers=[lambda event, now_s: events.append((event, now_s))],
    )
    simulation.run()

    core, copy = SchedulerCore(), SchedulerCore()
    for k, (event, now_s) in enumerate(events):
        core.handle(event, now_s)
        copy.handle(event, now_s)
        copy = restore(decode_state(encode_state(snapshot(copy)))) if k % 40 == 0 else copy

    assert encode_state(snapshot(core)) == encode_state(snapshot(simulation.core))
    assert encode_state(snapshot(copy)) == encode_state(snapshot(core))


def test_a_lease_that_starts_on_an_unhealthy_node_lets_the_queue_reach_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competition, "FIRST_ASKED", 1)
    servers = (("v100", 1), ("v100", 1))
    settings = {"servers": servers, "in_order": True, "fill_leftover": False}
    core = make_core(*map(make_spec, "abcdefgh"), **settings)
    wake(core)
    answer(core, (0, 0, 1.0), (1, 0, 1.0))
    tell(core, NodeUnhealthy(NodeId("n0"), "a GPU failed"))
    wake(core)
    answer(core, (1, 0, 1.0))
    tell(core, JobSubmitted(make_spec("i")))
    assert not core.question.stale, "it is behind jobs for which there are too few GPUs"

    start(core, 0)
    tell(core, JobSubmitted(make_spec("j")))

    assert core.question.stale, "the first job is bound to its node, and no longer in the queue"


def test_only_fifo_is_a_queue_in_order_of_arrival() -> None:
    assert [name for name in ("fifo", "shortest_job_first", "allox", "las") if is_queue(policy_named(name))] == ["fifo"]
