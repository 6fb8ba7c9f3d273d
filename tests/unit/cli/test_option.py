"""What the commands' help and usage have in common."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broker.cli.options import examples, socket_option
from tests.support.command import run, run_without_privileges


def test_check_takes_the_configuration_from_the_environment(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CONFIG", str(configuration))

    assert 0 == run("check", "--offline").exit_code


def test_examples_end_the_help_each_on_its_own_line() -> None:
    @examples("""
broker fly --to moon
broker fly --to mars
""")
    @click.command()
    def fly() -> None:
        """Leave."""

    text = CliRunner().invoke(fly, ["--help"]).stdout

    assert text.endswith("\n\n  Examples:\n    broker fly --to moon\n    broker fly --to mars\n")


def test_output_is_a_table_unless_it_is_asked_for_otherwise() -> None:
    for command in ("send", "receive", "status"):
        assert "[table|json]" in run(command, "--help").stdout


def test_an_instance_is_named_by_a_file_or_by_a_url() -> None:
    found = []

    @click.command()
    @socket_option
    def ask(socket: Path | str | None) -> None:
        found.append(socket)

    for arguments in (
        [],
        ["--socket", "a.sock"],
        ["--url", "https://gateway:9422"],
        ["--socket", "http://127.0.0.1:1"],
        ["--url", "a.sock"],
    ):
        CliRunner().invoke(ask, arguments, catch_exceptions=False)

    assert [None, Path("a.sock"), "https://gateway:9422", "http://127.0.0.1:1", Path("a.sock")] == found


def test_a_url_of_another_kind_is_no_file() -> None:
    result = run("status", "--url", "ftp://gateway:9422")

    assert 2 == result.exit_code
    assert "'ftp://gateway:9422' is neither a file nor a URL like http://127.0.0.1:9422" in result.stderr


@pytest.mark.parametrize(
    ("command", "code"), [(["serve"], 78), (["check"], 1), (["status"], 1), (["config", "show"], 1), (["reload"], 2)]
)
def test_a_configuration_that_may_not_be_read_is_told_by_its_reader(
    tmp_path: Path, command: list[str], code: int
) -> None:
    """Also by serve, whose exit code keeps systemd from starting it again and again."""
    config = tmp_path / "broker.toml"
    config.write_text('[instance]\nname = "a"\n')
    config.chmod(0)

    done = run_without_privileges(*command, "-c", config)

    assert (code, True) == (done.returncode, "cannot be read: Permission denied" in done.stderr), done.stderr
