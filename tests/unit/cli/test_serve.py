"""`broker serve`: what its exit codes tell a supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.catalog.database_files import STOP_IT
from broker.errors import (
    BrokerError,
    CertificateTooEarlyError,
    DdlSyntaxError,
    ListenFailedError,
    SettingError,
    StoreUnavailableError,
)
from broker.store.sqlite.database import HELD
from tests.support.command import run


@pytest.mark.parametrize(("command", "code"), [("serve", 78), ("check", 1), ("status", 1)])
def test_a_configuration_that_is_not_there(command: str, code: int, tmp_path: Path) -> None:
    result = run(command, "-c", tmp_path / "none.toml")

    assert code == result.exit_code
    assert "name a TOML file that exists and may be read\n" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailableError("a.db", "locked"), 75),
        (SettingError("endpoint.listen", "is wrong"), 78),
        (DdlSyntaxError(102, "incorrect syntax"), 78),
    ],
    ids=lambda value: type(value).__name__,
)
def test_serve_tells_a_supervisor_whether_trying_again_may_help(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, error: BrokerError, code: int
) -> None:
    def fail(settings: object) -> None:
        raise error

    monkeypatch.setattr("broker.daemon.process.run", fail)
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)

    result = run("serve", "-c", configuration)

    assert (code, f"{error}\n") == (result.exit_code, result.stderr)


def test_a_certificate_that_is_not_valid_yet_passes(configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a machine that has just begun may be set a little later: a supervisor is to try again."""

    def fail(settings: object) -> None:
        early = CertificateTooEarlyError("certificate", "a.pem", "is not valid before then", "wait")
        raise SettingError("endpoint.certificate", "is not valid before then", None, "wait") from early

    monkeypatch.setattr("broker.daemon.process.run", fail)
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)

    result = run("serve", "-c", configuration)

    assert (75, "endpoint.certificate: is not valid before then; wait\n") == (result.exit_code, result.stderr)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (
            ListenFailedError("127.0.0.1:4022", "in use; stop it"),
            75,
            '{0}/broker.toml:4:11: endpoint.listen[0]: cannot listen on "127.0.0.1:4022": in use; stop it\n',
        ),
        (
            StoreUnavailableError("{0}/state/msdb.db", HELD),
            75,
            "{0}/broker.toml:2:13: instance.state_dir: store {0}/state/msdb.db: another daemon has it open; "
            + STOP_IT
            + "\n",
        ),
    ],
    ids=["port", "store"],
)
def test_what_is_taken_is_told_with_the_setting_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BrokerError, code: int, told: str
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nstate_dir = "state"\n[endpoint]\nlisten = ["127.0.0.1:4022"]\n')
    if isinstance(error, StoreUnavailableError):
        error = StoreUnavailableError(error.path.format(tmp_path), error.problem)

    def fail(settings: object) -> None:
        raise error

    monkeypatch.setattr("broker.daemon.process.run", fail)
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)

    result = run("serve", "-c", path)

    assert (code, told.format(tmp_path)) == (result.exit_code, f"{result.stderr.splitlines()[0]}\n")


def test_serve_ends_with_a_code_of_its_own_when_something_was_left_behind(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.daemon.process.run", lambda _: False)
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)

    assert 7 == run("serve", "-c", configuration).exit_code
