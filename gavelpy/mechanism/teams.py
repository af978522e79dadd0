"""Teams: a tree of entities with weights and quotas, which the operator names, and the users who may submit for each.

A team is an entity of the policy's problem. `hierarchical` divides the cluster by the tree; other policies do not use
it. Quotas and guaranteed GPUs (see `model.team_limits`) hold under every policy that counts resources, and in every
plan (see `team_plan`). Without configured teams, each entity that a job names has weight 1 and no parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobSpec
from gavelpy.model.problem import GPUS, Entity, EntityPolicy
from gavelpy.model.team_limits import RESOURCE, TeamLimits

if TYPE_CHECKING:
    from gavelpy.mechanism.settings import MechanismSettings

TEAMS_MAX = 1000
DEPTH_MAX = 32
WEIGHT_MAX = 1e6
GPUS_MAX = 1_000_000
AMOUNTS_MAX = 1_000_000_000  # CPU cores, GiB of memory
RESOURCES = ("cpus", "memory_gib")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Team:
    """A team of users, whose jobs share the team's part of the cluster with those of the teams below it."""

    name: str
    weight: float = 1.0  # of its part, among the other members of its parent
    policy: EntityPolicy = EntityPolicy.FAIRNESS  # how it divides its part
    parent: str = ""  # "" = none: a part of the whole cluster
    members: tuple[str, ...] = ()  # who may submit jobs for it; empty = all
    quota: Mapping[str, int] = field(
        default_factory=dict, hash=False
    )  # most GPUs that it holds, by type, or "v100:cpus"
    guaranteed: Mapping[str, int] = field(default_factory=dict, hash=False)  # what it gets when it can use it, likewise

    def is_open_to(self, owner: str) -> bool:
        """Whether this owner may submit jobs for the team."""
        return not self.members or owner in self.members


def check_teams(teams: Sequence[Team]) -> None:
    """Raises InvalidInput, which names team and field, unless these teams are trees."""
    if len(teams) > TEAMS_MAX:
        raise InvalidInput(f"teams must be at most {TEAMS_MAX}, got {len(teams)}")
    by_name: dict[str, Team] = {}
    for one in teams:
        where = f"teams.{one.name}"
        if not _NAME.fullmatch(one.name):
            allowed = "named by 1 to 63 letters, digits, '.', '_' and '-'"
            raise InvalidInput(f"teams must be {allowed}, got {one.name[:80]!r}")
        if one.name in by_name:
            raise InvalidInput(f"teams must have each name once, got {one.name!r} twice")
        if not 1 / WEIGHT_MAX <= one.weight <= WEIGHT_MAX:
            raise InvalidInput(f"{where}.weight must be in [{1 / WEIGHT_MAX:g}, {WEIGHT_MAX:g}], got {one.weight!r}")
        if not all(user and user.isprintable() for user in one.members):
            raise InvalidInput(f"{where}.members must be names of users, got {list(one.members)!r}")
        by_name[one.name] = one
    for one in teams:
        if one.parent and one.parent not in by_name:
            allowed = f"one of {', '.join(by_name)}, or empty"
            raise InvalidInput(f"teams.{one.name}.parent must be {allowed}, got {one.parent!r}")
        above, seen = one, {one.name}
        while above.parent:
            above = by_name[above.parent]
            if above.name in seen:
                raise InvalidInput(f"teams.{one.name}.parent must not lead back to a team below it, got {one.parent!r}")
            seen.add(above.name)
        if len(seen) > DEPTH_MAX:
            raise InvalidInput(
                f"teams.{one.name}.parent must leave {DEPTH_MAX} levels of teams at most, got {one.parent!r}"
            )
    _check_limits(teams)


def _check_limits(teams: Sequence[Team]) -> None:
    """Raises InvalidInput for quotas and guaranteed GPUs that cannot hold together."""
    for one in teams:
        for name, amounts in (("quota", one.quota), ("guaranteed", one.guaranteed)):
            for gpu_type, gpus in amounts.items():
                where = f"teams.{one.name}.{name}"
                kind, resource = parted(gpu_type)
                if resource not in (GPUS, *RESOURCES):
                    known = " or ".join(f'"{kind}{RESOURCE}{each}"' for each in RESOURCES)
                    raise InvalidInput(f"{where} must be of a GPU type, or of {known}, got {gpu_type!r}")
                if not (kind and gpu_type.isprintable()):
                    raise InvalidInput(f"{where} must be GPUs by GPU type, got the type {gpu_type!r}")
                if not 0 <= gpus <= (GPUS_MAX if resource == GPUS else AMOUNTS_MAX):
                    most = f"GPUs in [0, {GPUS_MAX}]" if resource == GPUS else f"whole units in [0, {AMOUNTS_MAX}]"
                    raise InvalidInput(f"{where} must be numbers of {most}, got {gpu_type} = {gpus}")
    for gpu_type in sorted({gpu_type for one in teams for gpu_type in one.guaranteed}):
        limits = limits_of((), tuple(teams), (gpu_type,))
        need, part = (column[:, 0] for column in limits.reserves(np.zeros_like(limits.guaranteed)))
        for one, below, whole, quota in zip(
            teams, need.tolist(), part.tolist(), limits.quota[:, 0].tolist(), strict=True
        ):
            own = one.guaranteed.get(gpu_type)
            if own is not None and below > own:
                lower = f"at least the {below:g} {gpu_type} of the teams below it"
                raise InvalidInput(f"teams.{one.name}.guaranteed must be {lower}, got {own}")
            if whole > quota:
                what = "itself" if own is not None else "the teams below it"
                least = f"at least the {whole:g} {gpu_type} guaranteed to {what}"
                raise InvalidInput(f"teams.{one.name}.quota must be {least}, got {quota:g}")


def parted(column: str) -> tuple[str, str]:
    """GPU type and resource of a name such as "v100:cpus"; of "v100", GPUs."""
    kind, _, resource = column.partition(RESOURCE)
    return kind, resource if RESOURCE in column else GPUS


@lru_cache(maxsize=8)
def limits_of(names: tuple[str, ...], teams: tuple[Team, ...], gpu_types: tuple[str, ...]) -> TeamLimits:
    """Quotas and guarantees of the entities of a problem, in the order of `entities_of`, without jobs."""
    entities, _ = entities_of(names, teams)
    row_of = {entity.id: row for row, entity in enumerate(entities)}
    named = {name: parted(name) for one in teams for name in (*one.quota, *one.guaranteed) if RESOURCE in name}
    others = sorted(name for name, (kind, _) in named.items() if kind in gpu_types)
    columns = (*gpu_types, *others)
    quota, guaranteed = np.full((len(entities), len(columns)), np.inf), np.zeros((len(entities), len(columns)))
    for row, one in enumerate(teams):
        for k, name in enumerate(columns):
            quota[row, k] = one.quota.get(name, np.inf)
            guaranteed[row, k] = one.guaranteed.get(name, 0)
    parent = np.array([row_of.get(entity.parent, -1) for entity in entities], dtype=np.int64)
    resources = tuple((gpu_types.index(named[name][0]), named[name][1]) for name in others)
    per_gpu = np.zeros((0, len(resources)))
    return TeamLimits(tuple(row_of), parent, quota, guaranteed, np.zeros(0, dtype=np.int64), resources, per_gpu)


def limits_resources(teams: Iterable[Team]) -> bool:
    """Whether any of these teams has limits of other resources than GPUs."""
    return any(RESOURCE in name for one in teams for name in (*one.quota, *one.guaranteed))


def any_limits(teams: Iterable[Team]) -> bool:
    """Whether any of these teams has a quota or guaranteed GPUs."""
    return any(one.quota or one.guaranteed for one in teams)


def of_team(spec: JobSpec, settings: MechanismSettings, owner: str) -> JobSpec:
    """The job with the team that it names, else with the only one that is open to its owner; as it is without teams.

    Raises InvalidInput for a team that does not exist or is not open to them, and where several are possible.
    """
    if not settings.teams:
        return spec
    allowed = [one.name for one in settings.teams if one.is_open_to(owner)]
    if spec.entity in allowed:
        return spec
    if not spec.entity and len(allowed) == 1:
        return replace(spec, entity=allowed[0])
    got = repr(spec.entity) if spec.entity else "none"
    if not allowed:
        raise InvalidInput(f"team must be one that is open to {owner!r}, but none is, got {got}")
    raise InvalidInput(f"team must be one of {', '.join(allowed)}, which {owner!r} may use, got {got}")


def of_token(specs: Sequence[JobSpec], settings: MechanismSettings, owner: str, team: str) -> list[JobSpec]:
    """The jobs with the team that their owner's token names (empty = none), if they name none.

    Raises InvalidInput for a job of another team, unless the configuration lists the owner among its members.
    """
    if not team:
        return list(specs)
    own = [team, *(one.name for one in settings.teams if owner in one.members)]
    for spec in specs:
        if spec.entity and spec.entity not in own:
            raise InvalidInput(f"team must be {team}, which the token of {owner!r} names, got {spec.entity!r}")
    return [spec if spec.entity else replace(spec, entity=team) for spec in specs]


def check_entities(specs: Iterable[JobSpec], settings: MechanismSettings) -> None:
    """Raises InvalidInput for a job whose entity is none of the teams."""
    names = [one.name for one in settings.teams]
    for spec in specs:
        if spec.entity not in names:
            got = repr(spec.entity) if spec.entity else "none"
            raise InvalidInput(f"entity of job {spec.id!r} must be a team, one of {', '.join(names)}, got {got}")


@lru_cache(maxsize=8)
def entities_of(names: tuple[str, ...], teams: tuple[Team, ...]) -> tuple[tuple[Entity, ...], Ints]:
    """The entities of a problem, and the row among them of each of these names, with -1 in the last place.

    They are the teams, and the names that are no team (of jobs that were submitted before teams were configured) with
    weight 1 and no parent.
    """
    known = [Entity(one.name, one.weight, one.policy, one.parent) for one in teams]
    row_of = {entity.id: row for row, entity in enumerate(known)}
    for name in names:
        if name not in row_of:
            row_of[name] = len(known)
            known.append(Entity(name))
    rows = np.array([*(row_of[name] for name in names), -1], dtype=np.int64)
    rows.flags.writeable = False
    return tuple(known), rows
