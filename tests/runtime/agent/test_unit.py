"""The systemd unit of the agent: accepted by systemd, and hardened. Skipped without systemd-analyze."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gavelpy.runtime.agent.leases.containment import AGENT_GROUP
from gavelpy.runtime.shim import isolation, processes
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.conftest import PROJECT
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.owners import ALICE, OWNERS, open_place
from tests.runtime.agent.peer import Peer, order, until

UNIT = PROJECT / "deploy" / "gavel-node.service"
EXPOSURE_MAX = 40  # in tenths, of at most 100
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def exposure(unit: Path) -> tuple[int, str]:
    """Whether the exposure is too high (not 0), and what systemd prints about it."""
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return found.returncode, found.stdout[-200:]


@needs_systemd
def test_exposure_of_the_unit_is_at_most_four() -> None:
    code, printed = exposure(UNIT)

    assert "Overall exposure level" in printed
    assert code == 0, printed


@needs_systemd
def test_exposure_is_higher_without_the_hardening(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8")
    bare = tmp_path / "gavel-node.service"
    bare.write_text(re.sub(r"^(Restrict|Protect|SystemCall|Capability).*\n", "", text, flags=re.MULTILINE))

    assert exposure(bare)[0] != 0


@needs_systemd
def test_systemd_knows_every_line_of_the_unit() -> None:
    found = subprocess.run(
        ["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False, timeout=60
    )

    unknown = [line for line in found.stderr.splitlines() if "Unknown" in line and "DelegateSubgroup" not in line]
    assert unknown == []


def test_unit_puts_the_agent_into_the_group_that_it_looks_for() -> None:
    assert f"\nDelegateSubgroup={AGENT_GROUP}\n" in UNIT.read_text(encoding="utf-8")


@pytest.mark.parametrize(("options", "hidden"), [("rw", False), ("rw,hidepid=invisible", True), ("rw,hidepid=2", True)])
def test_proc_that_the_unit_has_closed_needs_no_namespace(tmp_path: Path, options: str, hidden: bool) -> None:
    (tmp_path / "mounts").write_text(
        f"21 20 0:19 / /sys rw - sysfs sysfs rw\n22 20 0:20 / /proc rw,nosuid - proc proc {options}\n"
    )

    assert isolation.are_processes_hidden(str(tmp_path / "mounts")) is hidden


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts")
def test_capabilities_of_the_unit_suffice(peer: Peer, port: int) -> None:
    """Starts, warns, stops and cleans up a job of another account, and reads its report and its checkpoints."""
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    names = [f"+{name.removeprefix('CAP_').lower()}" for name in " ".join(lines).split()]
    prefix = ("setpriv", f"--bounding-set=-all,{','.join(names)}", "--no-new-privs")
    script = (
        "mkdir $GAVEL_CHECKPOINT_DIR/step-000000000007; "
        'echo "{\\"steps_done\\": 7, \\"steps_saved\\": 7}" > $GAVEL_LEASE_DIR/progress.0.json; '
        "id -u; setsid sleep 100 & sleep 100"
    )
    with open_place() as place:
        node = Node(place / "state", f"127.0.0.1:{port}", more=OWNERS + "hide_processes = false\n")
        node.start(prefix)
        try:
            peer.order(order(1, f"sh -c '{script}'", owner="alice", grace_s=0.5))
            until(lambda: (report := peer.report(1)) is not None and report.steps_saved == 7)
            peer.wish(1, pb.LEASE_WISH_STOP)
            report = peer.until_phase(1, pb.LEASE_PHASE_ENDED)
            printed, assigned = node.log_text(1).split()[1], node.process
            assert assigned is not None
            bounding = Path(f"/proc/{assigned.pid}/status").read_text().partition("CapEff:\t")[2].split()[0]
            left = processes.lease_processes(node.shim(1), node.state / "jobs/00000001")
        finally:
            node.close()

    assert printed == str(pwd.getpwnam(ALICE).pw_uid)
    assert (report.outcome, report.steps_saved) == (pb.LEASE_OUTCOME_STOPPED, 7.0)
    assert left == ()
    assert bin(int(bounding, 16)).count("1") == len(names)
