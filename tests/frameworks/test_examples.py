"""The examples of frameworks, submitted to a cluster of two nodes and moved between them, take each step once."""

from __future__ import annotations

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from tests.frameworks.jobs import SETTINGS, STEPS, assert_complete, losses, move, start_example
from tests.runtime.live.stage import StartStage

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("library", "script", "gpus"),
    [
        ("lightning", "lightning_training.py", 1),
        ("transformers", "transformers_training.py", 1),
        ("accelerate", "accelerate_training.py", 1),
        ("accelerate", "accelerate_training.py", 2),
        ("transformers", "transformers_training.py", 2),
    ],
)
def test_moved_example_takes_the_steps_of_one_that_is_not(
    start: StartStage,
    library: str,
    script: str,
    gpus: int,
) -> None:
    pytest.importorskip(library)
    stage = start(LocalNode("n0", f"v100:{2 * gpus}"), LocalNode("n1", f"v100:{gpus}"), settings=SETTINGS)
    moved = start_example(stage, f"{script} {0.2 if gpus == 1 else 0.8}", gpus)  # half as many steps

    move(stage, moved)
    stage.wait_over(moved)

    assert_complete(stage, moved, STEPS // gpus)
    whole = start_example(stage, f"{script} 0.0", gpus)
    stage.wait_over(whole)
    assert losses(stage, moved) == losses(stage, whole)
