"""`broker token`: makes, lists and revokes the tokens by which programs and people authenticate to the admin API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from broker.cli.access import read_settings
from broker.cli.audit import recording
from broker.cli.options import Config, Group, Parsed, RowsOutput, copy_command
from broker.cli.output import show_rows
from broker.config.admin_access import TOKEN_NAME, new_token, read_tokens, revoke_token, role_of
from broker.config.units import parse_duration

ROLES = ("viewer", "operator", "admin")
LIFETIME = "90d"


def _lifetime(text: str) -> timedelta | None:
    """A duration as in the configuration; None for `never`."""
    try:
        return None if text == "never" else timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        raise ValueError(f"invalid duration {text!r}: write one like 90d or 12h, or never") from None


def _check_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if TOKEN_NAME.fullmatch(name) is None:
        raise click.BadParameter("a name has 1 to 64 letters, digits, dots, hyphens and underscores")
    return name


@click.group(cls=Group)
def token() -> None:
    """
    Make, list and revoke tokens of the admin API.

    The commands work on the token file of the configuration, as the user that runs the instance. A running instance
    applies the change from the next request on.

    Examples:
        broker token create dashboard --role viewer -c config/gateway.toml
        broker token list -c config/gateway.toml
    """


@token.command()
@click.option("--role", type=click.Choice(ROLES), default="viewer", help="Role of the token.")
@click.option(
    "--expires",
    type=Parsed("duration", _lifetime),
    default=LIFETIME,
    help="Lifetime of the token, or never.",
)
@click.argument("name", callback=_check_name)
def create(config: Config, role: str, expires: timedelta | None, name: str) -> None:
    """
    Make a token and print it, once.

    Set it as BROKER_ADMIN_TOKEN, or send it in the header Authorization: Bearer. Only its hash is kept. Exit codes: 1
    the file cannot be used, or the name is taken.

    Examples:
        broker token create ci --role operator --expires 30d -c config/gateway.toml
        broker token create prometheus -c config/gateway.toml > /run/secrets/broker-token
    """
    settings, now = read_settings(config), datetime.now(UTC)
    try:
        expires_at = None if expires is None else now + expires
    except OverflowError:
        raise click.UsageError("that is beyond the calendar: write a shorter time, or never") from None
    path = settings.admin.tokens
    with recording(settings, "NEW TOKEN", target=name):
        secret = new_token(path, name, role_of(role), now=now, expires_at=expires_at)
    click.echo(secret)
    until = "for ever" if expires_at is None else f"until {expires_at:%Y-%m-%d %H:%M} UTC"
    click.echo(f"token {name}: {role}, {until}; it is not shown again", err=True)


token.add_command(copy_command(create, "new", new="broker token create"))


@token.command("list")
def show(config: Config, output: RowsOutput) -> None:
    """
    List the tokens by name.

    Their hashes are not shown. Exit codes: 1 the file cannot be used.

    Examples:
        broker token list -c config/gateway.toml
        broker token list -c config/gateway.toml -o json
    """
    now = datetime.now(UTC)
    rows = [
        {
            "name": one.name,
            "role": one.role.word,
            "made_at": f"{one.made_at:%Y-%m-%d %H:%M:%S}",
            "expires_at": None if one.expires_at is None else f"{one.expires_at:%Y-%m-%d %H:%M:%S}",
            "is_valid": one.is_valid_at(now),
        }
        for one in sorted(read_tokens(read_settings(config).admin.tokens), key=lambda one: one.name)
    ]
    show_rows(rows, output, ["name", "role", "made_at", "expires_at", "is_valid"], empty="there is no token")


@token.command()
@click.argument("name")
def revoke(config: Config, name: str) -> None:
    """
    Revoke a token.

    Requests with it are refused from then on. Exit codes: 1 the file cannot be used, 3 there is no such token.

    Examples:
        broker token revoke ci -c config/gateway.toml
        broker token revoke prometheus -c config/gateway.toml
    """
    settings = read_settings(config)
    with recording(settings, "REVOKE TOKEN", target=name):
        revoke_token(settings.admin.tokens, name)
    click.echo(f"token {name} revoked", err=True)
