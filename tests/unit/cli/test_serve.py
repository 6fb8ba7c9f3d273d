"""`broker serve`: what its exit codes tell a supervisor."""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from broker.catalog.database_files import STOP_IT
from broker.errors import (
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


EARLY = SettingError("endpoint.certificate", "is not valid before then", None, "wait")
EARLY.__cause__ = CertificateTooEarlyError("certificate", "a.pem", "is not valid before then", "wait")


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        (True, 0, ""),
        (False, 7, ""),
        (StoreUnavailableError("a.db", "locked"), 75, "store a.db: locked\n"),
        (SettingError("endpoint.listen", "is wrong"), 78, "endpoint.listen: is wrong\n"),
        (DdlSyntaxError(102, "incorrect syntax"), 78, "Msg 102, Level 16\n"),
        (EARLY, 75, "endpoint.certificate: is not valid before then; wait\n"),
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
)
def test_the_exit_code_tells_a_supervisor_whether_trying_again_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: object, code: int, told: str
) -> None:
    if isinstance(end, StoreUnavailableError):
        end = StoreUnavailableError(end.path.format(tmp_path), end.problem)

    def running(_: object) -> object:
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr("broker.daemon.process.run", running)
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nstate_dir = "state"\n[endpoint]\nlisten = ["127.0.0.1:4022"]\n')

    result = run("serve", "-c", path)

    assert (code, told.format(tmp_path)) == (result.exit_code, "".join(result.stderr.splitlines(keepends=True)[:1]))


def test_a_mistake_of_the_configuration_is_told_with_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.daemon.process.run", Mock(side_effect=DdlSyntaxError(102, "incorrect syntax")))
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)
    (tmp_path / "a.sql").write_text("DROP ROUTE;\nDROP QUEUE;\n")
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nstate_dir = "state"\n[endpoint]\nlisten = []\n[routes]\nfiles = ["a.sql", "b.sql"]\n')

    result = run("serve", "-c", path)

    assert 78 == result.exit_code
    assert ["a.sql:1", "a.sql:2", "broker.toml:6"] == re.findall(rf"{tmp_path}/([\w.]+:\d)", result.stderr)
