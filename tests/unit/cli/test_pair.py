"""`broker pair`: what is refused before anybody is asked, and what is printed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.control.pairing import names_for
from broker.security.pairing import Token, encode_token
from tests.support.command import run
from tests.support.paired import settings_of

SERVICES = {"columns": ["name"], "rows": [["//shop/Orders"]], "messages": []}


def token(*, expires_in: float = 900) -> str:
    end = int(time.time() + expires_in)
    return encode_token(Token("127.0.0.1", 9, "tcp://a:4022", b"c" * 32, b"i" * 32, b"s" * 32, end))


def configured(directory: Path, socket: Path, **more: dict[str, Any]) -> Path:
    sections: dict[str, dict[str, Any]] = settings_of("orders", directory) | {"admin": {"socket": str(socket)}}
    for section, values in more.items():
        sections.setdefault(section.replace("_", "."), {}).update(values)
    lines = ["[instance]", 'name = "orders"', 'state_dir = "."']
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items())]
    (directory / "broker.toml").write_text("\n".join(lines))
    return directory / "broker.toml"


@pytest.fixture
def config(tmp_path: Path, fake_admin: Any) -> Path:
    """Of an instance with the service //shop/Orders, whose daemon answers."""
    fake_admin.answers["/v1/sql"] = (200, SERVICES)
    return configured(tmp_path, fake_admin.path, endpoint={"advertise": ["tcp://127.0.0.1:4022"]})


def test_invitation_prints_a_token_and_ends_when_nobody_comes(config: Path) -> None:
    result = run("pair", "invite", "-c", config, "--service", "//shop/Orders", "--expires", "0.1s")

    assert 7 == result.exit_code
    assert result.stdout.startswith("broker-pair-")
    assert "waiting until" in result.stderr
    assert "nobody came within 0.1 s: make a new token" in result.stderr


def test_token_is_json_when_that_is_asked_for(config: Path) -> None:
    result = run("pair", "invite", "-c", config, "--service", "//shop/Orders", "--expires", "0.1s", "-o", "json")

    assert json.loads(result.stdout)["token"].startswith("broker-pair-")


def test_nobody_at_the_place_of_the_token_is_1(config: Path) -> None:
    result = run("pair", "accept", token(), "-c", config, "--service", "//shop/Orders")

    assert 1 == result.exit_code
    assert "127.0.0.1:9: " in result.stderr
    assert "has the invitation ended" in result.stderr


def test_token_may_come_from_standard_input(config: Path) -> None:
    result = run("pair", "accept", "-", "-c", config, "--service", "//shop/Orders", stdin=f"{token()}\n")

    assert "127.0.0.1:9: " in result.stderr


def test_token_that_has_expired_is_not_tried(config: Path) -> None:
    result = run("pair", "accept", token(expires_in=-1), "-c", config, "--service", "//shop/Orders")

    assert 1 == result.exit_code
    assert "the token has expired at" in result.stderr
    assert "ask for a new one" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("accept", "abc", "--service", "//shop/Orders"), "this is no token: it begins with broker-pair-"),
        (("accept", token()[:-9], "--service", "//shop/Orders"), "the token is damaged"),
        (("invite",), "Missing option '--service'"),
        (("invite", "--service", "x", "--database", "other"), "name the --database of the service: orders"),
        (("invite", "--service", "x", "--address", "LOCAL"), "LOCAL is no address that another machine could dial"),
        (("invite", "--service", "x", "--address", "a:1"), "where does the other side reach this endpoint?"),
        (("invite", "--service", "//shop/Orders", "--listen", "4023"), "--listen: has no port from 0 to 65535"),
        (("invite", "--service", "x", "--expires", "soon"), "'soon' is no duration"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else None,
)
def test_wrong_usage_is_2(config: Path, arguments: tuple[str, ...], problem: str) -> None:
    result = run("pair", *arguments, "-c", config)

    assert 2 == result.exit_code
    assert problem in " ".join(result.stderr.split())


def test_address_has_to_be_known(tmp_path: Path, fake_admin: Any) -> None:
    result = run("pair", "invite", "-c", configured(tmp_path, fake_admin.path), "--service", "//shop/Orders")

    assert 2 == result.exit_code
    assert "say --address tcp://HOST:PORT, or set endpoint.advertise" in " ".join(result.stderr.split())


def test_service_that_is_not_there_is_told_with_those_that_are(config: Path) -> None:
    result = run("pair", "invite", "-c", config, "--service", "//shop/Order")

    assert 1 == result.exit_code
    assert "has no service '//shop/Order'; it has: //shop/Orders" in result.stderr


def test_database_without_a_certificate_is_told(tmp_path: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, SERVICES)
    lacking = {"certificate": "", "private_key": ""}
    config = configured(tmp_path, fake_admin.path, endpoint={"advertise": ["tcp://a:4022"]}, databases_orders=lacking)

    result = run("pair", "invite", "-c", config, "--service", "//shop/Orders")

    assert 1 == result.exit_code
    assert "this database has no certificate; name certificate and private_key" in result.stderr


def test_daemon_that_does_not_run_is_4(tmp_path: Path) -> None:
    config = configured(tmp_path, tmp_path / "none.sock", endpoint={"advertise": ["tcp://a:4022"]})

    assert 4 == run("pair", "invite", "-c", config, "--service", "//shop/Orders").exit_code


def test_who_is_not_paired_is_3(config: Path) -> None:
    result = run("pair", "remove", "//shop/Nobody", "-c", config, "--yes")

    assert 3 == result.exit_code
    assert "orders is not paired with //shop/Nobody" in result.stderr


def test_who_is_not_paired_is_3_also_without_room_for_certificates(tmp_path: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, SERVICES)
    config = configured(tmp_path, fake_admin.path, endpoint={"trust": ["tls/orders.pem"]})

    result = run("pair", "remove", "//shop/Nobody", "-c", config, "--yes")

    assert 3 == result.exit_code
    assert "orders is not paired with //shop/Nobody" in result.stderr


def test_pairing_is_taken_back_only_when_that_is_said(config: Path, fake_admin: Any) -> None:
    script = config.parent / "scripts.d" / f"{names_for('//shop/Billing').file}.sql"
    script.write_text("GRANT SEND ON SERVICE::[//shop/Orders] TO [CN=billing];", encoding="utf-8")

    asked = run("pair", "remove", "//shop/Billing", "-c", config)
    dry = run("pair", "remove", "//shop/Billing", "-c", config, "--dry-run", "-o", "json")

    assert (2, True) == (asked.exit_code, script.exists())
    assert "say --yes, or look first with --dry-run" in " ".join(asked.stderr.split())
    revoke = "REVOKE SEND ON SERVICE::[//shop/Orders] FROM [CN=billing];"
    expected = {"is_removed": False, "statements": ["USE [orders];", revoke], "files": [str(script)]}
    assert expected == json.loads(dry.stdout)

    done = run("pair", "remove", "//shop/Billing", "-c", config, "--yes")

    assert (0, False) == (done.exit_code, script.exists())
    assert f"USE [orders];\n{revoke}\n" == fake_admin.asked[-1][2]["statement"]
