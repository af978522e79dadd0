"""A script that never saves, among 20 jobs on three nodes: each of its steps runs exactly once.

It has 1,280 steps in a minute and uses nothing of gavelpy. Agents and the scheduler die and return, messages are lost,
nodes are cut off for a while and drained; only the failure of its own node may cost it its work, and then exactly the
steps that ran there. Its owner does not cancel or requeue it, and its own process does not fail.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from gavelpy.mechanism.events import Outcome
from gavelpy.model.job import JobId, JobSpec
from gavelpy.runtime.agent.leases.orders import Orders
from tests.mechanism.faults import world as worlds
from tests.mechanism.faults.machine import Machine, Record, Run
from tests.mechanism.faults.troubles import TICK_S, Hostility
from tests.mechanism.faults.world import World

STEPS, RATE = 1_280, 1_280 / 60
OTHERS = 20
NODES = (("v100", 2), ("v100", 1), ("k80", 1))
SCRIPT = "script"
FAULTS = 500
UNSAVED_S = 1_200.0  # a node that is away for longer counts as failed; faults of one node can follow each other
KIND = replace(Hostility(), power_off=0.0, kill_shim=0.0, break_job=0.0, cancel=0.0, requeue=0.0)
CRUEL = replace(KIND, power_off=0.05)
CALM = Hostility(**dict.fromkeys(vars(KIND), 0.0))


class ScriptOnly:
    """The jobs that use no checkpoint directory, as a container of serials: the script."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __contains__(self, job: object) -> bool:
        specs = self._world.service.core.jobs.specs
        return isinstance(job, int) and specs[job].id == SCRIPT


class ScriptWorld(World):
    """Keeps all runs of the script, and those that died with their node."""

    def __init__(self, seed: int, hostility: Hostility) -> None:
        super().__init__(seed, FAULTS, hostility, keep_unsaved=True)
        self.truth.is_fencing = False  # a fence counts a node that is cut off as failed
        self.truth.plain = ScriptOnly(self)  # type: ignore[assignment]  # a container, as a set is
        self.service.settings = msgspec.structs.replace(
            self.service.settings, on_node_lost="wait", unsaved_overlap_s=UNSAVED_S, orphan_max_s=UNSAVED_S
        )
        self.service.begin(0.0)
        self.of_script: dict[int, Run] = {}
        self.died_with_node: set[int] = set()
        self.deaf: set[str] = set()  # nodes that receive no orders
        for machine in self.machines.values():
            machine.die = lambda machine=machine: self._die(machine)  # type: ignore[method-assign]

    def _spec(self, number: int) -> JobSpec:
        if number:
            return on_one_gpu(super()._spec(number))
        return JobSpec(JobId(SCRIPT), STEPS, rates_steps_per_s={"v100": RATE, "k80": RATE}, owner="alice")

    def _tick(self, *, is_calm: bool) -> None:
        super()._tick(is_calm=is_calm)
        self.of_script |= {lease: run for lease, run in self.runs.items() if run.job in self.truth.plain}

    def _ordered(self, name: str, orders: Orders) -> None:
        if name not in self.deaf:
            super()._ordered(name, orders)

    def _die(self, machine: Machine) -> None:
        self.died_with_node |= {copy.record.lease for copy in machine.copies}
        Machine.die(machine)


def on_one_gpu(spec: JobSpec) -> JobSpec:
    """A job without a gang, whose checkpoint could be where too few GPUs are left: there are three nodes only."""
    return replace(spec, gpus=1)


@pytest.fixture
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "MACHINES", NODES)
    monkeypatch.setattr(worlds, "JOBS", OTHERS + 1)


def run_without_node_failures(seed: int) -> None:
    world = ScriptWorld(seed, KIND)

    episode = world.run()

    assert episode.faults >= FAULTS
    assert [run.steps for run in world.of_script.values()] == [STEPS], f"seed {seed}"


def run_with_node_failures(seed: int) -> int:
    """Number of runs that were lost."""
    world = ScriptWorld(seed, CRUEL)

    world.run()

    *lost, last = [world.of_script[lease] for lease in sorted(world.of_script)]
    assert last.steps == STEPS, f"seed {seed}"
    assert {run.lease for run in lost} <= world.died_with_node, f"seed {seed}: repeated without a dead node"
    return len(lost)


@pytest.mark.usefixtures("three_nodes")
@pytest.mark.parametrize("seed", [0])  # the slow tests have 50
def test_every_step_runs_once_while_everything_but_its_node_fails(seed: int) -> None:
    run_without_node_failures(seed)


@pytest.mark.usefixtures("three_nodes")
def test_only_the_steps_of_a_dead_node_run_again() -> None:
    assert any(run_with_node_failures(seed) for seed in range(2, 12))  # its node dies in seed 2, unless rules change


@pytest.mark.slow
@pytest.mark.usefixtures("three_nodes")
@pytest.mark.parametrize("seed", range(50))
def test_every_step_runs_once_in_each_of_fifty_seeds(seed: int) -> None:
    run_without_node_failures(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("three_nodes")
@pytest.mark.parametrize("seed", range(50))
def test_only_the_steps_of_dead_nodes_run_again_in_each_of_fifty_seeds(seed: int) -> None:
    run_with_node_failures(seed)


@pytest.mark.usefixtures("three_nodes")
def test_a_start_that_is_not_reported_yet_survives_the_trouble_of_its_node() -> None:
    """The node reports trouble while it prepares the start; the start is reported after the end of the round."""
    world = ScriptWorld(0, CALM)
    machine, record = until_starting(world)
    record.start_due_s = math.inf  # the preparation takes long
    while world.service.core.round_end_s - world.now_s > 2.5:
        world.advance(TICK_S)
    machine.trouble = "little room is left"
    world.deaf.add(machine.name)  # orders to it are on their way
    while not world.service.core.pool.node_unhealthy[world.row(machine)]:
        world.advance(TICK_S)
    record.start_due_s = world.now_s
    world.cut_until_s[machine.name] = world.now_s + 3.0
    world.advance(3.5)
    world.deaf.clear()
    world.advance(UNSAVED_S)

    assert [run.steps for run in world.of_script.values()] == [STEPS]


@pytest.mark.usefixtures("three_nodes")
def test_a_script_whose_node_cannot_start_it_runs_elsewhere() -> None:
    """Its lease is withdrawn: the node ends it, as it has started no process."""
    world = ScriptWorld(0, CALM)
    machine, record = until_starting(world)
    record.start_due_s = math.inf
    machine.trouble = "little room is left"

    world.advance(UNSAVED_S)

    assert record.outcome is Outcome.STOPPED
    (run,) = world.of_script.values()
    assert (run.steps, run.copies[0].machine is machine) == (STEPS, False)


def until_starting(world: ScriptWorld) -> tuple[Machine, Record]:
    """The machine on which the script starts, and its record there."""
    while True:
        world.advance(TICK_S)
        for machine in world.machines.values():
            for record in machine.records.values():
                if record.job in world.truth.plain and record.copy is None and record.outcome is None:
                    return machine, record


@pytest.mark.usefixtures("three_nodes")
def test_a_scheduler_that_preempts_scripts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = worlds.make_mechanism
    monkeypatch.setattr(worlds, "make_mechanism", lambda **values: make(**{**values, "keep_unsaved": False}))

    with pytest.raises(AssertionError, match="seed 1"):
        run_without_node_failures(1)
