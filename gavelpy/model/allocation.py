"""Allocations: shares of time on GPU types, and the certificate that proves their quality."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints, floats
from gavelpy.model.job import JobId
from gavelpy.model.problem import AllocationProblem

if TYPE_CHECKING:
    import pandas as pd

AGAIN_MIN_S = 1.0
MEMORY_BYTES_MAX = 1 << 20  # it is journaled with each answer


@dataclass(frozen=True)
class Certificate:
    """Proof of an allocation's quality: objective ≤ bound (for a maximum), and the largest constraint violation.

    `gap` is |bound - objective| / |objective|, so a makespan's level of 1e-6 is proved to as many digits as one of 1.
    Exceptions: if rate floors leave less than an even split of the GPUs would give, the gap is relative to the level of
    the even split; for concave objectives, which may be zero or negative (logarithms), to max(1, |objective|). For
    water filling it is the largest relative increase of any job's rate that lowers no other rate. A heuristic (FIFO,
    isolated) has nothing to prove: its path is "rule", its gap 0, and the policy defines its objective.

    `warning` is empty if the gap is within the tolerance. Otherwise the allocation is feasible, `gap` is what could be
    proved, and the warning reports what each algorithm reached.
    """

    objective: float
    bound: float
    gap: float
    violation: float  # largest excess of a time budget (1) or of a capacity (relative), >= 0
    path: str  # the solver that answered: "highs", "rule", ...
    solve_s: float
    warning: str = ""


_NONE = np.zeros(0)
_NONE.setflags(write=False)


@dataclass(frozen=True, eq=False)
class Allocation:
    """Share of wall-clock time of each configuration on each GPU type."""

    problem: AllocationProblem
    share: Floats  # (C, T) in 0..1; rows follow problem's configurations
    shadow_prices: Floats  # (T,) marginal value of a GPU: objective gained by one more; NaN if nothing is optimised
    certificate: Certificate
    rate_floor_steps_per_s: Floats = field(default_factory=lambda: np.zeros(0))  # (J,) guaranteed rates; empty = none
    again_s: float = np.inf  # time after which the policy must be called again, if nothing else causes it before
    memory: bytes = b""  # for its next call, in `AllocationProblem.memory`
    refused: Mapping[JobId, str] = field(default_factory=dict)  # jobs that it refuses, and why
    other_prices: Floats = field(default_factory=lambda: np.zeros(0))  # (T, R - 1) of the resources after GPUs
    next_round: Ints | None = None  # (N, 2) configurations that run in it, and their types; None = by shares

    def __post_init__(self) -> None:
        shape = (self.problem.configuration_count, len(self.problem.gpu_types))
        object.__setattr__(self, "share", floats("share", self.share, shape))
        object.__setattr__(self, "shadow_prices", floats("shadow_prices", self.shadow_prices, (shape[1],)))
        floors = np.shape(self.rate_floor_steps_per_s)
        wanted = (0,) if floors == (0,) else (self.problem.job_count,)
        promised = floats("rate_floor_steps_per_s", self.rate_floor_steps_per_s, wanted)
        object.__setattr__(self, "rate_floor_steps_per_s", promised)
        others = (shape[1], len(self.problem.resources) - 1)
        unpriced = np.full(others, np.nan) if np.shape(self.other_prices) == (0,) else self.other_prices
        object.__setattr__(self, "other_prices", floats("other_prices", unpriced, others))
        if not self.again_s >= AGAIN_MIN_S:
            raise InvalidInput(f"again_s must be at least {AGAIN_MIN_S:g}, or infinite for never, got {self.again_s!r}")
        if not isinstance(self.memory, bytes) or len(self.memory) > MEMORY_BYTES_MAX:
            got = f"{len(self.memory)} bytes" if isinstance(self.memory, bytes) else repr(self.memory)[:60]
            raise InvalidInput(f"memory must be at most {MEMORY_BYTES_MAX} bytes, got {got}")
        if self.next_round is not None:
            object.__setattr__(self, "next_round", _checked_round(self.next_round, shape))
        for job in set(self.refused) - set(self.problem.job_ids) if self.refused else ():
            raise InvalidInput(f"refused must name jobs of the problem, got {job!r}")

    @classmethod
    def of_known(
        cls, problem: AllocationProblem, share: Floats, shadow_prices: Floats, certificate: Certificate,
        rate_floor_steps_per_s: Floats = _NONE, other_prices: Floats | None = None,
    ) -> Allocation:  # fmt: skip
        """An allocation of arrays for which all that `__init__` checks is known to hold; they become read-only."""
        found, others = object.__new__(cls), other_prices
        if others is None:
            others = np.full((len(shadow_prices), len(problem.resources) - 1), np.nan)
        for array in (share, shadow_prices, others):
            array.flags.writeable = False
        known = {"problem": problem, "share": share, "shadow_prices": shadow_prices, "certificate": certificate}
        usual = {"again_s": np.inf, "memory": b"", "refused": {}, "next_round": None}
        vars(found).update(known, **usual, rate_floor_steps_per_s=rate_floor_steps_per_s, other_prices=others)
        return found

    @property
    def prices(self) -> Floats:
        """Deprecated: use `shadow_prices`."""
        warnings.warn("Allocation.prices is deprecated: use Allocation.shadow_prices", DeprecationWarning, stacklevel=2)
        return self.shadow_prices

    @property
    def resource_prices(self) -> Floats:
        """Marginal value of each resource at each type, (T, R): objective gained by one more GPU, core or GiB.

        The first column is `shadow_prices`. Where two resources are scarce in the same proportion, only the sum of
        their values is unique: one more of either alone may gain nothing.
        """
        return np.column_stack([self.shadow_prices, self.other_prices])

    @property
    def other_values(self) -> tuple[tuple[str, ...], Floats]:
        """The resources after GPUs that are worth something at some type, (K,), and their prices by type, (K, T)."""
        worth = np.flatnonzero((self.other_prices > 0).any(axis=0))
        return tuple(self.problem.resources[1 + r] for r in worth.tolist()), self.other_prices.T[worth]

    @property
    def rate_steps_per_s(self) -> Floats:
        """Effective rate of each job, (J,): Σ of rate x share over its configurations and types. Gavel §3.1."""
        p = self.problem
        per_member = (p.member_rate_steps_per_s * self.share[p.member_configuration]).sum(axis=1)
        rates: Floats = np.zeros(len(p.job_ids))
        np.add.at(rates, p.member_job, per_member)
        return rates

    @property
    def job_share(self) -> Floats:
        """Share of time of each job on each type, (J, T), alone or co-located."""
        p = self.problem
        total = np.zeros((len(p.job_ids), len(p.gpu_types)))
        np.add.at(total, p.member_job, self.share[p.member_configuration])
        return total

    def evaluated_on(self, problem: AllocationProblem) -> Allocation:
        """The same shares on another view of the same jobs (a blind allocation on the true rates)."""
        mine = self.problem
        for name in ("job_ids", "gpu_types"):
            theirs, ours = getattr(problem, name), getattr(mine, name)
            if theirs != ours:
                raise InvalidInput(f"{name} of the other problem must be {ours!r}, got {theirs!r}")
        if not (
            np.array_equal(problem.member_configuration, mine.member_configuration)
            and np.array_equal(problem.member_job, mine.member_job)
        ):
            raise InvalidInput("configurations of the other problem must be the same, got others")
        return replace(self, problem=problem)

    def by_job(self) -> pd.DataFrame:
        """A frame with one row per job: its share of each GPU type, and its effective rate."""
        import pandas as pd

        frame = pd.DataFrame(self.job_share, index=list(self.problem.job_ids), columns=list(self.problem.gpu_types))
        frame.index.name = "job"
        frame["rate_steps_per_s"] = self.rate_steps_per_s
        return frame

    def by_size(self) -> pd.DataFrame:
        """A frame with one row per job and size that it has a share of, alone: GPUs, plan, share of each type, rate."""
        import pandas as pd

        p = self.problem
        alone = np.flatnonzero(p.member_count[p.member_configuration] == 1)
        alone = alone[self.share[p.member_configuration[alone]].sum(axis=1) > 0]
        alone = alone[np.argsort(p.member_job[alone], kind="stable")]
        rows = p.member_configuration[alone]
        frame = pd.DataFrame(self.share[rows], columns=list(p.gpu_types))
        frame.index = pd.Index([p.job_ids[job] for job in p.member_job[alone].tolist()], name="job")
        frame.insert(0, "gpus", p.gpus_occupied[rows])
        frame.insert(1, "plan", [p.plan[row] if p.plan else "" for row in rows.tolist()])
        frame["rate_steps_per_s"] = (p.member_rate_steps_per_s[alone] * self.share[rows]).sum(axis=1)
        return frame

    def to_json(self, policy: str) -> dict[str, Any]:
        """The document that `gavel allocate -o json` prints (docs/cli.md)."""
        p = self.problem
        types, ids = p.gpu_types, p.job_ids
        shares = self._shares_of_jobs() | {
            ",".join(ids[j] for j in members): dict(zip(types, map(float, row), strict=True))
            for members, row in zip(p.configuration_members(), self.share, strict=True)
            if len(members) > 1 or not p.has_sizes
        }
        c = self.certificate
        values = {t: (None if np.isnan(x) else float(x)) for t, x in zip(types, self.shadow_prices, strict=True)}
        return {
            "policy": policy,
            "shares": shares,
            **self._more_json(),
            "rates_steps_per_s": dict(zip(ids, map(float, self.rate_steps_per_s), strict=True)),
            "marginal_values": values,
            "prices": values,  # the older key
            "certificate": {
                "objective": c.objective,
                "bound": c.bound,
                "gap": c.gap,
                "violation": c.violation,
                "path": c.path,
                "solve_s": c.solve_s,
                "warning": c.warning,
            },
        }

    def _shares_of_jobs(self) -> dict[str, dict[str, float]]:
        """Shares of each job alone, over all its sizes; empty if no job has several."""
        p = self.problem
        if not p.has_sizes:
            return {}
        alone = p.member_count[p.member_configuration] == 1
        total = np.zeros((p.job_count, len(p.gpu_types)))
        np.add.at(total, p.member_job[alone], self.share[p.member_configuration[alone]])
        return {
            job: dict(zip(p.gpu_types, row, strict=True)) for job, row in zip(p.job_ids, total.tolist(), strict=True)
        }

    def _more_json(self) -> dict[str, Any]:
        """Shares by size if some job has several; prices of all resources if there are several."""
        p = self.problem
        more: dict[str, Any] = {}
        if p.has_sizes:
            sizes: dict[str, list[dict[str, Any]]] = {job: [] for job in p.job_ids}
            for members, row, gpus, c in zip(
                p.configuration_members(),
                self.share.tolist(),
                p.gpus_occupied.tolist(),
                range(len(p.demand)),
                strict=True,
            ):
                if len(members) == 1:
                    shares = dict(zip(p.gpu_types, row, strict=True))
                    plan = p.plan[c] if p.plan else ""
                    sizes[p.job_ids[members[0]]].append({"gpus": gpus, "plan": plan, "shares": shares})
            more["sizes"] = sizes
        if len(p.resources) > 1:
            more["resource_prices"] = {
                gpu_type: {name: None if np.isnan(x) else x for name, x in zip(p.resources, row, strict=True)}
                for gpu_type, row in zip(p.gpu_types, self.resource_prices.tolist(), strict=True)
            }
        return more


def _checked_round(named: Ints, shape: tuple[int, int]) -> Ints:
    """Rows of configurations and columns of GPU types within `shape`. Raises InvalidInput."""
    found = np.asarray(named)
    if found.ndim != 2 or found.shape[1] != 2 or (len(found) and found.dtype.kind != "i"):
        raise InvalidInput(f"next_round must be pairs of configuration and GPU type (N, 2), got {named!r}")
    found = found.astype(np.int64)
    for name, column, count in zip(("configurations", "GPU types"), found.T, shape, strict=True):
        if len(wrong := column[(column < 0) | (column >= count)]):
            raise InvalidInput(f"{name} of next_round must be in [0, {count}), got {wrong[0]}")
    found.flags.writeable = False
    return found
