"""`broker certs drill`: what it prints, and how it ends."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.security.issue import Holder, Validity, issue_endpoint
from tests.support.command import run

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
TOMORROW, NEXT_WEEK = (f"{NOW + days * DAY:%Y-%m-%dT%H:%M}" for days in (1, 7))
COLUMNS = ["principal_name", "peer_name", "peer_address", "peer_certificate_id", "peer_certificate_expiry_date"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of an instance whose own certificate ends in three days, and that trusts one which has ended."""
    own = issue_endpoint(Holder("orders"), Validity(NOW - DAY, NOW + 3 * DAY), None)
    old = issue_endpoint(Holder("old"), Validity(NOW - 3 * DAY, NOW - DAY), None)
    (tmp_path / "own.pem").write_bytes(own.certificate_pem)
    (tmp_path / "trust.pem").write_bytes(own.certificate_pem + old.certificate_pem)
    path = tmp_path / "broker.toml"
    path.write_text(
        '[instance]\nstate_dir="."\n[endpoint]\nencryption="required"\nauthentication="certificate"\n'
        'certificate="own.pem"\nprivate_key="own.key"\ntrust=["trust.pem"]\n'
    )
    return path


def test_day_on_which_nothing_breaks_is_0(config: Path) -> None:
    result = run("certs", "drill", "-c", config, "--at", TOMORROW)

    assert (0, "nothing would break") == (result.exit_code, result.stdout[:19])
    assert "the instance does not run: only its files are looked at" in result.stderr
    assert "CN=old is over since" in result.stderr


def test_day_on_which_something_breaks_is_6(config: Path) -> None:
    result = run("certs", "drill", "-c", config, "--at", NEXT_WEEK)

    assert 6 == result.exit_code
    assert "every peer refuses this instance" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("2 would break at ")


def test_peers_that_are_connected_are_looked_at(config: Path, fake_admin: Any) -> None:
    ends = NOW + 4 * DAY
    row = ["CN=billing", "billing", "192.0.2.1:5", "ab" * 32, f"{ends:%Y-%m-%d %H:%M:%S.%f}"]
    fake_admin.answers["/v1/sql"] = (200, {"columns": COLUMNS, "rows": [row], "messages": []})

    result = run("certs", "drill", "-c", config, "--socket", fake_admin.path, "--at", NEXT_WEEK, "-o", "json")

    told = json.loads(result.stdout)
    assert (6, True) == (result.exit_code, told["is_running"])
    last = told["breaks"][-1]
    assert {
        "ends": f"{ends:%Y-%m-%d %H:%M:%S}",
        "setting": "connected now",
        "file": "",
        "subject": "CN=billing",
        "for": "transport",
        "breaks": "the peer that shows it is refused",
        "whom": "billing (192.0.2.1:5)",
        "fingerprint": f"sha256:{'ab' * 32}",
    } == last
    assert ["CN=old"] == [one["subject"] for one in told["already_over"]]


def test_zone_of_the_moment_counts(config: Path) -> None:
    told = json.loads(run("certs", "drill", "-c", config, "--at", "2026-01-01T02:00+02:00", "-o", "json").stdout)

    assert "2026-01-01T00:00:00+00:00" == told["at"]


@pytest.mark.parametrize("arguments", [[], ["--at", "tomorrow"]], ids=["no day", "no date"])
def test_without_a_day_it_is_wrong_usage(config: Path, arguments: list[str]) -> None:
    assert 2 == run("certs", "drill", "-c", config, *arguments).exit_code


def test_file_that_is_not_there_is_1(config: Path) -> None:
    config.with_name("own.pem").unlink()

    result = run("certs", "drill", "-c", config, "--at", TOMORROW)

    assert 1 == result.exit_code
    assert "own.pem: cannot be read: No such file or directory" in result.stderr
