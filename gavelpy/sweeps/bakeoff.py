"""A bake-off: many policies on one trace and cluster, each in a process of its own and for a limited time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gavelpy.errors import InvalidInput
from gavelpy.policies.base import PolicyRun, policy_from, registered
from gavelpy.policies.refusals import refuse_needs, refuse_sizes
from gavelpy.report.tradeoffs import AGAINST, ComparedPolicy, X
from gavelpy.sweeps.bounded import LIMIT, run_bounded
from gavelpy.sweeps.cells import STOPPED, Cell, Scalar, cell_options
from gavelpy.sweeps.grid import Grid
from gavelpy.sweeps.run import Tick, has_failed, sweep_with
from gavelpy.sweeps.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from gavelpy.cli.experiment import Experiment

TABLE: Final = "results.csv"  # in the directory, next to the store's results.parquet


@dataclass(frozen=True, eq=False)
class BakeOff:
    """The results: a row of `frame` for each policy that ran, and why others did not."""

    title: str  # the trace, its jobs and the cluster
    frame: pd.DataFrame
    refused: Mapping[str, str]  # reason by policy
    directory: Path

    @property
    def finished(self) -> list[ComparedPolicy]:
        """The policies that served the trace to its end, the least average JCT first."""
        rows = self.frame[self.frame["error"] == ""]
        if rows.empty:  # then there are no columns of metrics
            return []
        rows = rows.sort_values(["jobs_unfinished", X, "policy"], kind="stable")
        return [_compared(row) for row in rows.to_dict("records")]

    @property
    def stopped(self) -> dict[str, str]:
        """How far policies were that reached the limit, by policy."""
        rows = self.frame[self.frame["error_type"] == STOPPED]
        return dict(zip(rows["policy"], rows["error"], strict=True))

    @property
    def failed(self) -> dict[str, str]:
        """Errors of other policies, by policy."""
        rows = self.frame[(self.frame["error"] != "") & (self.frame["error_type"] != STOPPED)]
        return dict(zip(rows["policy"], rows["error"], strict=True))


def _compared(row: Mapping[Hashable, Any]) -> ComparedPolicy:  # Any: values of columns
    """A policy from its row; without the metrics of jobs that finished, if some never did."""
    values = {str(name): float(value) for name, value in row.items() if isinstance(value, int | float)}
    if values.get("jobs_unfinished", 0.0) > 0:
        values |= dict.fromkeys((X, *AGAINST), math.nan)
    return ComparedPolicy(str(row["policy"]), values)


def bake_off(
    options: Mapping[str, Scalar],
    directory: Path,
    *,
    policies: Sequence[str] = (),
    limit_s: float = 60.0,
    jobs: int = 0,
    retry_failed: bool = False,
    tick: Tick | None = None,
) -> BakeOff:
    """Simulates each policy (default: all that are registered) with these options of `gavel simulate`.

    A policy that cannot serve the trace's jobs does not run. One that is not at its end after `limit_s` seconds is
    stopped; it runs again only with a higher limit. Results are in `directory`, and what is there does not run again.
    """
    base = {**options, "fairness": True}
    experiment = Cell.of({**base, "policy": "fifo"}).experiment()
    names = policies or tuple(registered())
    refused = {name: reason for name in names if (reason := refusal_of(name, experiment))}
    cells = [Cell.of({**base, "policy": _checked(name)}) for name in names if name not in refused]
    if not cells:
        raise InvalidInput(f"--policy must name a policy that can serve these jobs: {next(iter(refused.values()))}")
    store = Store(directory)

    def again(found: Mapping[str, Any]) -> bool:
        if found.get("error_type") == STOPPED:
            return retry_failed or float(found.get(LIMIT, 0.0)) < limit_s
        return retry_failed and has_failed(found)

    grid = Grid(tuple({cell.key: cell for cell in cells}.values()), ("policy",))
    frame = sweep_with(lambda left: run_bounded(left, limit_s, jobs=jobs), grid, store, again=again, tick=tick)
    frame.to_csv(directory / TABLE, index=False, lineterminator="\n")
    return BakeOff(experiment.title, frame, refused, directory)


def _checked(name: str) -> Scalar:
    """The policy as an option of a cell: a file with its absolute path."""
    return cell_options()["policy"].value(name, Path.cwd())


def refusal_of(name: str, experiment: Experiment) -> str:
    """Why the policy cannot serve the jobs of the experiment; empty if it can."""
    policy, jobs = policy_from(PolicyRun.parse(name).policy), experiment.trace.jobs
    try:
        refuse_needs(policy, jobs)
        refuse_sizes(policy, jobs)
    except InvalidInput as error:
        return str(error)
    return ""
