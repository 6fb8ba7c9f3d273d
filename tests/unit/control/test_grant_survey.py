"""Permissions that are missing, do nothing, or give everything away: each with its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog.dry_run import rehearse
from broker.catalog.lint import survey_grants
from broker.config.settings import Settings

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
CERTIFICATE = (
    "encryption = 'required'\nauthentication = 'certificate'\ncertificate = 'a'\nprivate_key = 'a'\ntrust = ['a']\n"
)
GOOD = "GRANT CONNECT ON ENDPOINT::one TO [CN=*];\nGRANT SEND ON SERVICE::S TO [CN=orders];\n"
Found = Callable[..., list[str]]


@pytest.fixture
def found(load: Callable[[str], Settings], tmp_path: Path) -> Found:
    """What is told about msdb's script, without the directory and the caret."""

    def finding(msdb: str, endpoint: str = CERTIFICATE) -> list[str]:
        (tmp_path / "msdb.sql").write_text(msdb)
        (tmp_path / "a.sql").write_text("CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q;")
        text = (
            f"[instance]\nname = 'one'\nstate_dir = '.'\n[routes]\nfiles = ['msdb.sql']\n"
            f"[databases.a]\npath = 'a.db'\nscripts = ['a.sql']\n[endpoint]\n{endpoint}"
        )
        rehearsal = rehearse(load(text), now=NOW)
        assert [] == rehearsal.errors
        return [str(one).splitlines()[0].replace(f"{tmp_path}/", "") for one in survey_grants(rehearsal)]

    return finding


def test_good_grants_have_nothing_to_tell(found: Found) -> None:
    assert [] == found(GOOD)
    assert [] == found("", "")


def test_endpoint_that_lets_nobody_in_is_told_with_the_statement(found: Found) -> None:
    connect, send = found("DENY CONNECT ON ENDPOINT::one TO public")

    assert "nobody-may-connect: peers prove who they are by certificate, and no GRANT CONNECT of msdb says" in connect
    assert connect.endswith("; USE msdb; GRANT CONNECT ON ENDPOINT::[one] TO [PRINCIPAL]")
    assert "nobody-may-send" in send
    assert send.endswith("; USE msdb; GRANT SEND ON SERVICE::[SERVICE] TO [PRINCIPAL]")


def test_rule_about_certificates_where_nobody_shows_one_does_nothing(found: Found) -> None:
    (told,) = found("GRANT SEND ON SERVICE::S TO public;\nGRANT SEND ON SERVICE::S TO [CN=a];", "")

    assert told.startswith("msdb.sql:2:24: grant-unused: GRANT SEND ON SERVICE::[S] TO [CN=a] is about nobody")


@pytest.mark.parametrize(
    ("deny", "is_overruled"),
    [
        ("SEND ON SERVICE::[S*] TO [CN=orders]", True),
        ("SEND ON SERVICE::[*] TO public", True),
        ("SEND ON SERVICE::[S*] TO public", True),
        ("SEND ON SERVICE::T TO public", False),
        ("SEND ON SERVICE::S TO [CN=other]", False),
    ],
)
def test_grant_that_is_taken_back_as_a_whole_permits_nothing(found: Found, deny: str, *, is_overruled: bool) -> None:
    told = found(f"{GOOD}DENY {deny};")

    assert is_overruled == any("permits nothing: DENY SEND" in line for line in told)


def test_pattern_is_overruled_only_by_what_is_surely_wider(found: Found) -> None:
    told = found(
        "GRANT CONNECT ON ENDPOINT::one TO a; GRANT SEND ON SERVICE::[S*] TO a; DENY SEND ON SERVICE::[T*] TO a"
    )

    assert [] == told


def test_grant_of_everything_to_everybody_is_told(found: Found) -> None:
    (told,) = found(f"{GOOD}GRANT SEND ON SERVICE::[*] TO public;")

    assert told.startswith("msdb.sql:3:24: grant-to-all: GRANT SEND ON SERVICE::[*] TO [public] lets every peer send")


def test_name_in_another_case_is_told_with_the_right_one(found: Found) -> None:
    (told,) = found(f"{GOOD}GRANT SEND ON SERVICE::s TO [CN=orders];")

    assert "names-differ-in-case: GRANT SEND ON SERVICE::[s] TO [CN=orders] is not about 'S'" in told
    assert told.endswith("write [S]")
