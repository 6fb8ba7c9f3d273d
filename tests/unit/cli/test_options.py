"""What the options of several commands take, and what they refuse."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broker.cli.options import Command, Socket, Where
from broker.routing.address import NetworkAddress


def given(*values: str) -> tuple[Where | None, str]:
    """What a command gets, and what its user reads."""
    got: list[Where] = []

    @click.command(cls=Command)
    def command(where: Where) -> None:
        got.append(where)

    result = CliRunner().invoke(command, [word for value in values for word in ("--admin", value)])
    assert result.exit_code == (0 if got else 2)
    return (got[0] if got else None), " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ("", {}),
        ("tcp://far=http://127.0.0.1:9422", {NetworkAddress("far", 4022): "http://127.0.0.1:9422"}),
        ("tcp://[::1]:1=a=b.sock", {NetworkAddress("::1", 1): Path("a=b.sock")}),
        (
            "TCP://A=a.sock tcp://b=b.sock tcp://a=c.sock",
            {NetworkAddress("a"): Path("c.sock"), NetworkAddress("b"): Path("b.sock")},
        ),
    ],
)
def test_each_address_has_a_url_or_a_socket(values: str, where: Where) -> None:
    assert (where, "") == given(*values.split())


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("far=admin.sock", "'far' is"),
        ("LOCAL=admin.sock", "'LOCAL' is not the address of an instance"),
        ("tcp://far=", "'tcp://far=' is not like"),
        ("tcp://far=http://h/path", "'http://h/path' is no URL like http://127.0.0.1:9422"),
    ],
)
def test_anything_else_is_wrong_usage_and_says_what_is_right(value: str, problem: str) -> None:
    where, told = given(value)

    assert where is None
    assert problem in told


def test_an_instance_is_named_by_a_file_or_by_a_url() -> None:
    @click.command(cls=Command)
    def ask(socket: Socket) -> None:
        click.echo(repr(socket), nl=False)

    given = ["a.sock", "https://gateway:9422", "http://127.0.0.1:1"]
    got = [CliRunner().invoke(ask, ["--url", one]).stdout for one in given]
    wrong = CliRunner().invoke(ask, ["--socket", "ftp://gateway:9422"])

    assert [repr(Path("a.sock")), *map(repr, given[1:])] == got
    assert (2, True) == (wrong.exit_code, "is neither a file nor a URL like http://127.0.0.1:9422" in wrong.stderr)
