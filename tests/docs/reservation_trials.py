"""Trials of the rows on reservations and classes in docs/coming-from-slurm.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.docs.shell import Ran, User


def prepare_reservation(user: User, slurm: str) -> None:
    """Makes the reservation that the command of a row needs."""
    if slurm == "`sbatch --reservation=course`":
        user("gavel reserve course --nodes n1 --user local --for 1h --force")
    if slurm.startswith(("`scontrol update Res", "`scontrol show res", "`scontrol delete Res")):
        user("gavel reserve course --nodes n2 --user local --from +1h --for 2h")


def reclassed(ran: Ran) -> None:
    assert ran.user.job("queued")["priority"] == "high"
    ran.user("gavel update queued --priority normal")


def runs_within_reservation(ran: Ran) -> None:
    (node,) = [one for one in ran.user("gavel nodes -o json").json["nodes"] if one["node_id"] == "n1"]
    assert ran.user.description(ran.job)["reservation"] == "course"
    assert node["state"] == "reserved"
    assert "trained" in ran.user.finish(ran.job)
    ran.user("gavel reserve course --delete")


def reserved(*names: str, hours: float = 0.0) -> Callable[[Ran], None]:
    """These reservations remain; the length of the first is checked if it is given. They are deleted."""

    def trial(ran: Ran) -> None:
        found = ran.user("gavel reservations -o json").json["reservations"]
        for one in found:
            ran.user(f"gavel reserve {one['name']} --delete")
        assert [one["name"] for one in found] == list(names)
        lengths_h = [(one["end_at_s"] - one["begin_at_s"]) / 3_600.0 for one in found if hours]
        assert lengths_h == [pytest.approx(hours, abs=0.01)] * len(lengths_h)

    return trial


def shows_reservations(ran: Ran) -> None:
    assert [word for word in ("course", "coming", "local", "0/2") if word not in ran.out] == []
    ran.user("gavel reserve course --delete")


RESERVATION_TRIALS: dict[str, Callable[[Ran], None]] = {
    "`scontrol create reservation Users=... Nodes=...`": reserved("course", hours=2.0),
    "`scontrol create reservation Flags=MAINT`": reserved("disks"),
    "`scontrol update ReservationName=...`": reserved("course", hours=4.0),
    "`scontrol show reservation`, `sinfo -T`": shows_reservations,
    "`scontrol delete ReservationName=...`": reserved(),
}
