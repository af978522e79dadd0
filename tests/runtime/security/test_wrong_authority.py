"""A certificate from the wrong authority: one line that names the setting, and no output of the C++ library."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import grpc
import trustme


def test_wrong_authority_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other-ca.pem")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    pair = (certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    place = {"GAVEL_SCHEDULER": f"127.0.0.1:{port}", "GAVEL_TLS_CA": str(tmp_path / "other-ca.pem")}
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | place

    command = [str(Path(sys.executable).with_name("gavel")), "nodes", "--timeout", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    server.stop(0)

    (line,) = done.stderr.splitlines()
    assert "is not trusted" in line
    assert "tls_ca" in line
