"""
`broker pair`: one token carried from one instance to another, and both know, reach and trust each other.

Each side runs its command beside its own daemon, as a user who may write the files that the configuration names.
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import read_settings
from broker.cli.exit_code import NOT_FOUND, TIMED_OUT, fail, with_exit_code
from broker.cli.option import config_option, confirm, examples, output_option
from broker.cli.output import show_json
from broker.cli.pipeline import Duration
from broker.errors import PairingError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from collections.abc import Coroutine

    from broker.admin.client import AdminClient
    from broker.admin.meeting import Invitation
    from broker.admin.pairing import Line
    from broker.control.config import Settings
    from broker.control.pairing import Side
    from broker.routing.address import NetworkAddress
    from broker.security.pairing import Offer, Token

EXPIRES = "15m"
_SECRET_BYTES = 32
_STANDARD_INPUT = "-"

_MADE = {
    "route": "SELECT name FROM sys.routes",
    "binding": "SELECT name FROM sys.remote_service_bindings",
}
_NOT_PAIRED = (
    "not paired: once that is put right, begin again with a new token; what was changed here, broker pair remove "
    "takes back"
)

_service_option = click.option("--service", required=True, metavar="NAME", help="The service of this side.")
_database_option = click.option("-d", "--database", help="Where it is; else the only database.")
_address_option = click.option(
    "--address", metavar="tcp://HOST:PORT", help="Where the other side reaches this endpoint; else endpoint.advertise."
)


@examples("""
broker pair invite -c orders.toml --service //shop/Orders
broker pair accept TOKEN -c billing.toml --service //shop/Billing
""")
@click.group()
def pair() -> None:
    """
    Let two instances know, reach and trust each other.

    Exit codes: as each of its commands tells.
    """


@examples("""
broker pair invite -c orders.toml --service //shop/Orders
broker pair invite -c orders.toml --service //shop/Orders --address tcp://orders.example:4022 --listen 0.0.0.0:4023
""")
@pair.command()
@config_option
@_service_option
@_database_option
@_address_option
@click.option("--listen", metavar="HOST:PORT", help="Where to wait for the other side; else a free port.")
@click.option("--expires", type=Duration(), default=EXPIRES, show_default=True, help="How long the token is good.")
@output_option
@with_exit_code
def invite(
    config: Path | None, service: str, output: str, listen: str | None, expires: timedelta, **where: Any
) -> None:
    """
    Print a token for the other side, and wait for it.

    The token is good once; it is a secret until then. Both commands exchange certificates, make routes, permissions and
    bindings on both sides, and send a sealed message there and back. Exit codes: 0 every check is good, 1 one is not or
    something is missing, 4 daemon unreachable, 7 nobody came in time.
    """
    from broker.admin.meeting import invited  # noqa: PLC0415 - see the docstring of broker.cli.group
    from broker.control.pairing import own_offer  # noqa: PLC0415

    side, client = _side(config, service, **where)
    offer = own_offer(side)
    invitation = _invitation(side, listen, expires.total_seconds())
    shown = _Shown(output)

    def tell(port: int) -> None:
        token = _token(side, offer, invitation, port)
        click.echo(token if output == "table" else json.dumps({"token": token}))
        until = datetime.now(UTC) + expires
        click.echo(f"waiting until {until:%Y-%m-%d %H:%M:%S} UTC for: broker pair accept TOKEN ...", err=True)

    def warn(stranger: str) -> None:
        click.echo(f"turned away {stranger}", err=True)

    async def run() -> bool:
        async with invited(invitation, offer, on_waiting=tell, on_stranger=warn) as (channel, partner):
            return await _pair(side, client, channel, partner, shown, is_inviting=True)

    begun = time.monotonic()
    try:
        is_good = _run(run())
    except PairingError as error:
        fail(str(error), TIMED_OUT if time.monotonic() - begun >= expires.total_seconds() and not shown.lines else 1)
    _finish(shown, is_good=is_good)


@examples("""
broker pair accept TOKEN -c billing.toml --service //shop/Billing
broker pair accept TOKEN -c billing.toml --service //shop/Billing --address tcp://billing.example:4022
""")
@pair.command()
@config_option
@_service_option
@_database_option
@_address_option
@output_option
@click.argument("token")
@with_exit_code
def accept(config: Path | None, token: str, service: str, output: str, **where: Any) -> None:
    """
    Take a token of the other side, and pair.

    TOKEN is what broker pair invite has printed there; - reads it from standard input. Exit codes: 0 every check is
    good, 1 one is not or something is missing, 2 this is no token, 4 daemon unreachable.
    """
    from broker.admin.meeting import accepted  # noqa: PLC0415
    from broker.control.pairing import own_offer  # noqa: PLC0415

    read = _read_token(sys.stdin.read() if token == _STANDARD_INPUT else token)
    side, client = _side(config, service, **where)
    offer = own_offer(side)
    shown = _Shown(output)

    async def run() -> bool:
        async with accepted(read, offer) as (channel, partner):
            return await _pair(side, client, channel, partner, shown, is_inviting=False)

    _finish(shown, is_good=_run(run()))


@examples("""
broker pair remove //shop/Billing -c orders.toml --dry-run
broker pair remove //shop/Billing -c orders.toml --yes
""")
@pair.command()
@config_option
@_database_option
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@click.argument("service", metavar="FAR_SERVICE")
@with_exit_code
def remove(config: Path | None, database: str | None, service: str, output: str, *, dry_run: bool, yes: bool) -> None:
    """
    Take back what pairing made here for a service of the other side.

    The route, the binding, the permissions that no other script gives as well, the scripts, and both certificates; the
    other side keeps its own until somebody says so there. Exit codes: 0 done, 1 not confirmed or refused, 3 not paired
    with it, 4 daemon unreachable.
    """
    from broker.admin.client import AdminClient  # noqa: PLC0415
    from broker.control.unpairing import removal  # noqa: PLC0415

    settings = read_settings(config)
    name = _database(settings, database)
    client = AdminClient(settings.admin.socket)
    present = {(kind, row[0]) for kind, question in _MADE.items() for row in client.sql(question, name)["rows"]}
    try:
        gone = removal(settings, name, service, present=present)
    except PairingError as error:
        fail(str(error), NOT_FOUND)
    statements, files = gone.script.splitlines(), [str(path) for path in gone.files]
    if not (dry_run or yes):
        click.echo("\n".join([*statements, *(f"remove {file}" for file in files)]), err=True)
        confirm(f"take back the pairing with {service}?")
    if not dry_run:
        client.sql(gone.script, name)
        for path in gone.files:
            path.unlink(missing_ok=True)
    if output == "json":
        show_json({"is_removed": not dry_run, "statements": statements, "files": files})
    else:
        would = "would be " if dry_run else ""
        for line in [*(f"{would}said: {one}" for one in statements), *(f"{would}removed: {file}" for file in files)]:
            click.echo(line)


# --- this side ----------------------------------------------------------------------------------------------


def _side(config: Path | None, service: str, *, database: str | None, address: str | None) -> tuple[Side, AdminClient]:
    """This side, whose daemon runs and whose database has the service."""
    from broker.admin.client import AdminClient  # noqa: PLC0415
    from broker.control.pairing import Side, service_missing  # noqa: PLC0415

    settings = read_settings(config)
    name = _database(settings, database)
    side = Side(settings, name, service, _address(settings, address))
    client = AdminClient(settings.admin.socket)
    known = [row[0] for row in client.sql("SELECT name FROM sys.services", name)["rows"]]
    if service not in known:
        raise service_missing(side, known)
    return side, client


def _database(settings: Settings, database: str | None) -> str:
    """The one that was named, else the only one."""
    name = database or next(iter(settings.databases), None)
    if name is None or name not in settings.databases or (database is None and len(settings.databases) > 1):
        raise click.UsageError(
            f"name the --database of the service: {', '.join(settings.databases) or 'there is none'}"
        )
    return name


def _address(settings: Settings, text: str | None) -> NetworkAddress:
    from broker.routing.address import NetworkAddress, parse_address  # noqa: PLC0415

    if text is None and settings.endpoint.advertise:
        return settings.endpoint.advertise[0]
    try:
        found = parse_address(text or "")
    except ValueError as error:
        hint = str(error) if text else "say --address tcp://HOST:PORT, or set endpoint.advertise"
        raise click.UsageError(f"where does the other side reach this endpoint? {hint}") from None
    if not isinstance(found, NetworkAddress):
        raise click.UsageError(f"{text} is no address that another machine could dial")
    return found


def _invitation(side: Side, listen: str | None, seconds: float) -> Invitation:
    from broker.admin.meeting import Invitation  # noqa: PLC0415
    from broker.control.listen import ListenAddress, parse_listen  # noqa: PLC0415

    endpoint = side.settings.endpoint
    assert endpoint.certificate is not None
    assert endpoint.private_key is not None
    own = side.address.host
    every = "::" if ":" in own else "0.0.0.0"  # noqa: S104 - told
    host, port = (own if ListenAddress(own, 0).is_loopback else every), 0
    if listen is not None:
        try:
            found = parse_listen(listen)
        except ValueError as error:
            raise click.UsageError(f"--listen: {error}") from None
        host, port = found.host, found.port
    return Invitation(
        host, port, endpoint.certificate, endpoint.private_key, secrets.token_bytes(_SECRET_BYTES), seconds
    )


def _token(side: Side, offer: Offer, invitation: Invitation, port: int) -> str:
    from broker.security.pairing import Token, encode_token, partner_of  # noqa: PLC0415

    own = partner_of(offer)
    return encode_token(
        Token(
            host=side.address.host,
            port=port,
            address=str(side.address),
            certificate=own.certificate,
            identity=own.identity.fingerprint,
            secret=invitation.secret,
            expires_at=int(time.time() + invitation.seconds),
        )
    )


def _read_token(text: str) -> Token:
    from broker.security.pairing import TokenError, decode_token  # noqa: PLC0415

    try:
        token = decode_token(text)
    except TokenError as error:
        raise click.UsageError(str(error)) from None
    if token.expires_at <= time.time():
        ended = datetime.fromtimestamp(token.expires_at, UTC)
        raise PairingError(f"the token has expired at {ended:%Y-%m-%d %H:%M:%S} UTC: ask for a new one")
    return token


def _run(work: Coroutine[Any, Any, bool]) -> bool:
    """Do it; SIGTERM ends it as Ctrl-C does, so that a trial is cleared away."""
    import asyncio  # noqa: PLC0415

    async def until_told() -> bool:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(until_told())
    except asyncio.CancelledError:
        fail("ended before it was done", 1)


async def _pair(
    side: Side, client: AdminClient, channel: Any, partner: Any, shown: _Shown, *, is_inviting: bool
) -> bool:
    from broker.admin.pairing import Line, Pairing  # noqa: PLC0415

    who = f"{partner.endpoint.name} with its database {partner.identity.who.name} at {partner.address}"
    shown(side.settings.instance.name, Line("token", is_good=True, told=f"proved by both; the other side is {who}"))
    return await Pairing(side, partner, channel, client, is_inviting, shown).run()


# --- what is printed ----------------------------------------------------------------------------------------


class _Shown:
    """Lines as they come, or all of them at the end as JSON. Shape: `lines` the instance and what it saw."""

    def __init__(self, output: str) -> None:
        self.lines: list[tuple[str, Line]] = []
        self.output = output

    def __call__(self, instance: str, line: Line) -> None:
        self.lines.append((instance, line))
        if self.output == "table":
            from broker.observe.glance import readable  # noqa: PLC0415

            click.echo(readable(f"[{'+' if line.is_good else '-'}] {instance}: {line.check}: {line.told}"))


def _finish(shown: _Shown, *, is_good: bool) -> None:
    if shown.output == "json":
        checks = [
            {"instance": instance, "check": line.check, "is_good": line.is_good, "told": line.told}
            for instance, line in shown.lines
        ]
        show_json({"is_paired": is_good, "checks": checks})
    else:
        click.echo("paired" if is_good else _NOT_PAIRED)
    sys.exit(0 if is_good else 1)
