"""Generated code is up to date with its sources and has not been edited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.project import PACKAGE, ROOT

WIRE = PACKAGE / "runtime" / "wire"
PROTOS = sorted(WIRE.glob("*.proto"))
KEPT = sorted(path.name for path in WIRE.glob("*_pb2*"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the current output of the protocol compiler for the .proto files, as in `make generate`."""
    out = tmp_path_factory.mktemp("generated")
    outs = [f"--{kind}={out}" for kind in ("python_out", "grpc_python_out")]
    outs += [f"--{kind}=quiet:{out}" for kind in ("mypy_out", "mypy_grpc_out")]
    sources = [str(path.relative_to(ROOT)) for path in PROTOS]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outs, *sources]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "PATH": path})
    return out / WIRE.relative_to(ROOT)


def test_every_proto_has_its_code(generated: Path) -> None:
    assert sorted(path.name for path in generated.iterdir()) == KEPT


@pytest.mark.parametrize("name", KEPT)
def test_generated_code_is_up_to_date(generated: Path, name: str) -> None:
    assert (WIRE / name).read_text() == (generated / name).read_text(), "run `make generate`"


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.name)
def test_enumerations_begin_with_unspecified_and_services_end_in_service(proto: Path) -> None:
    lines = proto.read_text().splitlines()

    zeros = [line.strip() for line in lines if " = 0;" in line]
    services = [line.split()[1] for line in lines if line.startswith("service ")]

    assert all(zero.split()[0].endswith("_UNSPECIFIED") for zero in zeros)
    assert all(service.endswith("Service") for service in services)
