"""Quotas and guaranteed GPUs of teams in simulations of random trees, checked with loops over teams and leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.engine import Engine
from gavelpy.mechanism.commands import Command, RoundPlan
from gavelpy.mechanism.events import Event
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.teams import Team
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.policies.base import policy_named
from gavelpy.simulator.settings import Costs
from gavelpy.simulator.simulate import Simulation
from tests.conftest import costly
from tests.simulator.builders import make_settings, random_trace

TYPES = ("v100", "k80")


class Watched(Simulation):
    """Checks quotas after each event, and guaranteed GPUs in the plan of each round."""

    plans = 0
    borrowed = 0

    def handle(self, event: Event) -> None:
        super().handle(event)
        teams = {team.name: team for team in self.core.settings.teams}
        for name, held in self.held(teams).items():
            for gpu_type, count in held.items():
                assert count <= teams[name].quota.get(gpu_type, np.inf), f"{name} holds {count} {gpu_type}"

    def _execute(self, command: Command) -> None:
        if isinstance(command, RoundPlan) and command.round > self.plans:
            self.plans = command.round
            self.check_guaranteed()
        super()._execute(command)

    def held(self, teams: dict[str, Team]) -> dict[str, dict[str, int]]:
        """GPUs under lease of each team, with those of the teams below it."""
        jobs, found = self.core.jobs, {name: dict.fromkeys(TYPES, 0) for name in teams}
        for row in jobs.leased.tolist():
            for name in above(jobs.specs[row].entity, teams):
                found[name][TYPES[jobs.lease_type[row]]] += int(jobs.gpus[row])
        return found

    def check_guaranteed(self) -> None:
        jobs, teams = self.core.jobs, {team.name: team for team in self.core.settings.teams}
        held = self.held(teams)
        kept = {  # for gangs of the team itself, as protected leases have the rest of what they need
            (name, t) for t in range(len(TYPES)) for row in np.flatnonzero(jobs.held_type[: jobs.count] == t).tolist()
            for name in above(jobs.specs[row].entity, teams)
        }  # fmt: skip
        for row in jobs.active[jobs.state[jobs.active] == JobState.WAITING].tolist():
            gpus, chain = int(jobs.gpus[row]), above(jobs.specs[row].entity, teams)
            for t, gpu_type in enumerate(TYPES):
                may = all(held[name][gpu_type] + gpus <= teams[name].quota.get(gpu_type, np.inf) for name in chain)
                is_idle = self.core.pool.free_counts[t] >= gpus and jobs.rate[row, t] > 0
                is_lost = is_idle and may and not jobs.any_held  # some idle GPUs may be reserved for a gang
                assert not is_lost, f"{gpus} {gpu_type} are idle, and a job waits that could borrow them"
                for depth, name in enumerate(chain):
                    fits = all(
                        held[low][gpu_type] + gpus <= teams[low].quota.get(gpu_type, np.inf)
                        for low in chain[: depth + 1]
                    )
                    is_owed = held[name][gpu_type] + gpus <= teams[name].guaranteed.get(gpu_type, 0)
                    is_owed = is_owed and (name, t) not in kept
                    assert not (is_owed and fits and jobs.rate[row, t] > 0), f"{name} lacks {gpus} {gpu_type}"
        for t, gpu_type in enumerate(TYPES):
            whole = {name: max(held[name][gpu_type], one.guaranteed.get(gpu_type, 0)) for name, one in teams.items()}
            top = sum(whole[name] for name, one in teams.items() if not one.parent)
            self.borrowed += top > self.core.pool.counts[t]


def above(name: str, teams: dict[str, Team]) -> list[str]:
    """A team and those above it."""
    chain = [name]
    while teams[chain[-1]].parent:
        chain.append(teams[chain[-1]].parent)
    return chain


@st.composite
def trees(draw: st.DrawFn) -> tuple[Team, ...]:
    """Up to three levels; what is guaranteed fits in 8 GPUs of each type, and in the quotas."""
    parents = draw(st.lists(st.integers(-1, 4), min_size=1, max_size=5))
    names = [f"t{k}" for k in range(len(parents))]
    parent = [names[p] if -1 < p < k else "" for k, p in enumerate(parents)]
    needs = {(name, gpu_type): 0 for name in names for gpu_type in TYPES}
    left = dict.fromkeys(TYPES, 8)
    teams = []
    for k in reversed(range(len(names))):  # the teams below come first
        guaranteed, quota = {}, {}
        for gpu_type in TYPES:
            below = needs[names[k], gpu_type]
            more = draw(st.sampled_from([0, 0, 1, 2, 4]))
            whole = below + min(more, left[gpu_type])
            if whole > below:
                guaranteed[gpu_type], left[gpu_type] = whole, left[gpu_type] - (whole - below)
            if draw(st.booleans()):
                quota[gpu_type] = whole + draw(st.sampled_from([0, 1, 2, 4]))
            if parent[k]:
                needs[parent[k], gpu_type] += whole
        teams.append(Team(names[k], 1.0 + k, parent=parent[k], quota=quota, guaranteed=guaranteed))
    return tuple(teams)


def watched(teams: tuple[Team, ...], seed: int, policy: str, jobs: int = 14, **settings: Any) -> Watched:
    """A simulation whose jobs are of these teams."""
    rng, drawn = np.random.default_rng(seed), random_trace(seed, jobs, types=TYPES)
    named = tuple(replace(job, entity=teams[rng.integers(len(teams))].name) for job in drawn.jobs)
    trace = Trace(named, drawn.arrival_s / 2)
    mechanism = make_settings(Costs(), teams=teams, lease_min_s=540.0, move_lag_s=1800.0, **settings)
    return Watched(trace, Cluster.parse("v100:8,k80:8"), Engine(policy_named(policy)), mechanism)


@costly(2)
@given(teams=trees(), seed=st.integers(0, 1000), policy=st.sampled_from(["hierarchical", "max_min_fairness"]))
def test_no_plan_exceeds_a_quota_and_what_is_guaranteed_is_there_at_each_round(
    teams: tuple[Team, ...], seed: int, policy: str
) -> None:
    found = watched(teams, seed, policy)

    found.run()

    assert found.plans > 3
