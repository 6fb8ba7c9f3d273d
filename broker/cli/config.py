"""`broker config`: shows the settings in force, what a restart would change, and the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from broker.cli.access import admin_client, overrides_from, read_settings
from broker.cli.options import Config, Group, Overrides, RowsOutput, Socket
from broker.cli.output import show_rows
from broker.config.load import in_force
from broker.config.settings import render_schema
from broker.config.toml import render_value


@click.group(cls=Group)
def config() -> None:
    """
    Show the settings in force, their origins, and their schema.

    The order is file, environment, --set; the later wins. Exit codes: 0 shown, 1 the configuration is wrong, 4 daemon
    unreachable.

    Examples:
        broker config show -c config/gateway.toml --origin
        broker config diff -c config/gateway.toml
    """


@config.command()
@click.option("--origin", is_flag=True, help="Also show the origin of each value, and when a change takes effect.")
@click.option("--running", is_flag=True, help="Ask the running instance instead of file and environment.")
def show(config: Config, overrides: Overrides, socket: Socket, output: RowsOutput, **how: bool) -> None:
    """
    Show every key with its value, as it is written in the file.

    Without --running, they are the settings with which an instance would start now. JSON always has the origin.
    Arguments of programs are masked, as they may be secret. Exit codes: 0 shown, 1 the configuration is wrong, 4 daemon
    unreachable.

    Examples:
        broker config show -c config/gateway.toml --origin
        broker config show -c config/gateway.toml --running -o json
    """
    is_running = how["running"] or socket is not None
    if is_running and overrides:
        raise click.UsageError(
            "--set changes what file and environment say, which --running does not show: give one of them"
        )
    rows = _running(config, socket) if is_running else _written(config, overrides)
    if output.startswith("json"):
        show_rows(rows, output)
        return
    columns = ["key", "value", "origin", "reload"] if how["origin"] else ["key", "value"]
    show_rows([{**row, "value": _text(row["value"])} for row in rows], output, columns)


@config.command()
def diff(config: Config, overrides: Overrides, socket: Socket, output: RowsOutput) -> None:
    """
    Compare the running instance with file and environment.

    Prints each key that differs, with both values and when a change of it takes effect. Exit codes: 0 compared, whether
    or not anything differs, 1 the configuration is wrong, 4 daemon unreachable.

    Examples:
        broker config diff -c config/gateway.toml
        broker config diff -c config/gateway.toml --set endpoint.max_hops=4 -o json
    """
    running = {row["key"]: row for row in _running(config, socket)}
    written = {row["key"]: row for row in _written(config, overrides)}
    rows = [
        _difference(key, running.get(key), written.get(key))
        for key in dict.fromkeys([*written, *running])
        if running.get(key, {}).get("value") != written.get(key, {}).get("value")
    ]
    if output != "table" or rows:
        show_rows(rows, output, ["key", "running", "written", "origin", "reload"])
    else:
        click.echo("the running instance has what the configuration says")


@config.command()
def schema() -> None:
    """
    Print the JSON Schema of the configuration, for editors.

    Begin a file with "#:schema ./broker.schema.json" and editors with Taplo complete keys and mark mistakes. Exit
    codes: 0 printed.

    Examples:
        broker config schema > broker.schema.json
        broker config schema | jq .properties.endpoint
    """
    click.echo(render_schema(), nl=False)


def _written(config: Path | None, overrides: tuple[str, ...]) -> list[dict[str, Any]]:
    return list(map(msgspec.to_builtins, in_force(read_settings(config, overrides_from(overrides)))))


def _running(config: Path | None, socket: Path | str | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = admin_client(config, socket).get("/v1/config")["settings"]
    return rows


def _difference(key: str, running: dict[str, Any] | None, written: dict[str, Any] | None) -> dict[str, Any]:
    """The row of one key; a side without its database has no value."""
    known = written or running or {}
    return {
        "key": key,
        "running": "" if running is None else _text(running["value"]),
        "written": "" if written is None else _text(written["value"]),
        "origin": "" if written is None else written["origin"],
        "reload": known["reload"],
    }


def _text(value: Any) -> str:
    return "made once" if value is None else render_value(value)
