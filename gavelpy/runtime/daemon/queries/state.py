"""What queries read: the state of a scheduler that leads, or of a standby that follows it (`daemon.follower`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.runtime.daemon.config import Config
    from gavelpy.runtime.daemon.engine.forecasts import Forecasts
    from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
    from gavelpy.runtime.daemon.job_history import JobHistory
    from gavelpy.runtime.daemon.leases.lease import Lease
    from gavelpy.runtime.daemon.nodes.registry import NodeRegistry
    from gavelpy.runtime.daemon.queries.past import PastQueries
    from gavelpy.runtime.storage import StorageWorkers


class Prices(Protocol):
    """Marginal values of the allocation in force; empty where they are not known."""

    shadow_prices: dict[str, float]
    resource_prices: dict[tuple[str, str], float]


class LeasesInForce(Protocol):
    """What nodes have reported of leases that the journal does not have yet."""

    leases: dict[int, Lease]


class OwnersNotes(Protocol):
    """Notes of the estimator for owners of jobs."""

    notes: dict[int, tuple[str, ...]]


class SchedulerState(Protocol):
    """Read it between two awaits; nothing of it may be changed."""

    config: Config
    core: SchedulerCore
    history: JobHistory
    cluster_id: str
    incarnation: int
    nodes: NodeRegistry  # of agents that are connected here
    past: PastQueries
    storage: StorageWorkers
    began_s: float
    forecasts: Forecasts

    @property
    def name(self) -> str:
        """Name of the cluster."""

    @property
    def choice(self) -> PolicyChoice:
        """The policy in force."""

    @property
    def version(self) -> int:
        """Grows with the events."""

    @property
    def snapshot_directory(self) -> str:
        """Where clients put archives of code; empty = there is no shared directory."""

    @property
    def engine(self) -> Prices:
        """Marginal values."""

    @property
    def leases(self) -> LeasesInForce:
        """Reports of nodes."""

    @property
    def measuring(self) -> OwnersNotes:
        """Notes."""

    @property
    def follows(self) -> str:
        """Address of the leader that a standby follows; empty = this is the leader."""

    def now_s(self) -> float:
        """The scheduler's time."""

    def wall_s(self, now_s: float) -> float:
        """Unix time of a time of the scheduler's clock."""

    def job_named(self, owner: str, name: str) -> int:
        """Serial of the owner's newest job of this name; -1 = none."""

    async def wait_changed(self, version: int, timeout_s: float) -> int:
        """Waits until the version changes or the timeout; returns the version."""
