"""
`broker partner`: exchanges partner files, by which two instances of different owners trust each other.

The commands run on the machine of the instance, as a user who may write the files of its configuration.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import BinaryIO

import click

from broker.admin.client import AdminClient
from broker.admin.trace import send_rules
from broker.catalog.catalog import MSDB
from broker.catalog.partner import (
    SIZE_MAX,
    BindingRow,
    Partner,
    Plan,
    Present,
    RouteRow,
    export,
    is_sealed,
    plan,
    read_partner,
)
from broker.cli.access import read_settings
from broker.cli.options import Config, Group, Output, Yes, confirm
from broker.cli.output import readable, show_json
from broker.config.settings import Settings
from broker.errors import PartnerFileError
from broker.security.certificate_files import store_files
from broker.security.grants import Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal

_SERVICES = "SELECT name FROM sys.services"
_ROUTES = "SELECT name, remote_service_name, address, mirror_address FROM sys.routes"
_BINDINGS = "SELECT name, remote_service_name, remote_principal_name FROM sys.remote_service_bindings"
_CONNECT = "SELECT grantee_name, state_desc FROM sys.server_permissions"

_database_option = click.option("-d", "--database", help="The database of the services; by default the only one.")


@click.group(cls=Group)
def partner() -> None:
    """
    Exchange partner files, so that two instances trust each other.

    Examples:
        broker partner export -c orders.toml --service //shop/Orders --to //shop/Billing > orders.partner
        broker partner import billing.partner -c orders.toml
    """


@partner.command("export")
@_database_option
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME",
    help="A service of this side; may be given several times. A gateway has none.",
)
@click.option(
    "--to",
    "sends_to",
    multiple=True,
    metavar="NAME",
    help="A service of the other side to which this side sends or answers; may be given several times.",
)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="tcp://HOST:PORT",
    help="Address of this endpoint for the other side; by default endpoint.advertise.",
)
def export_file(
    config: Config,
    database: str | None,
    services: tuple[str, ...],
    sends_to: tuple[str, ...],
    addresses: tuple[str, ...],
) -> None:
    """
    Print the partner file of this instance.

    An instance without a database is a gateway: its file names no services. The file is signed and holds no secret. The
    other side sees the fingerprint on standard error when it imports the file. Exit codes: 0 printed, 1 something is
    missing, 4 daemon unreachable.

    Examples:
        broker partner export -c orders.toml --service //shop/Orders --to //shop/Billing > orders.partner
        broker partner export -c gateway.toml --address tcp://gateway.example:4022 > gateway.partner
    """
    settings = read_settings(config)
    name = _database(settings, database)
    if name is None and (services or sends_to):
        raise click.UsageError("this instance has no database, so it has no services: leave out --service and --to")
    if name is not None and not (services and sends_to):
        raise click.UsageError("name the services: --service of this side, and --to of the other side")
    addresses = addresses or tuple(map(str, settings.endpoint.advertise))
    if not addresses:
        raise click.UsageError("give --address tcp://HOST:PORT, or set endpoint.advertise")
    client = AdminClient(settings.admin.socket)
    known = [row[0] for row in client.sql(_SERVICES, name)["rows"]] if name else []
    for service in services:
        if service not in known:
            hint = f"it has: {', '.join(sorted(known)) or 'none'}"
            raise PartnerFileError(f"the database {name} has no service {service}", hint)
    text = export(settings, name, services, sends_to, addresses)
    click.echo(text, nl=False)
    made = read_partner(text.encode())
    click.echo(f"compare by phone: {made.fingerprint}", err=True)
    if name and not made.database:
        click.echo(f"dialogs will not be sealed: databases.{name}.certificate is not set", err=True)


@partner.command("import")
@_database_option
@click.option("--via", type=click.File("rb"), help="Partner file of the gateway through which the partner is reached.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.argument("file", type=click.File("rb"))
def import_file(
    config: Config,
    database: str | None,
    file: BinaryIO,
    via: BinaryIO | None,
    output: Output,
    *,
    dry_run: bool,
    yes: Yes,
) -> None:
    """
    Show what a partner file changes here, and change it.

    Writes certificates next to those of endpoint.peers and databases.NAME.peers, and runs statements: routes to the
    partner's services, bindings, and permissions for what the partner sends. With --via the gateway is trusted and
    routed to, and the partner's database is sealed to. At a gateway, the partner may connect, and send to the services
    that it names.

    A second import changes nothing; without the same --via it leads the routes past the gateway. Exit codes: 0 done or
    nothing to change, 1 refused or not confirmed, 2 neither --yes nor a terminal, 4 daemon unreachable.

    Examples:
        broker partner import billing.partner -c orders.toml --dry-run
        broker partner import billing.partner --via gateway.partner -c orders.toml --yes
    """
    settings, now = read_settings(config), datetime.now(UTC)
    name = _database(settings, database)
    found = read_partner(file.read(SIZE_MAX + 1))
    gateway = None if via is None else read_partner(via.read(SIZE_MAX + 1))
    client = AdminClient(settings.admin.socket)
    change = plan(settings, name, found, _present(client, settings, name), now=now, via=gateway)
    lines = _shown(settings, name, found, gateway, change)
    is_change = bool(change.files or change.statements)
    if output == "table":
        click.echo("\n".join(map(readable, lines)))
    if change.warning:
        click.echo(readable(change.warning), err=True)
    if is_change and not dry_run:
        if not yes:
            confirm(f"make {found.file.instance} a partner?")
        store_files(change.files, is_replacing=True)
        if change.statements:
            client.sql(change.script, name or MSDB)
    if output == "json":
        show_json(
            {
                "instance": found.file.instance,
                "fingerprint": found.fingerprint,
                "is_changed": is_change and not dry_run,
                "files": list(map(str, change.files)),
                "statements": change.script.splitlines(),
            }
        )
    elif not is_change:
        click.echo("nothing to change")
    elif not dry_run:
        click.echo("done")


def _database(settings: Settings, database: str | None) -> str | None:
    """The named database, or the only one; None at a gateway, which has none."""
    if database is None and not settings.databases:
        return None
    name = database or next(iter(settings.databases), None)
    if name is None or name not in settings.databases or (database is None and len(settings.databases) > 1):
        known = ", ".join(settings.databases) or "there is none"
        raise click.UsageError(f"name the --database of the services: {known}")
    return name


def _present(client: AdminClient, settings: Settings, database: str | None) -> Present:
    def rows(question: str, where: str) -> list[list[str]]:
        found: list[list[str]] = client.sql(question, where)["rows"]
        return found

    rules = [
        (MSDB, PermissionRule(Permission.CONNECT, "*", parse_principal(who), PermissionState(state)))
        for who, state in rows(_CONNECT, MSDB)
    ]
    rules += [(where, rule) for where in filter(None, (MSDB, database)) for rule in send_rules(client, where)]
    return Present(
        services=[(where, row[0]) for where in settings.databases for row in rows(_SERVICES, where)],
        routes=[RouteRow(where, *row) for where in (MSDB, *settings.databases) for row in rows(_ROUTES, where)],
        bindings=[BindingRow(*row) for row in rows(_BINDINGS, database)] if database else [],
        rules=rules,
    )


def _shown(settings: Settings, database: str | None, found: Partner, via: Partner | None, change: Plan) -> list[str]:
    """The partner, the gateway and the changes, one a line."""
    lines = []
    for what, one in (("partner", found), ("gateway", via)):
        if one is not None:
            lines += [
                f"{what} {one.file.instance} at {', '.join(one.file.addresses)}",
                f"certificate of {one.who.name}, valid until {one.endpoint[0].not_valid_after_utc:%Y-%m-%d}",
                f"compare by phone: {one.fingerprint}",
            ]
    if database and not is_sealed(settings, database, found):
        missing = f"databases.{database}.certificate is not set" if found.database else "the file has no [database]"
        lines.append(f"dialogs will not be sealed: {missing}")
    lines += [f"{'replace' if path.exists() else 'write'} {path}" for path in change.files]
    return lines + change.script.splitlines()
