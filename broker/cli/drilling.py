"""`broker certs drill`: a day in the calendar, played before it comes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import admin_client, read_settings
from broker.cli.exit_code import HARMFUL, with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json, show_rows
from broker.cli.pipeline import Instant
from broker.errors import DaemonUnreachableError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.control.drill import Break, Peer

_CONNECTIONS = "SELECT * FROM sys.dm_broker_connections"


@examples("""
broker certs drill -c config/gateway.toml --at 2027-03-01
broker certs drill -c config/gateway.toml --at 2027-03-01T06:00 -o json
""")
@click.command()
@config_option
@socket_option
@click.option("--at", type=Instant(), metavar="DATE", required=True, help="The day or time to play, UTC.")
@output_option
@with_exit_code
def drill(config: Path | None, socket: Path | str | None, at: datetime, output: str) -> None:
    """
    Tell what would break on a day.

    Looks at every certificate that the configuration names and, where the instance runs, at those of the peers that are
    connected; changes nothing. Exit codes: 0 nothing would break, 1 a file cannot be used, 6 something would.
    """
    from broker.control import drill as play  # noqa: PLC0415 - see the docstring of broker.cli.group
    from broker.observe.glance import readable  # noqa: PLC0415

    now, at = datetime.now(UTC), at.astimezone(UTC)
    settings = read_settings(config)
    peers = _peers(config, socket)
    found = play.drill(settings, peers or [], now=now, at=at)
    breaks, old = [one for one in found if not one.is_old], [one for one in found if one.is_old]
    if output == "json":
        rows = {"breaks": [_row(one) for one in breaks], "already_over": [_row(one) for one in old]}
        show_json({"at": at.isoformat(), "is_running": peers is not None, **rows})
    else:
        if peers is None:
            click.echo("the instance does not run: only its files are looked at", err=True)
        if breaks:
            show_rows([_row(one) for one in breaks], output)
        for one in old:
            told = f"{one.path}: {one.certificate.subject} is over since {one.certificate.ends:%Y-%m-%d}"
            click.echo(readable(told), err=True)
        click.echo(f"{len(breaks) or 'nothing'} would break at {at:%Y-%m-%d %H:%M} UTC")
    if breaks:
        sys.exit(HARMFUL)


def _peers(config: Path | None, socket: Path | str | None) -> list[Peer] | None:
    """Those that are connected; None when nobody can be asked."""
    from broker.control.drill import connected_peers  # noqa: PLC0415

    try:
        answer = admin_client(config, socket).sql(_CONNECTIONS)
    except DaemonUnreachableError:
        return None
    return connected_peers(dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"])


def _row(one: Break) -> dict[str, Any]:
    return {
        "ends": f"{one.certificate.ends:%Y-%m-%d %H:%M:%S}",
        "setting": one.setting,
        "file": one.path,
        "subject": one.certificate.subject,
        "for": str(one.certificate.use),
        "breaks": one.what,
        "whom": ", ".join(one.whom),
        "fingerprint": one.certificate.fingerprint,
    }
