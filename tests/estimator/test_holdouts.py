"""The hold-outs of the benchmark: which rates they hide, and their output lines."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import holdouts
from benchmarks.holdout_tables import synthetic
from gavelpy.model.arrays import Bools

TABLE = synthetic("families", 0)


def left(name: str) -> Bools:
    hidden = holdouts.HOLD_OUTS[name](TABLE, np.random.default_rng(0))
    return np.asarray(~hidden & (TABLE.rate_steps_per_s > 0))


def test_hold_outs_leave_what_their_names_say() -> None:
    assert sorted(left("half full").sum(axis=1).tolist()) == [1] * 10 + [8] * 10
    assert sorted(left("new jobs").sum(axis=1).tolist()) == [1] * 3 + [8] * 17
    assert sorted(left("new family").sum(axis=1).tolist()) == [1] * 4 + [8] * 16
    assert sorted(left("new type").sum(axis=0).tolist()) == [3] + [20] * 7
    assert 0.6 < left("cells 30%").mean() < 0.8


def test_a_line_compares_the_estimator_with_both_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    holdouts.run(["--seeds", "1", "--tables", "rank 1", "--holdouts", "new jobs"])

    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("  rank 1: new jobs")
    assert len(line.split()) == 4 + 6 + 2
