"""A client of the web page's JSON: plain HTTP, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from tests.runtime.client.serving import PATIENCE_S, Serving


@dataclass(frozen=True)
class Answered:
    """A status, headers and a body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(served: Serving, path: str, user: str = "", *, method: str = "", body: Any = None, **headers: str) -> Answered:
    """One request; with a body it is a POST. Underscores of `headers` become hyphens."""
    connection = HTTPConnection("127.0.0.1", served.service.web_port, timeout=PATIENCE_S)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if user:
        given["Authorization"] = f"Bearer {served.tokens[user]}"
    if body is not None:
        given.setdefault("Content-Type", "application/json")
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, content, given)
        response = connection.getresponse()
        return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def events(served: Serving, path: str, user: str = "") -> Iterator[tuple[str, Any]]:
    """Server-sent events of a path, until the server ends them or the caller stops."""
    connection = HTTPConnection("127.0.0.1", served.service.web_port, timeout=PATIENCE_S)
    connection.request("GET", path, headers={"Authorization": f"Bearer {served.tokens[user]}"} if user else {})
    try:
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        name = ""
        while line := response.readline().decode().rstrip("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))
                response.readline()  # the empty line after an event
    finally:
        connection.close()
