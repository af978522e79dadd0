"""A scheduler's configuration file as the input of a simulation: `--scheduler-config FILE`.

The file is checked as the scheduler checks it. What a simulation has no use for, such as addresses, certificates and
the journal's database, is accepted and listed. A file for simulations only may leave out `[scheduler]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavelpy.model.toml_text import parsed_toml
from gavelpy.policies.base import PolicyRun

if TYPE_CHECKING:
    from gavelpy.mechanism.settings import MechanismSettings
    from gavelpy.runtime.daemon.config import Config
    from gavelpy.simulator.settings import SimulationSettings

_WHOLE = frozenset({"policy", "mechanism", "prices", "priorities", "teams", "gpu_types"})
# Fields of [mechanism] for real nodes and programs: simulated jobs save checkpoints and end with their last steps, each
# end is reported at once, and allocations take no virtual time.
_OF_REAL_JOBS = frozenset({"keep_unsaved", "late_ends", "finish_grace_s", "solve_patience_s"})


@dataclass(frozen=True)
class SchedulerFile:
    """A scheduler's configuration, and the document that it was read from."""

    config: Config
    document: Mapping[str, Any]  # Any: TOML

    @property
    def not_simulated(self) -> list[str]:
        """Fields that the file sets and a simulation does not use, `section.field` each."""
        used = {("throughputs", "file"), ("throughputs", "profile_gpu_s")}
        return [
            f"{section}.{name}"
            for section, values in self.document.items()
            for name in values
            if (section not in _WHOLE and (section, name) not in used)
            or (section == "mechanism" and name in _OF_REAL_JOBS)
        ]

    @property
    def record(self) -> dict[str, Any]:  # Any: JSON
        """The file and what of it is not simulated."""
        return {"file": self.config.path, "not_simulated": self.not_simulated}

    def run(self, *, blind: bool) -> PolicyRun:
        """The policy of the file."""
        policy = self.config.policy
        text = ":".join([policy.name, *(f"{name}={value}" for name, value in policy.parameters.items())])
        return PolicyRun(text, blind or policy.blind)

    def settings(self, base: SimulationSettings) -> SimulationSettings:
        """These settings with the file's mechanism and what a blind policy sees."""
        policy = self.config.policy
        return replace(
            base,
            mechanism=self._mechanism(base.mechanism),
            mechanism_given=self.config.mechanism_given,
            blind_view={policy.name.partition(":")[0]: policy.blind_view},
        )

    def _mechanism(self, default: MechanismSettings) -> MechanismSettings:
        from gavelpy.mechanism.settings import SOLVE_AT_LEAST_ROUNDS

        given, found = self.config.mechanism_given, self.config.mechanism
        virtual: dict[str, Any] = {name: getattr(default, name) for name in _OF_REAL_JOBS}
        if "settled_rounds_max" not in given:  # virtual leases need no renewal
            virtual["settled_rounds_max"] = default.settled_rounds_max
        if "solve_at_least_every_s" not in given:
            virtual["solve_at_least_every_s"] = found.round_s * SOLVE_AT_LEAST_ROUNDS
        return replace(found, **virtual)


def read_scheduler_file(path: Path) -> SchedulerFile:
    """The configuration in a file; raises InvalidInput with file, line, field, value and what is allowed."""
    from gavelpy.runtime.daemon.config import read_config

    return SchedulerFile(read_config(path, will_run=False), parsed_toml(path.read_text(encoding="utf-8"), str(path)))
