"""How a client finds its scheduler: flags before environment before the user's file before the system's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.client import settings
from gavelpy.runtime.client.settings import SCHEDULER, ClientSettings, load_settings


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with its own home directory, on a system without configuration."""
    monkeypatch.setattr(settings, "SYSTEM_FILE", tmp_path / "etc" / "config.toml")
    return {"HOME": str(tmp_path / "home")}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_default_is_this_machine(environment: dict[str, str]) -> None:
    assert load_settings({}, environment) == ClientSettings(scheduler=SCHEDULER)


def test_nearer_places_go_before_farther_ones(environment: dict[str, str], tmp_path: Path) -> None:
    write(settings.SYSTEM_FILE, 'scheduler = "machine:1"\ntls_ca = "machine.pem"\ntimeout_s = 3\n')
    machine = load_settings({}, environment)
    write(tmp_path / "home/.config/gavel/config.toml", 'scheduler = "user:2"\n')
    user = load_settings({}, environment)
    variable = load_settings({}, environment | {"GAVEL_SCHEDULER": "variable:3"})
    flag = load_settings({"scheduler": "flag:4"}, environment | {"GAVEL_SCHEDULER": "variable:3"})

    found = [place.scheduler for place in (machine, user, variable, flag)]
    assert found == ["machine:1", "user:2", "variable:3", "flag:4"]
    assert (flag.tls_ca, flag.timeout_s) == ("machine.pem", 3.0)


def test_xdg_config_home_is_followed(environment: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "xdg/gavel/config.toml", 'scheduler = "xdg:1"\n')

    found = load_settings({}, environment | {"XDG_CONFIG_HOME": str(tmp_path / "xdg")})

    assert found.scheduler == "xdg:1"


def test_token_of_a_nearer_place_goes_before_a_token_file_of_a_farther(
    environment: dict[str, str], tmp_path: Path
) -> None:
    write(settings.SYSTEM_FILE, 'token = "machine"\n')
    write(tmp_path / "mine", "from-file\n")

    from_file = load_settings({"token_file": str(tmp_path / "mine")}, environment)
    from_variable = load_settings({}, environment | {"GAVEL_TOKEN": "variable"})

    assert from_file.secret == "from-file"
    assert from_variable.secret == "variable"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "scheduler = 'a:1'\nshceduler = 'b:2'\n",
            r"config.toml: unknown field 'shceduler'; the fields are scheduler, ",
        ),
        ("scheduler = [", r"config.toml:1: text must be TOML"),
        ("scheduler = ['a:1']", r"config.toml: scheduler must be a string or a number, got \['a:1'\]"),
        ("timeout_s = -1", r"config.toml: timeout_s must be in \(0, 3600\], got -1.0"),
        ("timeout_s = 'soon'", r"timeout_s must be a number of seconds, got 'soon'"),
        ("timeout_s = nan", r"timeout_s must be in \(0, 3600\], got nan"),
        ("scheduler = ' '", r"config.toml: scheduler must be HOST:PORT, .* got ''"),
        ("tls_key = 'k'", r"tls_certificate and tls_key must both be given or neither"),
    ],
)
def test_file_that_is_wrong_is_named_with_field_and_value(
    environment: dict[str, str], tmp_path: Path, text: str, complaint: str
) -> None:
    write(tmp_path / "home/.config/gavel/config.toml", text)

    with pytest.raises(InvalidInput, match=complaint):
        load_settings({}, environment)


def test_token_file_that_is_missing_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="token_file must be a readable file, got 'nowhere'"):
        _ = load_settings({"token_file": "nowhere"}, environment).secret


def test_home_of_an_unknown_account_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="token_file must be a path, or start with ~ or ~USER of an account"):
        _ = load_settings({"token_file": "~nobody-here/token"}, environment).secret


@pytest.mark.parametrize(
    "address", ["", "head", "head:", ":7077", "head:0", "head:65536", "head:99999", "a b:1", "a\n:1"]
)
def test_what_is_no_address_is_refused_before_it_is_tried(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"scheduler must be HOST:PORT, \[IPv6\]:PORT or unix:PATH, got"):
        ClientSettings(scheduler=address)


@pytest.mark.parametrize(
    "address", ["head:7077", "10.0.0.7:1", "[::1]:65535", "unix:/run/gavel.sock", "localhost:7077"]
)
def test_addresses_of_all_forms_are_taken(address: str) -> None:
    assert ClientSettings(scheduler=address).scheduler == address
