"""Where other instances can be asked, as commands that follow a message are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from broker.routing.address import NetworkAddress, parse_address

Where = Mapping[NetworkAddress, Path | str]


def _read_where(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Where:
    """ADDRESS=WHERE, each as an address and the URL or socket file of an admin API."""
    found: dict[NetworkAddress, Path | str] = {}
    for text in values:
        from broker.admin.client import AdminClient  # noqa: PLC0415 - see the docstring of broker.cli.group

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
