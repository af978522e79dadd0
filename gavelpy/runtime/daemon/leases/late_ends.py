"""Lost leases that are still open: what nodes report of them later is collected until all parts of a lease are known.

Which leases are open is the core's state (`gavelpy.mechanism.late_ends`), so a restart keeps them. A node keeps its
record of an ended lease until the scheduler orders it to forget the lease, which happens after the lease is closed. So
the records stay on the nodes, and a restarted scheduler receives them again.

The end of a lease with parts on several nodes is known when every node has reported what it recorded. A part that was
only inferred to be lost is unknown.
"""

from __future__ import annotations

from gavelpy.mechanism import late_ends
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Outcome
from gavelpy.model.ids import NodeId
from gavelpy.runtime.daemon.leases.lease import Lease, PartReport, Phase
from gavelpy.runtime.daemon.leases.lease_facts import lease_of, outcome_of, saved_of


class LateEnds:
    """The open leases of the core with what their nodes have recorded of them."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core  # read only
        self._open: dict[int, Lease] = {}
        self._known: list[Lease] = []  # their end is known and not in the journal yet

    @property
    def has_facts(self) -> bool:
        """Whether `drain` would return any lease."""
        return bool(self._known)

    def rebuild(self) -> None:
        """Adds the open leases of a restarted core."""
        for job, lost in self._core.jobs.lost_leases.items():
            for number, gpus in lost.items():
                self._open[number] = lease_of(self._core, number, job, gpus, 0.0, 0)

    def ended(self, lease: Lease) -> None:
        """The end of a lease is in the journal; keeps the lease for later reports if the core has it open."""
        if self._is_open(lease):
            self._open[lease.lease] = lease
            self._look(lease)

    def heard(self, node: NodeId, report: PartReport) -> bool:
        """Processes a node's report of an ended lease; returns whether the node must keep its record."""
        lease = self._open.get(report.lease)
        if lease is None or not self._is_open(lease):
            self._open.pop(report.lease, None)
            return False
        part = lease.parts.get(node)
        if part is None or lease.job != report.job or report.phase is not Phase.ENDED:
            return False
        if part.end is None or part.is_inferred:
            part.heard = part.end = report
            part.is_inferred = False
            self._look(lease)
        return report.lease in self._open

    def drain(self) -> list[Lease]:
        """Leases with an end that has become known since the last call."""
        known, self._known = self._known, []
        return known

    def sweep(self) -> None:
        """Removes leases that the core has closed."""
        self._open = {number: lease for number, lease in self._open.items() if self._is_open(lease)}

    def _look(self, lease: Lease) -> None:
        if any(part.end is None or part.is_inferred for part in lease.parts.values()):
            return
        del self._open[lease.lease]
        if outcome_of(lease) is not Outcome.LOST:
            lease.steps_saved = max(lease.steps_saved, saved_of(lease))
            self._known.append(lease)

    def _is_open(self, lease: Lease) -> bool:
        return late_ends.is_open(self._core.jobs, lease.job, lease.lease)
