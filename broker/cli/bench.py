"""The command that measures this installation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from broker.bench import report, result, suite
from broker.cli.exit_code import with_exit_code
from broker.cli.option import examples, output_option
from broker.cli.output import show_json


@examples("""
broker bench forwarding --full --save figures.json --compare figures-of-last-week.json
broker bench dialogs -o json
""")
@click.command()
@click.argument("names", nargs=-1, type=click.Choice(tuple(suite.BENCHES)), metavar="[SUITE]...")
@click.option("--full", is_flag=True, help="Every size, rate and number of destinations and connections; ten minutes.")
@click.option(
    "--compare", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Figures of an earlier run."
)
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Where to keep the figures, as JSON.")
@output_option
@with_exit_code
def bench(names: tuple[str, ...], compare: Path | None, save: Path | None, output: str, *, full: bool) -> None:
    """
    Measure this installation, and compare with an earlier run.

    SUITE is forwarding (a gateway beside a relay of bytes; needs a C compiler for the load generator) or dialogs
    (durable messages from one application to another); both when none is named: two minutes, on two cores that should
    have nothing else to do. Prints figures with machine and versions; compares with an earlier run by ratios to a
    yardstick in the same run.

    Exit codes: 0 measured, whatever the figures say; 1 not.
    """
    earlier = result.load(compare) if compare is not None else None
    benches = {name: suite.BENCHES[name] for name in names or suite.BENCHES}
    told = suite.run(benches, is_full=full, tell=lambda what: click.echo(what, err=True))
    if save is not None:
        result.save(told, save)
    changes = result.compare(told.rows, earlier.rows) if earlier is not None else []
    if output == "json":
        verdicts = [{"row": change.row.key, "verdict": change.verdict} for change in changes]
        show_json({**asdict(told), "changes": verdicts})
    else:
        report.show(told)
        if earlier is not None:
            report.show_changes(changes, earlier)
