"""`python -m examples.demo`: play the demo."""

import sys
from pathlib import Path

import click

from .story import run_demo


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(1, 1_000_000),
    default=6000,
    show_default=True,
    help="To the targets, in equal parts on twenty dialogs; as many answers come back.",
)
@click.option("--keep", is_flag=True, help="Leave the instances running until a key is pressed.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where to keep its files; else a temporary one.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default="report.html",
    show_default=True,
    help="Where to leave the pipeline's report on the demo.",
)
@click.option("--no-report", is_flag=True, help="Keep no journal and run no pipeline.")
def main(messages: int, directory: Path | None, report: Path, *, keep: bool, no_report: bool) -> None:
    """
    Play the whole system on loopback, faults included.

    Seven instances, each a process of its own; a gateway is killed and a mirrored pair fails over on the way. At the
    end the pipeline reads the journal that they kept, when it is installed. Exit codes: 0 the ledgers add up and agree,
    1 not.
    """
    if directory is not None and directory.is_dir() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty: name a new directory")
    sys.exit(run_demo(messages=messages, directory=directory, keep=keep, report=None if no_report else report))


if __name__ == "__main__":
    main(prog_name="demo")
