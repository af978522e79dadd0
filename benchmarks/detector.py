"""The failure detector of agents in virtual time: how soon a death is found, false deaths, messages, CPU.

Delays are log-normal (median 0.3 ms), 1 % of the messages is lost, 0.1 % comes up to 0.4 s late. In the second part
each agent pauses about once a minute for up to 1.2 s, and no agent dies.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from random import Random

from gavelpy.runtime.peer_detector import PeerState
from tests.runtime.detector_world import DetectorWorld

DEATHS = {2: 50, 3: 50, 10: 50, 50: 20, 200: 5}  # by number of agents
HOURS = {3: 24.0, 10: 24.0, 100: 0.5, 200: 0.3}
PAUSE_S_MAX, PAUSE_EVERY_S, AWAKE_S_MIN = 1.2, 60.0, 1.0
SETTLED_S, PATIENCE_S = 10.0, 20.0


def run(options: Sequence[str] = ()) -> None:
    """Prints one line for each number of agents and part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks detector", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: %(default)s)")
    parser.add_argument("--agents-max", type=int, default=200, help="without larger clusters (default: %(default)s)")
    given = parser.parse_args(options)
    for agents, times in DEATHS.items():
        if agents <= given.agents_max:
            found = [_death(agents, given.seed + i) for i in range(times)]
            first, last = (sorted(column) for column in zip(*found, strict=True))
            print(
                f"{agents} agents, {times} deaths: the first one knows after {statistics.median(first):.2f} s "
                f"(p50), {first[-1]:.2f} s (max); all know after {statistics.median(last):.2f} s, {last[-1]:.2f} s",
                flush=True,
            )
    for agents, hours in HOURS.items():
        if agents <= given.agents_max:
            _pauses(agents, hours, given.seed)


def _death(agents: int, seed: int) -> tuple[float, float]:
    """When the first and the last agent believe that an agent is dead."""
    world = DetectorWorld(agents, seed)
    world.run(SETTLED_S + Random(seed).random())
    died_s = world.now_s
    world.kill("n1")
    world.run(died_s + PATIENCE_S)
    deaths = [(when_s - died_s, of) for when_s, _, of, state in world.changes if state is PeerState.DEAD]
    assert {of for _, of in deaths} == {"n1"}, "another agent was declared dead"
    assert len(deaths) == agents - 1, "an agent does not know"
    return min(deaths)[0], max(deaths)[0]


def _pauses(agents: int, hours: float, seed: int) -> None:
    world, rng, began_s = DetectorWorld(agents, seed), Random(f"pauses {seed}"), time.process_time()

    def pause(name: str) -> None:
        pause_s = rng.uniform(0.0, PAUSE_S_MAX)
        world.pause(name, pause_s)
        again_s = world.now_s + pause_s + AWAKE_S_MIN + rng.expovariate(1 / PAUSE_EVERY_S)
        world.at(again_s, lambda: pause(name))

    for name in world.agents:
        world.at(rng.uniform(0.0, PAUSE_EVERY_S), lambda name=name: pause(name))  # type: ignore[misc]  # a default
    world.run(3_600.0 * hours)
    states = [state for *_, state in world.changes]
    rates = [agent.sent / hours / 3_600.0 for agent in world.agents.values()]
    print(
        f"{agents} agents, {hours:g} h of jitter and pauses: {states.count(PeerState.DEAD)} false deaths, "
        f"{states.count(PeerState.SUSPECT)} suspicions, {max(rates):.1f} messages/s of the busiest agent, "
        f"{time.process_time() - began_s:.0f} s of CPU",
        flush=True,
    )
