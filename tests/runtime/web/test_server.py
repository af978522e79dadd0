"""The port of the web page: TLS with the certificates of gRPC, and the answers of a standby."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from gavelpy.errors import InvalidInput
from gavelpy.runtime.daemon.web.server import WebServer, standby_routes
from gavelpy.runtime.security.exposure import SecuritySettings, tls_context
from tests.runtime.daemon.harness import make_config


async def got(server: WebServer, path: str, scheme: str = "http", tls: ssl.SSLContext | bool = True) -> tuple[int, str]:
    """Status and body of one answer."""
    port = await server.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{scheme}://localhost:{port}{path}", ssl=tls) as found,
        ):
            return found.status, await found.text()
    finally:
        await server.stop()


def test_page_has_the_certificate_of_the_scheduler(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    security = {"tls_certificate": str(certificate), "tls_key": str(key)}
    config = make_config(tmp_path, scheduler={"web_listen": "127.0.0.1:0"}, security=security)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    status, body = asyncio.run(got(WebServer(config, []), "/", "https", trusting))

    assert (status, body.startswith("<!doctype html>")) == (200, True)


def test_certificate_and_key_of_different_pairs_are_refused(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    authority.issue_cert("localhost").cert_chain_pems[0].write_to_path(str(certificate))
    authority.issue_cert("localhost").private_key_pem.write_to_path(str(key))

    with pytest.raises(InvalidInput, match="must belong together"):
        tls_context(SecuritySettings(tls_certificate=str(certificate), tls_key=str(key)))


@pytest.mark.parametrize(("leader", "message"), [("b:7077", "a standby; b:7077 leads"), ("", "no scheduler leads")])
def test_standby_names_the_leader(tmp_path: Path, leader: str, message: str) -> None:
    config = make_config(tmp_path, scheduler={"web_listen": "127.0.0.1:0"})

    status, body = asyncio.run(got(WebServer(config, standby_routes(lambda: leader)), "/api/v1/jobs"))

    assert (status, message in body) == (503, True)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_are_refused_and_write_nothing_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    server = WebServer(make_config(tmp_path, scheduler={"web_listen": "127.0.0.1:0"}), [])

    async def answered() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        writer.write(sent)
        line = await reader.readline()
        writer.close()
        await server.stop()
        return line

    assert b" 400 " in asyncio.run(answered())
    assert caplog.records == []


def test_exception_of_a_handler_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fails(request: web.Request) -> web.Response:
        raise RuntimeError("broken on purpose")

    server = WebServer(make_config(tmp_path, scheduler={"web_listen": "127.0.0.1:0"}), [web.get("/fails", fails)])

    status, _ = asyncio.run(got(server, "/fails"))

    assert status == 500
    assert "broken on purpose" in caplog.text
