"""The command gavel-node: configuration, state directory, start and stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import trustme

from gavelpy.runtime.agent.main import main
from gavelpy.runtime.service_manager import sd_notify
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, serving, until
from tests.runtime.slow_link import slow_link


def test_check_config_prints_what_the_node_would_offer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'[node]\nnode_id = "n7"\ngpus = "k80:2"\nstate_directory = "{tmp_path}/state"\n')

    assert main(["check-config", str(file)]) == 0

    assert "node n7: 2 GPUs of type k80, scheduler 127.0.0.1:7077" in capsys.readouterr().out


def test_flags_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'[node]\nnode_id = "file"\ngpus = "k80:2"\nstate_directory = "{tmp_path}/state"\n')
    monkeypatch.setenv("GAVEL_NODE_ID", "environment")
    monkeypatch.setenv("GAVEL_NODE_GPUS", "p100:1")

    assert main(["--gpus", "v100:4", "--config", str(file), "check-config"]) == 0

    assert "node environment: 4 GPUs of type v100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('node_id = "n"\ngpus = 3', ":3: gpus must be a string, got 3"),
        ('\ngpu = "v100:1"', ":3: gpu is unknown; allowed are state_directory, scheduler, node_id"),
        ('gpus = "V100"', ":2: gpus must look like v100:4"),
        ('gpus = "v100:1"\nspeed_factor = 1.5', ":3: speed_factor must be in [0.01, 1], got 1.5"),
        ('scheduler = "cluster.example:7077"', "needs tls_ca and token_file"),
        ('gpus = "v100:1', ":2: text must be TOML"),
        ('gpus = "v100:1"\n[node.types.v100]\ncpus = "x"', ":4: types.v100.cpus must be a number, got 'x'"),
        (
            'gpus = "v100:1"\n[node.types.v100]\nrack = 1',
            ":4: types.v100.rack is unknown; allowed are devices, vendor, cpus",
        ),
        ('image_mounts = ["a", 3]', ":2: image_mounts[1] must be a string, got ['a', 3]"),
    ],
)
def test_complaint_about_the_file_names_line_field_and_value(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f"[node]\n{text}\n")

    assert main(["--state-dir", str(tmp_path / "state"), "check-config", str(file)]) == 2

    assert message in capsys.readouterr().err


def test_node_without_gpus_names_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state-dir", str(tmp_path / "state"), "--gpus", "", "check-config"]) == 2

    assert "gpus must be given, for example --gpus v100:4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STATE_DIRECTORY": "/srv/node", "XDG_STATE_HOME": "/x"}, "/srv/node"),
        ({"XDG_STATE_HOME": "/x"}, "/x/gavel-node"),
        ({}, "/var/lib/gavel-node" if os.geteuid() == 0 else str(Path("~/.local/state/gavel-node").expanduser())),
    ],
)
def test_state_directory_has_a_default(
    environment: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert main(["--gpus", "v100:1", "check-config"]) == 0

    assert f"state in {expected}," in capsys.readouterr().out


def test_node_on_a_full_disk_names_the_file(tmp_path: Path) -> None:
    command = f"ulimit -f 0; exec {sys.executable} -m gavelpy.runtime.agent.main --gpus v100:1 --state-dir {tmp_path}"

    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60.0, check=False)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: [Errno 27] File too large: '{tmp_path}/node.json'"


def test_second_agent_of_a_state_directory_is_refused(peer: Peer, make_node: Callable[..., Node]) -> None:
    first = make_node()
    until(lambda: peer.nodes)
    second = Node(first.state, "127.0.0.1:1")
    second.start()

    assert second.process is not None
    assert second.process.wait(60) == 2

    assert "in use by another gavel-node" in second.log.read_text()


def test_state_directory_of_another_node_is_refused(peer: Peer, make_node: Callable[..., Node]) -> None:
    first = make_node()
    until(lambda: peer.nodes)
    first.send(signal.SIGTERM)

    assert main(["--state-dir", str(first.state), "--node-id", "other", "--gpus", "v100:1"]) == 2


def test_node_stops_gracefully_and_logs_json(peer: Peer, make_node: Callable[..., Node]) -> None:
    node = make_node()
    until(lambda: peer.nodes)

    assert node.send(signal.SIGTERM) == 0

    lines = [json.loads(line) for line in node.log.read_text().splitlines()]
    assert "node is up" in [line["message"] for line in lines]
    assert lines[-1]["message"] == "leaving"
    assert oct(node.state.stat().st_mode)[-3:] == "700"


@pytest.mark.parametrize("delay_s", [0.0, 0.3], ids=["local", "slow link"])
def test_node_shows_its_token_over_tls_only(delay_s: float, tmp_path: Path, make_node: Callable[..., Node]) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "token").write_text("gavel_secret\n")
    key, chain = certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes()
    peer = Peer()

    credentials = grpc.ssl_server_credentials([(key, chain)])
    with serving(peer, credentials=credentials) as port, slow_link(f"127.0.0.1:{port}", delay_s) as relay:
        flags = ("--tls-ca", str(tmp_path / "ca.pem"), "--token-file", str(tmp_path / "token"))
        make_node(*flags, scheduler=relay.replace("127.0.0.1", "localhost"), more='run_as = "agent"\n')
        until(lambda: peer.nodes)

    assert peer.metadata[0]["authorization"] == "Bearer gavel_secret"


def test_service_manager_is_notified_when_ready(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)

        assert sd_notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "notify")})

        assert manager.recv(100) == b"READY=1"
    assert not sd_notify("READY=1", {})
