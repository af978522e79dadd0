"""Journals of simulations, for tests of replays."""

from __future__ import annotations

from collections.abc import Iterable

from gavelpy.journal.recording import Recording
from gavelpy.mechanism.events import Event, PolicyChanged
from gavelpy.model.job import Trace
from gavelpy.simulator.past.change import Change
from gavelpy.simulator.past.learned import learn
from gavelpy.simulator.past.observed import observe
from gavelpy.simulator.past.replay import Replay
from gavelpy.simulator.past.work import Noise, Work, work_of
from gavelpy.simulator.settings import Costs
from tests.simulator.builders import make_settings, make_simulation

CLUSTER = "v100:4,p100:4,k80:8"
COSTS = Costs(checkpoint_s=7.0, restart_s=30.0, migration_s=11.0)


def recorded(trace: Trace, policy: str = "max_min_fairness", cluster: str = CLUSTER, costs: Costs = COSTS) -> Recording:
    """The journal of a simulation."""
    events: list[tuple[float, Event]] = []
    simulation = make_simulation(trace, cluster, policy, make_settings(costs))
    simulation.observers.append(lambda event, now_s: events.append((now_s, event)))
    simulation.run()
    return Recording("simulated", events, policy=PolicyChanged(policy, "{}"))


def work_in(recording: Recording, since_s: float | None = None, until_s: float | None = None) -> Work:
    observed = observe(recording, since_s, until_s)
    return work_of(observed, learn(observed.ledger, observed.start_s))


class RecordedReplay(Replay):
    """A replay that keeps its own journal, with further inputs."""

    def __init__(self, work: Work, inputs: Iterable[tuple[float, Event]] = ()) -> None:
        self.events: list[tuple[float, Event]] = []
        super().__init__(work, Change(), Noise())
        self.inputs.extend(inputs)
        self.inputs = type(self.inputs)(sorted(self.inputs, key=lambda one: one[0]))

    def observe(self, event: Event) -> None:
        super().observe(event)
        self.events.append((self.now_s, event))

    def journal(self) -> Recording:
        """The journal after a run."""
        self.run()
        return Recording("replayed", self.events, policy=self.work.observed.policy)
