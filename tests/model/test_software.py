"""The software of a job: what is allowed, and the environment that it gives."""

from __future__ import annotations

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, encode
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.model.job import JobId, JobSpec
from gavelpy.model.software import OF_NODE, Software


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"venv": "env"}, "venv must be an absolute path"),
        ({"conda": "/opt/a:/opt/b"}, "conda must be an absolute path"),
        ({"venv": "/opt/\n"}, "venv must be an absolute path"),
        ({"venv": "/a", "conda": "/b"}, "conda must be empty if venv is given, got '/b' and '/a'"),
        ({"snapshot": "../../etc/passwd"}, "snapshot must be a SHA-256 in 64 hexadecimal digits"),
        ({"snapshot": "A" * 64}, "snapshot must be a SHA-256"),
        ({"image": "--privileged"}, "image must be a name such as"),
        ({"image": "docker.io/library/Python"}, "image must be a name such as"),
        ({"image": "oci:/srv/image"}, "image must be a name such as"),
        ({"image": "/images/../etc/x.sif"}, "image must be a name such as"),
        ({"image": "python image"}, "image must be a name such as"),
        ({"image": "python", "conda": "/opt/c"}, "image must be empty if conda is given"),
    ],
)
def test_meaningless_software_is_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Software(**fields)


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.12",
        "docker.io/library/python:3.12",
        "localhost:5000/a/b",
        "/images/torch.sif",
        f"ghcr.io/org/x@sha256:{'0' * 64}",
    ],
)
def test_image_is_a_name_in_a_registry_or_a_file(image: str) -> None:
    assert Software(image=image).image == image


def test_virtual_environment_comes_first_in_path_and_replaces_that_of_the_node() -> None:
    node = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/opt/agent", "PYTHONHOME": "/x", "LANG": "C"}

    found = Software(venv="/opt/torch").activate(node)

    assert found == {"PATH": "/opt/torch/bin:/usr/bin", "VIRTUAL_ENV": "/opt/torch", "LANG": "C"}


def test_conda_environment_is_named_by_its_directory() -> None:
    found = Software(conda="/opt/conda/envs/torch").activate({"VIRTUAL_ENV": "/opt/agent"})

    assert found == {
        "PATH": "/opt/conda/envs/torch/bin",
        "CONDA_PREFIX": "/opt/conda/envs/torch",
        "CONDA_DEFAULT_ENV": "torch",
    }


def test_environment_of_the_node_is_unchanged_without_software() -> None:
    node = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/opt/agent"}

    assert OF_NODE.activate(node) == node


def test_software_of_a_job_is_in_the_journal() -> None:
    spec = JobSpec(JobId("a"), 1.0, software=Software(conda="/opt/conda", snapshot="0" * 64, image=""))

    _, event = decode(encode(JobSubmitted(spec), 5.0))

    assert isinstance(event, JobSubmitted)
    assert event.spec == spec
