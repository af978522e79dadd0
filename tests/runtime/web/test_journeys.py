"""Journeys through the web page in Chromium, wide and narrow, by mouse and by keyboard."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.daemon.engine.forecasts import Times
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, reserved_port
from gavelpy.runtime.security.tokens import Role, TokenFile
from tests.house.project import ROOT
from tests.runtime.client.serving import Serving, make_description
from tests.runtime.web.browser import Tab, browser

pytestmark = pytest.mark.slow  # a browser takes seconds
WIDTHS = [1280, 400]
AXE = "axe-core@4.14.1"
PAGES = ("cluster", "jobs", "jobs/0", "teams", "prices", "what-if", "events")
COUNT = 'sh -c "for i in 1 2 3 4 5 6 7 8 9; do echo line $i of the log; sleep 0.2; done; sleep 600"'


@pytest.fixture(scope="module")
def axe() -> str:
    """The text of axe-core, from npm."""
    folder = ROOT / "out" / "axe"
    file = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():
        if not shutil.which("npm"):
            pytest.skip("no npm here, which installs axe-core")
        command = ["npm", "install", "--silent", "--ignore-scripts", "--no-save", "--prefix", str(folder), AXE]
        subprocess.run(command, check=True, capture_output=True)
    return file.read_text(encoding="utf-8")


def journey(directory: Path, walk: Callable[[Tab], Awaitable[None]]) -> None:
    """Runs a journey in a new browser; the page must raise no error and request nothing that its policy forbids."""

    async def run() -> None:
        async with browser(directory) as tab:
            await walk(tab)
            assert tab.complaints == []

    asyncio.run(run())


def address(served: Serving) -> str:
    return f"http://127.0.0.1:{served.service.web_port}/"


async def enter(tab: Tab, served: Serving, user: str, **view: Any) -> None:
    """Opens the page and gives the token of a user, by keyboard."""
    await tab.open(address(served), **view)
    await tab.until("document.activeElement.name === 'token'")
    await tab.type(served.tokens[user])
    await tab.key("Enter")
    await tab.see(f"{user} (")


@pytest.mark.parametrize("width", WIDTHS)
def test_token_is_asked_for_refused_and_accepted_and_is_in_no_address(
    served: Serving, tmp_path: Path, width: int
) -> None:
    async def walk(tab: Tab) -> None:
        await tab.open(address(served), width=width)
        await tab.until("document.activeElement.name === 'token'")
        await tab.type("gavel_wrong")
        await tab.key("Enter")
        await tab.see("the token is unknown or has expired")
        await tab.run(
            "document.querySelector('[name=token]').value = ''; document.querySelector('[name=token]').focus()"
        )
        await tab.type(served.tokens["alice"])
        await tab.key("Enter")
        await tab.see("alice (user)")
        await tab.see("v100: ")
        assert served.tokens["alice"] not in await tab.run("location.href + document.cookie")
        assert await tab.run("document.querySelectorAll('.node button, form[aria-label=Policy]').length") == 0
        await tab.click("#user button")
        await tab.see("The token is removed from this tab")
        assert await tab.run("sessionStorage.length") == 0

    journey(tmp_path, walk)


@pytest.mark.parametrize("width", WIDTHS)
def test_jobs_are_paged_sorted_filtered_and_opened_by_keyboard(served: Serving, tmp_path: Path, width: int) -> None:
    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice", width=width)
        await tab.run("document.querySelector('nav a[href=\"#/jobs\"]').focus()")
        await tab.key("Enter")
        await tab.see("Jobs 1 to 50 of 61")
        await tab.run("document.querySelector('[data-key=after]').focus()")
        await tab.key("Enter")
        await tab.see("Jobs 51 to 61 of 61")
        await tab.run("document.querySelector('[data-key=\"sort state\"]').focus()")
        await tab.key("Enter")
        await tab.until("document.querySelector('th[aria-sort=ascending] button')?.dataset.key === 'sort state'")
        await tab.until("document.activeElement.dataset.key === 'sort state'")  # the focus stays
        await tab.run("document.querySelector('[name=name]').focus()")
        await tab.type("big")
        await tab.key("Enter")
        await tab.see("1 living jobs")
        await tab.see("needs 64 GPUs of one type")
        await tab.run("document.querySelector('tbody a').focus()")
        await tab.key("Enter")
        await tab.see("Job 60: big")
        await tab.until("document.activeElement.tagName === 'H1'")
        await tab.see("should start")

    journey(tmp_path, walk)


@pytest.mark.parametrize("width", WIDTHS)
def test_job_is_held_released_and_cancelled_after_a_question(served: Serving, tmp_path: Path, width: int) -> None:
    with served.client("alice") as alice:
        job = alice.submit([make_description(gpus=3)]).jobs[0].job

    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice", width=width)
        await tab.run(f"location.hash = '#/jobs/{job}'")
        await tab.click("[data-key=hold]")
        await tab.key("Escape")  # leaves it as it is
        await tab.until("!document.querySelector('dialog[open]')")
        for what, seen in (("hold", "waiting, held by owner"), ("release", "waiting"), ("cancel", "cancelled")):
            await tab.click(f"[data-key={what}]")
            await tab.until("document.activeElement.id === 'no'")
            await tab.click("#yes")
            await tab.until(f"document.querySelector('.facts .state')?.textContent === '{seen}'")
            await tab.until(f"document.getElementById('announced').textContent.includes('Job {job} is')")
        assert await tab.run("document.querySelectorAll('[data-key=cancel]').length") == 0

    journey(tmp_path, walk)


@pytest.mark.parametrize("width", WIDTHS)
def test_admin_drains_a_node_and_changes_the_policy(served: Serving, tmp_path: Path, width: int) -> None:
    node = f"n{width}"
    leave = served.join_node(node, name=node)

    async def walk(tab: Tab) -> None:
        await enter(tab, served, "root", width=width)
        for what, seen in (("drain", "drain"), ("resume", "up")):
            await tab.click(f"[data-key='{what} {node}']")
            await tab.click("#yes")
            state = f"document.querySelector('[data-node={node}] .state').textContent"
            await tab.until(f"{state}.startsWith('{seen}')")
        await tab.run("document.querySelector('[name=policy]').value = 'isolated'")
        await tab.click("form[aria-label=Policy] button")
        await tab.click("#yes")
        await tab.until("document.querySelector('.facts dd').textContent === 'isolated'")

    journey(tmp_path, walk)
    leave()
    with served.client("root") as root:
        root.set_policy(policy="max_min_fairness")


@pytest.mark.parametrize("width", WIDTHS)
def test_what_if_with_more_gpus_is_compared(served: Serving, tmp_path: Path, width: int) -> None:
    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice", width=width)
        await tab.run("location.hash = '#/what-if'")
        await tab.until("document.querySelector('[name=v100]')")
        await tab.run("document.querySelector('[name=v100]').focus()")
        await tab.type("8")
        await tab.key("Enter")
        await tab.see("Jobs that change most")
        await tab.see("Mean time to finish")

    journey(tmp_path, walk)


def test_rows_of_jobs_show_the_last_forecast_with_its_interval_and_its_age(served: Serving, tmp_path: Path) -> None:
    scheduler = served.service.scheduler
    times = {
        0: Times(0.0, 3_000.0, 0.0, 0.0, 2_400.0, 6_000.0),
        1: Times(600.0, 3_000.0, 0.0, 0.0, 2_400.0, -1.0),
        2: Times(0.0, 3_000.0),
    }

    async def walk(tab: Tab) -> None:
        await enter(tab, served, "alice")
        scheduler.forecasts.show(times, scheduler.now_s())
        await tab.run("location.hash = '#/jobs?order=ascending'")
        await tab.see("in 50 min (40 min to 100 min)")
        await tab.see("in 50 min (40 min or more)")
        cells = await tab.run("[...document.querySelectorAll('tbody tr')].map((row) => row.children[7].textContent)")
        title = await tab.run("document.querySelector('tbody td span[title]').title")
        assert cells[2:4] == ["in 50 min", ""]
        assert title.startswith("80 %: 40 min to 100 min; forecast ")

    journey(tmp_path, walk)


def test_changes_appear_and_a_revoked_token_is_noticed(served: Serving, tmp_path: Path) -> None:
    file = TokenFile(Path(served.service.config.security.tokens))
    served.tokens["eve"] = file.create("eve", Role.ADMIN, now_s=time.time())

    async def walk(tab: Tab) -> None:
        await enter(tab, served, "eve")
        await tab.run("location.hash = '#/jobs?name=late'")
        await tab.see("No job matches")
        with served.client("alice") as alice:
            alice.submit([make_description("later")])
        await tab.see("later")
        file.revoke("eve")
        await tab.until("document.querySelector('#token-form')")
        await tab.see("the token is unknown or has expired")

    journey(tmp_path, walk)


@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_and_no_page_is_wider_than_the_window(
    served: Serving, axe: str, tmp_path: Path, width: int
) -> None:
    found: dict[tuple[str, bool], Any] = {}

    async def walk(tab: Tab) -> None:
        await enter(tab, served, "root", width=width)
        for dark in (False, True):
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            await tab.send("Emulation.setEmulatedMedia", features=[scheme])
            for page in PAGES:
                await tab.run(f"location.hash = '#/{page}'")
                await tab.until(
                    "document.querySelector('main h1') && !document.querySelector('#connection:not([hidden])')"
                )
                await asyncio.sleep(0.5)  # its answers
                await tab.run(f"{axe};0")
                passed, violations = await tab.run(
                    "axe.run().then(r => [r.passes.length, r.violations.map(v => [v.impact, v.id, v.nodes[0].html])])"
                )
                assert passed > 15, page
                assert await tab.run("document.documentElement.scrollWidth") <= width, page
                found[page, dark] = violations

    journey(tmp_path, walk)
    assert {where: violations for where, violations in found.items() if violations} == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_log_of_a_real_job_is_followed_live(tmp_path: Path, width: int) -> None:
    with reserved_port() as port:
        settings = {"scheduler": {"web_listen": f"127.0.0.1:{port}"}}
        nodes = (LocalNode("n1", "v100:1"),)
        with LocalCluster(tmp_path / "cluster", nodes, settings=settings) as cluster:
            cluster.start()
            with Client(ClientSettings(scheduler=cluster.address)) as client:
                client.submit([make_description("talks", command=COUNT)])

            async def walk(tab: Tab) -> None:
                await tab.open(f"http://127.0.0.1:{port}/#/jobs/0", width=width)
                await tab.until("document.querySelector('.facts .state')?.textContent === 'running'")
                await tab.run("document.querySelector('[aria-pressed]').focus()")
                await tab.key("Enter")
                await tab.see("line 9 of the log")
                await tab.until("document.querySelector('svg.chart')")
                if folder := os.environ.get("GAVELPY_SCREENSHOTS"):
                    await tab.screenshot(Path(folder) / f"web-{width}.png")

            journey(tmp_path, walk)


def test_page_connects_again_when_the_scheduler_is_back(tmp_path: Path) -> None:
    with reserved_port() as port:
        settings = {"scheduler": {"web_listen": f"127.0.0.1:{port}"}}
        with LocalCluster(tmp_path / "cluster", (), settings=settings) as cluster:
            cluster.start()
            with Client(ClientSettings(scheduler=cluster.address)) as client:
                client.submit([make_description("stays")])

            async def walk(tab: Tab) -> None:
                await tab.open(f"http://127.0.0.1:{port}/#/jobs")
                await tab.see("stays")
                cluster.processes[SCHEDULER].kill()
                cluster.processes[SCHEDULER].wait()
                await tab.see("Trying again")
                await asyncio.to_thread(cluster.start_scheduler)
                await tab.until("document.getElementById('connection').hidden")
                with Client(ClientSettings(scheduler=cluster.address)) as client:
                    client.submit([make_description("comes-later")])
                await tab.see("comes-later")

            journey(tmp_path, walk)
