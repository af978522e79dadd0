"""Which images a node runs: its tool, its rules, and jobs that it refuses. A program plays podman."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import node_config
from gavelpy.runtime.agent.leases.images import ImageRules, find_images
from gavelpy.runtime.wire import agent_pb2 as pb
from gavelpy.runtime.wire import software_pb2
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.owners import OWNERS, PYTHON, open_place
from tests.runtime.agent.peer import Peer, order, until

IMAGE = "docker.io/library/python:3.12"
SECRET = "value-that-is-not-in-argv"
PODMAN = """#!{python}
import json, os, sys
if sys.argv[1] == "--version":
    print("podman version 9.8.7")
elif "run" in sys.argv:
    print(json.dumps([sys.argv[1:], dict(os.environ), os.getuid()]))
"""
RULES = ImageRules("podman 9.8.7", "podman", "/usr/bin/podman", ("docker.io/*", "localhost/a:1"))


def program(directory: Path, name: str, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)


def podman_in(directory: Path) -> str:
    """PATH with a podman of these tests and what podman needs."""
    program(directory, "podman", PODMAN.format(python=PYTHON))
    for name in ("crun", "newuidmap"):
        program(directory, name, "#!/bin/sh\n")
    return f"{directory}:/usr/bin:/bin"


def may_gain(directory: Path, flag: int = 0) -> Path:
    (directory / "status").write_text(f"Name:\tx\nNoNewPrivs:\t{flag}\n")
    return directory / "status"


def found_in(path: str, directory: Path, tool: str = "", speed_factor: float = 1.0, flag: int = 0) -> ImageRules:
    return find_images(tool, ["*"], [], speed_factor, {"PATH": path}, may_gain(directory, flag))


def test_first_tool_that_is_installed_is_used(tmp_path: Path) -> None:
    path = podman_in(tmp_path / "bin")

    found = found_in(path, tmp_path)

    assert (found.text, found.tool, found.program) == ("podman 9.8.7", "podman", str(tmp_path / "bin/podman"))


def test_apptainer_is_used_where_it_is_chosen(tmp_path: Path) -> None:
    path = podman_in(tmp_path / "bin")
    program(tmp_path / "bin", "apptainer", "#!/bin/sh\necho apptainer version 1.3.4-1\n")

    found = found_in(path, tmp_path, "apptainer")

    assert (found.text, found.tool) == ("apptainer 1.3.4", "apptainer")


def test_node_says_why_it_runs_no_containers(tmp_path: Path) -> None:
    program(tmp_path / "bin", "podman", "#!/bin/sh\nexit 1\n")
    path = str(tmp_path / "bin")

    assert found_in(str(tmp_path), tmp_path).text == "no: podman is not installed; apptainer is not installed"
    assert found_in(path, tmp_path, "podman").text == "no: podman does not work (CalledProcessError)"
    assert found_in(path, tmp_path, "none").text == "no: image_tool is 'none'"
    assert found_in(path, tmp_path, speed_factor=0.5).text == "no: a speed_factor below 1 cannot pause containers"


def test_podman_needs_crun_the_maps_of_ids_and_a_unit_that_allows_them(tmp_path: Path) -> None:
    path = podman_in(tmp_path / "bin")
    in_unit = found_in(path, tmp_path, "podman", flag=1)
    program(tmp_path / "alone", "podman", PODMAN.format(python=PYTHON))

    assert found_in(str(tmp_path / "alone"), tmp_path, "podman").text == "no: podman needs crun and newuidmap"
    assert in_unit.text == "no: podman needs NoNewPrivileges=no in the agent's unit" or os.geteuid() != 0


@pytest.mark.parametrize(
    ("rules", "image", "uid", "why"),
    [
        (RULES, IMAGE, 5, ""),
        (RULES, "localhost/a:1", 5, ""),
        (RULES, "quay.io/x", 5, "node n1 does not run the image quay.io/x; allowed are: docker.io/*, localhost/a:1"),
        (RULES, IMAGE, 0, "node n1 runs containers without root only, and this job's account is root"),
        (
            ImageRules("podman 9.8.7", "podman", "/usr/bin/podman"),
            "/images/a.sif",
            5,
            "node n1 has no apptainer, which the image /images/a.sif needs: it has podman 9.8.7",
        ),
        (
            ImageRules("no: podman is not installed"),
            IMAGE,
            5,
            f"node n1 runs no containers (podman is not installed); the job's image is {IMAGE}",
        ),
    ],
)
def test_rules_of_a_node(rules: ImageRules, image: str, uid: int, why: str) -> None:
    assert rules.refusal(image, "n1", uid) == why


def test_gpus_are_numbered_from_0_in_a_container_of_podman() -> None:
    with_gpus = ImageRules("podman 9.8.7", "podman", "/usr/bin/podman", has_gpus=True)

    assert with_gpus.visible(["2", "3"]) == ["0", "1"]
    assert with_gpus.visible(["GPU-8a", "MIG-1"]) == ["GPU-8a", "MIG-1"]
    assert RULES.visible(["2", "3"]) == ["2", "3"]
    assert json.loads(with_gpus.fields(["2", "3"], "/h", Path("/ck/3"))["devices"]) == ["2", "3"]
    assert json.loads(RULES.fields(["2"], "/h", Path("/ck/3"))["devices"]) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image_tool": "docker"}, "image_tool must be one of '', 'podman', 'apptainer', 'none', got 'docker'"),
        ({"images": ["a b"]}, "images must be names or patterns"),
        ({"image_mounts": ["data"]}, "image_mounts must be absolute paths"),
        ({"image_mounts": ["/usr/"]}, "image_mounts must be absolute paths"),
        ({"image_mounts": ["/"]}, "image_mounts must be absolute paths"),
    ],
)
def test_meaningless_rules_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        node_config(given, None)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts")


@pytest.fixture
def place() -> Iterator[Path]:
    with open_place() as directory:
        yield directory


def started_node(place: Path, port: int, monkeypatch: pytest.MonkeyPatch, more: str) -> Node:
    monkeypatch.setenv("PATH", f"{podman_in(place / 'bin')}:{os.environ['PATH']}")
    node = Node(place / "state", f"127.0.0.1:{port}", more=more)
    node.start()
    return node


def with_image(lease: int, image: str, **more: object) -> pb.LeaseOrder:
    found = order(lease, "python train.py", **more)  # type: ignore[arg-type]  # fields of any type
    found.launch.software.CopyFrom(software_pb2.Software(image=image))
    return found


@as_root
def test_job_with_an_image_is_started_by_podman_as_its_owner(
    place: Path, peer: Peer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = started_node(place, port, monkeypatch, OWNERS + 'image_tool = "podman"\nimage_mounts = ["/srv/data"]\n')
    try:
        peer.order(with_image(1, IMAGE, owner="alice", environment={"KEY": SECRET}))
        report = peer.until_phase(1, pb.LEASE_PHASE_ENDED)
        argv, environment, uid = json.loads(node.log_text(1).split(" ", 1)[1])
        images = peer.nodes[-1].images
    finally:
        node.close()

    assert report.outcome == pb.LEASE_OUTCOME_FINISHED
    assert images == "podman 9.8.7"
    assert argv[-3:] == [IMAGE, "python", "train.py"]
    assert "--mount=type=bind,source=/srv/data,destination=/srv/data" in argv
    assert f"--mount=type=bind,source={node.checkpoints / '0'},destination={node.checkpoints / '0'}" in argv
    assert SECRET not in shlex.join(argv)
    assert environment["KEY"] == SECRET
    assert uid != 0


@as_root
def test_job_whose_image_is_not_allowed_is_refused(
    place: Path, peer: Peer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = started_node(place, port, monkeypatch, OWNERS + 'image_tool = "podman"\nimages = ["quay.io/*"]\n')
    try:
        peer.order(with_image(1, IMAGE, owner="alice"))
        report = peer.until_phase(1, pb.LEASE_PHASE_ENDED)
        until(lambda: peer.nodes)
    finally:
        node.close()

    assert (report.outcome, report.failure) == (pb.LEASE_OUTCOME_FAILED, pb.FAILURE_CLASS_REFUSED)
    assert report.detail == f"node n0 does not run the image {IMAGE}; allowed are: quay.io/*"
