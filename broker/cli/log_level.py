"""The command that has a running instance log more, or less, for a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from broker.cli.access import admin_client
from broker.cli.exit_code import with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json
from broker.control.quantity import parse_duration, render_duration

SECONDS_MAX = 86_400.0  # as `broker.observe.log_level` has it, which is slow to import
LEVELS = ("debug", "info", "warning", "error")
RESET = "reset"


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, of which an instance takes as many as it says here."""
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not 0 < seconds <= SECONDS_MAX:
            longest = render_duration(SECONDS_MAX)
            self.fail(f"{value!r} is not between 0s and {longest}; for good, set observe.log_level", param, ctx)
        return seconds


@examples("""
broker log-level debug --component net --for 10m
broker log-level reset --component net
""")
@click.command("log-level")
@click.argument("level", type=click.Choice([*LEVELS, RESET]), required=False)
@click.option("--component", default="", help="A part of the program, as `component` in its lines; else all.")
@click.option("--for", "seconds", type=_Duration(), default="15m", show_default=True, help="When it ends by itself.")
@config_option
@socket_option
@output_option
@with_exit_code
def log_level(
    level: str | None, component: str, *, seconds: float, config: Path | None, socket: Path | str | None, output: str
) -> None:
    """
    Have an instance log more or less for a time.

    Without LEVEL, show the levels in force. `reset` ends what was given before its time is up. Exit codes: 0 changed or
    shown, 1 there is no such component, 4 daemon unreachable, 5 not permitted.
    """
    client = admin_client(config, socket)
    if level is None:
        levels = client.get("/v1/log-level")
    else:
        asked = {"component": component, "level": None if level == RESET else level, "seconds": seconds}
        levels = client.request("POST", "/v1/log-level", asked)
    if output == "json":
        show_json(levels)
        return
    click.echo(f"configured: {levels['configured']}")
    for one in levels["special"]:
        click.echo(f"{one['component'] or 'all'}: {one['level']} until {one['until']}")
