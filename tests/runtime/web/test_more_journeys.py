"""More journeys through the web page: watching, explaining, tokens that end, addresses that are wrong, a failover."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalNode, reserved_port
from gavelpy.runtime.security.tokens import Role, TokenFile
from tests.runtime.client.serving import Serving, make_description
from tests.runtime.live.several import several
from tests.runtime.web.browser import Tab
from tests.runtime.web.test_journeys import WIDTHS, enter, journey

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("width", WIDTHS)]  # a browser takes seconds


async def go(tab: Tab, place: str) -> None:
    """To a place of the page, by its address."""
    await tab.run(f"location.hash = '#/{place}'")


def test_submission_is_seen_by_who_watches(served: Serving, tmp_path: Path, width: int) -> None:
    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice", width=width)
        await go(tab, f"jobs?name=fresh{width}")
        await tab.see("No job matches")
        with served.client("alice") as alice:
            jobs = alice.submit([make_description(f"fresh{width}-{k}") for k in range(3)]).jobs
        await tab.see("3 living jobs")
        with served.client("alice") as alice:
            alice.cancel([str(job.job) for job in jobs])
        await tab.see("No job matches")
        assert "waiting" in await tab.run("document.getElementById('numbers').textContent")

    journey(tmp_path, walk)


def test_waiting_job_is_explained_with_its_forecast(served: Serving, tmp_path: Path, width: int) -> None:
    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice", width=width)
        await go(tab, "jobs/big")
        await tab.see("needs 64 GPUs of one type")
        await tab.see("submitted")
        await tab.see("should start")
        await tab.see("not known")
        await go(tab, "jobs/train-1")
        await tab.see("Job 1: train-1")
        await tab.see("should finish")

    journey(tmp_path, walk)


def test_token_that_expires_is_asked_for_again_at_the_same_place(served: Serving, tmp_path: Path, width: int) -> None:
    file, name = TokenFile(Path(served.service.config.security.tokens)), f"brief{width}"
    served.tokens[name] = file.create(name, Role.ADMIN, now_s=time.time(), lifetime_s=8.0)

    async def walk(tab: Tab) -> None:
        await enter(tab, served, name, width=width)
        await go(tab, "jobs?name=train-1")
        await tab.see("train-1")
        await tab.until("document.querySelector('#token-form')")
        await tab.see("the token is unknown or has expired")
        await tab.until("document.activeElement.name === 'token'")
        await tab.type(served.tokens["alice"])
        await tab.key("Enter")
        await tab.see("alice (user)")
        await tab.see("train-1")
        assert await tab.run("location.hash") == "#/jobs?name=train-1"

    journey(tmp_path, walk)


def test_job_of_another_user_is_not_found_and_the_way_back_works(served: Serving, tmp_path: Path, width: int) -> None:
    with served.client("root") as root:
        other = root.submit([make_description(f"secret{width}")]).jobs[0].job

    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice", width=width)
        await go(tab, "jobs?name=big")
        await tab.see("1 living jobs")
        await go(tab, f"jobs/{other}")
        await tab.see("Not found")
        assert f"secret{width}" not in await tab.text()
        await tab.run("history.back()")
        await tab.see("1 living jobs")
        await go(tab, f"jobs/root%2Fsecret{width}")
        await tab.see("Not found")

    journey(tmp_path, walk)


def test_admin_sees_jobs_of_all_users(served: Serving, tmp_path: Path, width: int) -> None:
    async def walk(tab: Tab) -> None:
        await enter(tab, served, "root", width=width)
        await go(tab, "jobs?name=train-5")
        await tab.see("train-5")
        await go(tab, "jobs/alice%2Ftrain-5")
        await tab.see("Job 5: train-5")
        await tab.see("alice")

    journey(tmp_path, walk)


def test_teams_prices_and_events_are_reached_by_keyboard(served: Serving, tmp_path: Path, width: int) -> None:
    async def walk(tab: Tab) -> None:
        await enter(tab, served, "root", width=width)
        for place, seen in (("teams", "Usage of the last 7 days"), ("prices", "one more GPU"), ("events", "submitted")):
            await tab.run(f"document.querySelector('nav a[href=\"#/{place}\"]').focus()")
            await tab.key("Enter")
            await tab.see(seen)
            await tab.until("document.activeElement.tagName === 'H1'")
            current = await tab.run("document.querySelector('nav a[aria-current=page]').getAttribute('href')")
            assert current == f"#/{place}"
        await tab.run("document.querySelector('[data-key=older]')?.focus()")
        assert await tab.run("document.documentElement.scrollWidth") <= width

    journey(tmp_path, walk)


@pytest.mark.parametrize("place", ["nonsense", "jobs/%E0%A4%A", "jobs?limit=x&sort=colour&offset=-5"])
def test_address_that_is_wrong_leaves_a_page_that_works(
    served: Serving, tmp_path: Path, width: int, place: str
) -> None:
    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice", width=width)
        await go(tab, place)
        await tab.until("document.querySelector('main h1')")
        await asyncio.sleep(0.5)  # its answers
        await go(tab, "jobs?name=big")
        await tab.see("1 living jobs")
        await tab.until("document.getElementById('connection').hidden")

    journey(tmp_path, walk)


def test_page_of_a_standby_names_the_leader_and_works_when_it_takes_over(
    postgres_url: str,
    tmp_path: Path,
    width: int,
) -> None:
    with reserved_port() as port_a, reserved_port() as port_b:
        own = {name: {"web_listen": f"127.0.0.1:{port}"} for name, port in (("a", port_a), ("b", port_b))}
        node = LocalNode("n1", "v100:1")
        with several(tmp_path / "cluster", postgres_url, node, own=own) as them, them.client() as client:
            client.submit([make_description("watched", command="sleep 600")])

            async def walk(tab: Tab) -> None:
                await tab.open(f"http://127.0.0.1:{port_b}/#/jobs", width=width)
                await tab.see(f"A standby; {them.address('a')} leads. Trying again.")
                them.kill("a")
                await tab.see("watched")
                await tab.until("document.getElementById('connection').hidden")
                await asyncio.to_thread(client.submit, [make_description("after")])
                await tab.see("after")

            journey(tmp_path, walk)
