"""
Exit codes, and how an error becomes one.

The table of all codes is in the help of the program; here are those that the commands give by name. 1 is any other
error, 2 is wrong usage, told by click.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from broker.errors import BrokerError, DaemonUnreachableError
from broker.routing.address import NetworkAddress, parse_address

NOT_FOUND, UNREACHABLE, NOT_PERMITTED, HARMFUL, TIMED_OUT, EX_TEMPFAIL, EX_CONFIG = 3, 4, 5, 6, 7, 75, 78
_NOT_PERMITTED_STATUSES = frozenset({401, 403})
_NOT_FOUND_NUMBERS = frozenset({208, 911, 8426, 15151})


def with_exit_code(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what the package raises into one sentence on standard error and the documented exit code."""

    @wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except BrokerError as error:
            fail(str(error), exit_code(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has gone; click ends quietly
            _give_up_output()
            fail(str(error), 1)
        except Exception as error:
            told = _of_file(error)
            if told is None:
                raise  # a bug
            fail(told, 1)

    return wrapper


def _give_up_output() -> None:
    """Drop what standard output did not take, else Python tries again at its end and exits with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: BrokerError) -> int:
    """The exit code of an error: by what it is, or by its number, also when a daemon told it."""
    # See the docstring of broker.cli.main.
    from broker.admin.client import ProblemError, SocketNotPermittedError  # noqa: PLC0415

    if isinstance(error, DaemonUnreachableError):
        return UNREACHABLE
    if isinstance(error, SocketNotPermittedError):
        return NOT_PERMITTED
    number = getattr(error, "number", 0)
    if isinstance(error, ProblemError):
        if error.status in _NOT_PERMITTED_STATUSES:
            return NOT_PERMITTED
        number = error.problem.get("number", 0)
    return NOT_FOUND if number in _NOT_FOUND_NUMBERS else 1


def _of_file(error: Exception) -> str | None:
    """What SQLite says of a database file that cannot be used, and what to do; None for any other error."""
    if "sqlite3" not in sys.modules:  # so none of its errors; importing it takes a while
        return None
    import sqlite3  # noqa: PLC0415

    from broker.store.sqlite.transaction import is_about_file, sentence  # noqa: PLC0415

    return sentence(error) if isinstance(error, sqlite3.DatabaseError) and is_about_file(error) else None


def fail(text: str, code: int) -> NoReturn:
    """End the program with a sentence on standard error."""
    click.echo(text, err=True)
    sys.exit(code)


# --- neighbour ---
# Where other instances can be asked, as commands that follow a message are told.


Where = Mapping[NetworkAddress, Path | str]


def _read_where(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Where:
    """ADDRESS=WHERE, each as an address and the URL or socket file of an admin API."""
    found: dict[NetworkAddress, Path | str] = {}
    for text in values:
        from broker.admin.client import AdminClient  # noqa: PLC0415

        address_text, _, where = text.partition("=")
        if not where:
            raise click.BadParameter(f"{text!r} is not like tcp://gateway-b:4022=http://127.0.0.1:9422")
        try:
            address = parse_address(address_text)
            found_at = where if where.startswith(("http:", "https:")) else Path(where)
            AdminClient(found_at)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        if not isinstance(address, NetworkAddress):
            raise click.BadParameter(f"{text!r} names no instance: {address} is no address of one")
        found[address] = found_at
    return found


where_option = click.option(
    "--admin",
    "where",
    multiple=True,
    metavar="ADDRESS=WHERE",
    callback=_read_where,
    help="The next instance at ADDRESS is asked at this URL or socket file; else at port 9422 of its host.",
)


# --- option ---
# What the commands' help and usage have in common: options of several commands, and examples at the end.


_Command = TypeVar("_Command", bound=click.Command)

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, readable=False),  # whoever reads it says so when it cannot be read, with its code
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file; else /etc/broker/broker.toml, when it is there.",
)
configs_option = click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path, readable=False),  # whoever reads it says so when it cannot be read, with its code
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file; several times for several instances.",
)

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that counts more than file and environment: endpoint.max_hops=4; several times for several.",
)


class _WhereType(click.ParamType["Path | str"]):
    """The file of an admin socket, or the URL of an admin port."""

    name = "file or URL"

    def convert(
        self, value: Path | str, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path | str:
        """A URL as it is, a path as a path."""
        if isinstance(value, Path) or value.startswith(("http://", "https://")):
            return value
        if "://" in value:
            problem = f"{value!r} is neither a file nor a URL like http://127.0.0.1:9422 or https://gateway:9422"
            self.fail(problem, parameter, context)
        return Path(value)


socket_option = click.option(
    "--socket",
    "--url",
    "socket",
    type=_WhereType(),
    help="Admin socket of the instance, or URL of its admin port; else BROKER_ADMIN_URL, else the configuration's.",
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
database_option = click.option(
    "-d", "--database", "database", required=True, help="A database of the configuration, or the path of its file."
)


def examples(text: str) -> Callable[[_Command], _Command]:
    """Two examples at the end of the help, one a line; stands above `click.command`."""

    def add(command: _Command) -> _Command:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())
        return command

    return add


def confirm(question: str) -> None:
    """
    Ask a person at a terminal; without one it has to be said beforehand.

    Raises:
        click.UsageError: nobody could be asked.
        click.Abort: the answer is no.
    """
    if not sys.stdin.isatty():
        raise click.UsageError("something would be lost: say --yes, or look first with --dry-run")
    click.confirm(question, abort=True, err=True)
