"""One rank of a gang: trains without interruption, then with a stop, and prints both lists of losses as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import Launch, LeaseTerms, clock_s, newest_checkpoint
from gavelpy.torch import process_group
from tests.runtime.iterator.training import train


def main(folder: Path) -> None:
    """Creates the lease directory of each run, as an agent would."""
    with process_group() as ranks:
        whole, _ = train(ranks)
        hold(folder / f"1-{ranks.rank}", folder / "first", steps_max=8.0)
        before, stopped = train(ranks, "all", num_workers=1)
        assert not stopped.finished
        resume = newest_checkpoint(folder / "first")
        hold(folder / f"2-{ranks.rank}", folder / "second")
        os.environ["GAVEL_RESUME_DIR"] = str(resume)
        after, finished = train(ranks, "all")
        assert finished.finished
    sys.stdout.write(json.dumps([whole, [*before, *after], stopped.steps_done]))


def hold(directory: Path, checkpoints: Path, steps_max: float = 0.0) -> None:
    """Creates a lease directory and enters the lease."""
    directory.mkdir()
    lease_files.write_launch(directory, Launch(1, 1, ("x",), "/", {}, ({},), grace_s=5.0))
    lease_files.write_lease(directory, LeaseTerms(1, clock_s() + 60.0, steps_max=steps_max))
    os.environ |= {"GAVEL_LEASE_DIR": str(directory), "GAVEL_CHECKPOINT_DIR": str(checkpoints), "LOCAL_RANK": "0"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
