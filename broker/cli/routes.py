"""The group `broker routes`."""

from __future__ import annotations

import click

from broker.cli.option import examples
from broker.cli.planning import plan


@examples("""
broker routes plan new-routes.sql -c config/gateway.toml
broker routes plan new-routes.sql -d orders --through
""")
@click.group()
def routes() -> None:
    """
    Plan a change of routes.

    Exit codes: as its command tells.
    """


routes.add_command(plan)
