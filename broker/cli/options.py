"""Options, types of values, and classes of commands that several modules use; and the question before a loss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent, indent
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import click

from broker.admin.client import AdminClient
from broker.cli.access import read_settings
from broker.config.units import parse_duration
from broker.routing.address import NetworkAddress, parse_address

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
INPUT = click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True)  # a file, or - for standard input
PATH = click.Path(path_type=Path)
DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)
OUTPUT_DIRECTORY = click.Path(path_type=Path, file_okay=False)  # may be made
UNREAD = click.Path(path_type=Path, readable=False)  # the reader reports it with its own code
FORMATS = ("table", "json", "jsonl", "csv")  # of rows
DURATION_MAX = timedelta(days=36500)
_T = TypeVar("_T")


class Command(click.Command):
    """
    A command whose docstring ends with `Examples:`, which its help shows after the options.

    An option that several commands have is the type of an argument of its function; it comes before the others.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        text, _, lines = cleandoc(given["help"] or "").partition("\nExamples:\n")
        epilog = f"\b\nExamples:\n{indent(dedent(lines), '  ')}"
        types = get_type_hints(given["callback"], include_extras=True).values()
        shared = [parameter for one in types for parameter in getattr(one, "__metadata__", ())]
        more = {"help": text, "epilog": epilog, "params": [*shared, *given["params"]]}
        super().__init__(*args, **given | more)


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command


def copy_command(command: click.Command, name: str, *, new: str) -> click.Command:
    """The command under an earlier name, kept for a release: help does not list it, and a warning names the new one."""
    old = copy(command)
    old.name, old.hidden, old.deprecated = name, True, f"Use {new} instead."
    return old


class Parsed(click.ParamType[_T]):
    """
    A kind of values that a function reads from texts.

    Args:
        name: The word that help shows for a value.
        read: Raises ValueError with a sentence for a text that is wrong.
    """

    def __init__(self, name: str, read: Callable[[str], _T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; one that is not a text was read before."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def network_address(text: str) -> NetworkAddress:
    """
    The address of an instance.

    Raises:
        ValueError: it is not one.
    """
    address = parse_address(text)
    if not isinstance(address, NetworkAddress):
        raise ValueError(f"{text!r} is not the address of an instance: write tcp://host:port")  # noqa: TRY004 - a text
    return address


def _read_where(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Where:
    """Read ADDRESS=WHERE: addresses, and the URL or socket file of an admin API for each."""
    found: dict[NetworkAddress, Path | str] = {}
    for text in values:
        address, _, where = text.partition("=")
        if not where:
            raise click.BadParameter(f"{text!r} is not like tcp://gateway-b:4022=http://127.0.0.1:9422")
        try:
            found_at = where if where.startswith(("http:", "https:")) else Path(where)
            AdminClient(found_at)
            found[network_address(address)] = found_at
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return found


def _where(text: str) -> Path | str:
    """The file of an admin socket, or the URL of an admin port as it is."""
    if text.startswith(("http://", "https://")):
        return text
    if "://" in text:
        raise ValueError(f"{text!r} is neither a file nor a URL like http://127.0.0.1:9422 or https://gateway:9422")
    return Path(text)


def _duration(text: str) -> timedelta:
    """Seconds, or a number with a unit: 90, 30s, 15m, 1h, 1d."""
    try:
        seconds = parse_duration(text if text[-1:].isalpha() else f"{text}s")
    except ValueError:
        raise ValueError(f"invalid duration {text!r}: write 90, 30s, 15m, 1h or 1d") from None
    if seconds > DURATION_MAX.total_seconds():
        raise ValueError(f"{text!r} is too long; {DURATION_MAX.days}d is the longest")
    return timedelta(seconds=seconds)


DURATION = Parsed("duration", _duration)


def _only_database(context: click.Context, _: click.Parameter, database: str | None) -> str | None:
    """The named database, or the only one of the configuration."""
    if database is not None or context.resilient_parsing:
        return database
    known = list(read_settings(context.params.get("config")).databases)
    if len(known) != 1:
        raise click.UsageError(f"name the database with -d: {', '.join(known) or 'the path of its file'}")
    return known[0]


def _config(name: str, more: str) -> click.Option:
    return click.Option(
        ("-c", "--config", name),
        multiple=name == "configs",
        type=UNREAD,
        envvar="BROKER_CONFIG",
        show_envvar=True,
        help=f"Configuration file; {more}.",
    )


def _output(*formats: str) -> click.Option:
    choice = click.Choice(formats)
    return click.Option(("-o", "--output"), type=choice, default="table", help="Output format.")


CONFIG = _config("config", "by default /etc/broker/broker.toml, if it exists")
OUTPUT = _output("table", "json")
YES = click.Option(("--yes",), is_flag=True, help="Do not ask.")
DATABASE = click.Option(
    ("-d", "--database"),
    callback=_only_database,
    help="A database of the configuration, or the path of its file; by default the only one of the configuration.",
)

Config: TypeAlias = Annotated[Path | None, CONFIG]
Configs: TypeAlias = Annotated[tuple[Path, ...], _config("configs", "several times for several instances")]
Output: TypeAlias = Annotated[str, OUTPUT]
RowsOutput: TypeAlias = Annotated[str, _output(*FORMATS)]
Yes: TypeAlias = Annotated[bool, YES]
OneDatabase: TypeAlias = Annotated[str, DATABASE]
Overrides: TypeAlias = Annotated[
    tuple[str, ...],
    click.Option(
        ("--set", "overrides"),
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting that overrides file and environment: endpoint.max_hops=4; several times for several.",
    ),
]
Socket: TypeAlias = Annotated[
    Path | str | None,
    click.Option(
        ("--socket", "--url", "socket"),
        type=Parsed("file or URL", _where),
        help="Admin socket of the instance, or URL of its admin port.  [default: BROKER_ADMIN_URL, then admin.socket]",
    ),
]
Where: TypeAlias = Annotated[
    Mapping[NetworkAddress, Path | str],
    click.Option(
        ("--admin", "where"),
        multiple=True,
        metavar="ADDRESS=WHERE",
        callback=_read_where,
        help="Ask the next instance at ADDRESS by this URL or socket file; by default at port 9422 of its host.",
    ),
]


def confirm(question: str) -> None:
    """
    Ask the person at the terminal.

    Raises:
        click.UsageError: There is no terminal.
        click.Abort: The answer is no.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} confirm it with --yes, or see what it does with --dry-run")
    click.confirm(question, abort=True, err=True)
