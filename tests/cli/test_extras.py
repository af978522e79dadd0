"""Commands with a missing extra print how to install it, print nothing else and start nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
for name in {modules!r}:
    sys.modules[name] = None  # as if it were not installed
from {module} import main
sys.exit(main(sys.argv[1:]))
"""
RUNTIME = ("grpc", "grpc_health", "google.protobuf", "sqlalchemy", "aiohttp", "psycopg", "prometheus_client")
MAINS = {
    "gavel": "gavelpy.cli.main",
    "gavel-node": "gavelpy.runtime.agent.main",
    "gavel-scheduler": "gavelpy.runtime.daemon.main",
}
CONFIGURATION = '[scheduler]\nname = "x"\nstate_directory = "state"\n'


def run_without(modules: tuple[str, ...], command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    name, *arguments = command.split()
    script = WITHOUT.format(modules=modules, module=MAINS[name])
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "command",
    [
        "gavel jobs",
        "gavel submit --steps 1 -- true",
        "gavel top",
        "gavel-node --state-dir state --gpus v100:1",
        "gavel-scheduler --config scheduler.toml",
    ],
)
def test_command_without_the_runtime_extra_prints_how_to_install_it(command: str, tmp_path: Path) -> None:
    (tmp_path / "scheduler.toml").write_text(CONFIGURATION)

    done = run_without(RUNTIME, command, tmp_path)

    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: " + " ".join(command.split()[: 2 if command.startswith("gavel ") else 1]))
    assert done.stderr.endswith("pip install 'gavelpy[runtime]'\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_report_without_its_extra_prints_how_to_install_it(tmp_path: Path) -> None:
    done = run_without(
        ("matplotlib", "jinja2"), "gavel simulate --generate 3 --cluster v100:2 --report page.html", tmp_path
    )

    assert done.returncode == 2
    assert done.stderr.endswith("pip install 'gavelpy[report]'\n")


def test_missing_module_that_no_extra_provides_is_a_bug_and_not_hidden(tmp_path: Path) -> None:
    done = run_without(("msgspec",), "gavel jobs", tmp_path)

    assert "ModuleNotFoundError" in done.stderr
