"""Debian's Chromium without a window, driven over its debugging protocol: no driver and no other dependency."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PATIENCE_S = 30.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}


def chromium() -> str:
    """Its path. Without it a test is skipped, and fails with CI=true."""
    found = shutil.which("chromium") or ""
    if not found and os.environ.get("CI") == "true":
        pytest.fail("no chromium here: apt-get install chromium")
    if not found:
        pytest.skip("no chromium here")
    return found


class Tab:
    """One page. `complaints` are its uncaught errors and what its content security policy refused."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Receives answers and events until the socket closes."""
        async for message in self._socket:
            values = json.loads(message.data)
            if (answer := self._answers.pop(values.get("id", 0), None)) is not None:
                answer.set_result(values)
            elif values.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(values["params"]["exceptionDetails"].get("exception", {}).get("description", ""))
            elif values.get("method") == "Log.entryAdded" and values["params"]["entry"]["source"] == "security":
                self.complaints.append(values["params"]["entry"]["text"])

    async def send(self, method: str, **parameters: Any) -> Any:
        """The result of a method of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        found = await asyncio.wait_for(answer, PATIENCE_S)
        assert "error" not in found, found
        return found["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        found = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Waits until an expression is true."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not await self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline_s, f"in vain: {script}; {await self.text()}; {self.complaints}"
            await asyncio.sleep(0.05)

    async def see(self, text: str) -> None:
        """Waits until the page shows a text."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def text(self) -> str:
        return str(await self.run("document.body.innerText"))

    async def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Opens a page at a width."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def click(self, selector: str) -> None:
        """Clicks an element where it is."""
        await self.until(f"document.querySelector({json.dumps(selector)})")
        box = await self.run(
            f"(() => {{const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    async def type(self, text: str) -> None:
        """Types into the element that has the focus."""
        await self.send("Input.insertText", text=text)

    async def key(self, name: str) -> None:
        """Presses a key."""
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            code = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
            await self.send("Input.dispatchKeyEvent", type=kind, **code, **(text if kind == "keyDown" else {}))

    async def screenshot(self, path: Path) -> None:
        found = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Tab]:
    """A tab of a new Chromium with an empty profile."""
    process = await asyncio.create_subprocess_exec(
        chromium(), *_FLAGS, f"--user-data-dir={directory}/profile", "about:blank",
        stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, env={**os.environ, "HOME": str(directory)},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while b"DevTools listening on" not in (line := await process.stderr.readline()):
                assert line, "chromium has ended"
        address = line.decode().split()[-1].removeprefix("ws://").partition("/")[0]
        draining = asyncio.create_task(_drain(process.stderr))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json") as answer:
                tabs = await answer.json()
            url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                tab = Tab(socket)
                listening = asyncio.create_task(tab.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await tab.send(f"{domain}.enable")
                try:
                    yield tab
                finally:
                    listening.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        draining.cancel()


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass
