"""`python -m tests.support.histories`: make a history to try the pipeline on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tests.support.histories.history import generate
from tests.support.histories.world import Scenario

_share = click.FloatRange(0, 1)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--messages", type=click.IntRange(min=1), required=True, help="Messages over all dialogs, exactly.")
@click.option("--instances", type=click.IntRange(min=3), default=12, show_default=True, help="A third are gateways.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same one, the same files.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), default=24.0, show_default=True, help="How long.")
@click.option("--skew", "hot_share", type=_share, default=0.0, help="Share of all messages that one dialog has.")
@click.option("--sample", type=_share, default=1.0, help="Share of dialogs that are journalled.")
@click.option("--clocks-apart", type=click.FloatRange(min=0), default=0.0, help="Seconds; every third clock is wrong.")
@click.option("--late", "late_share", type=_share, default=0.0, help="Share of files of which some rows follow later.")
@click.option("--doubled", type=_share, default=0.0, help="Share of the duplicates that are delivered once more.")
@click.option(
    "--bad-files", "has_bad_files", is_flag=True, help="Add copies, a truncated and a foreign file, and other versions."
)
def main(directory: Path, **asked: Any) -> None:
    """
    Write the journals of made-up instances into DIRECTORY, and what is true of them into DIRECTORY/_truth.

    Resends, duplicates, drops, loops, failovers and gateways that stop included. Three million messages make about
    twenty million records.
    """
    counts = generate(directory, Scenario(**asked))
    click.echo(", ".join(f"{count:,} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main(prog_name="histories")
