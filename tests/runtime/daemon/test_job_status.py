"""The status of many jobs at once is that of each alone."""

import asyncio
from pathlib import Path

import pytest

from gavelpy.mechanism.identities import JobGone
from gavelpy.runtime.daemon.queries.job_status import PublicState
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from tests.runtime.daemon.harness import make_config, make_spec, running


def test_jobs_together_have_the_status_that_each_has_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            jobs = await cluster.submit(
                make_spec("plain"), make_spec("held", hold=True), make_spec("later", begin_at_s=4e9),
                make_spec("gang", gpus=64), make_spec("over"), make_spec("class", weight=3.0),
            )  # fmt: skip
            await cluster.scheduler.cancel([4])
            queries, now_s = JobQueries(cluster.scheduler), cluster.scheduler.now_s()
            monkeypatch.setattr(cluster.scheduler, "now_s", lambda: now_s)

            together = queries.statuses(jobs[::-1])

            assert [status.job for status in together] == jobs[::-1]
            assert together == [queries.statuses([job])[0] for job in jobs[::-1]]
            assert together[1].state is PublicState.CANCELLED
            assert [status.held_by for status in together] == ["", "", "", "", "owner", ""]
            assert len({status.reason_kind for status in together}) >= 4
            with pytest.raises(JobGone, match="job 6 has left"):
                queries.statuses([0, 6])

    asyncio.run(asyncio.wait_for(scenario(), 60.0))
