"""The command that makes a synthetic history; `broker flows` has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from broker.cli.exit_code import with_exit_code
from broker.cli.option import examples, output_option
from broker.cli.output import show_json

_share = click.FloatRange(0, 1)


@examples("""
broker flows generate history --messages 100000 --instances 12 --seed 1
broker flows generate bad --messages 5000 --instances 8 --seed 2 --hours 2 --skew 0.5 --bad-files
""")
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
@output_option
@with_exit_code
def generate(directory: Path, output: str, **asked: Any) -> None:
    """
    Make a synthetic history, with its truth beside it.

    Journals of many instances, with resends, duplicates, drops, loops, failovers and gateways that stop. What is true
    of it is written into DIRECTORY/_truth. Three million messages make about twenty million records. Exit codes: 1 the
    directory is not empty, or cannot be written; 2 usage.
    """
    from broker.pipeline.synthetic import history as synthetic  # noqa: PLC0415 - see the docstring of broker.cli.group
    from broker.pipeline.synthetic.world import Scenario  # noqa: PLC0415 - likewise

    scenario = Scenario(**asked)
    is_hidden = not sys.stderr.isatty()  # click would print the label alone there
    with click.progressbar(length=scenario.duration, label="generate", file=sys.stderr, hidden=is_hidden) as bar:
        counts = synthetic.generate(directory, scenario, tell=bar.update)
    if output == "json":
        show_json(counts)
        return
    click.echo(", ".join(f"{count:,} {what}" for what, count in counts.items()))
