"""The command that measures this installation."""

from __future__ import annotations

from pathlib import Path

import click

from broker.cli.exit_code import with_exit_code
from broker.cli.option import examples, output_option
from broker.cli.output import show_json

NAMES = ("codec", "forwarding", "permissions", "dialogs", "mirrors", "journal")
WHEN_NAMED = "pipeline"  # it needs engines that an installation need not have
METAVAR = f"[{'|'.join((*NAMES, WHEN_NAMED))}]..."


@examples("""
broker bench
broker bench forwarding --full --save figures.json --compare figures-of-last-week.json
""")
@click.command()
@click.argument("names", nargs=-1, type=click.Choice((*NAMES, WHEN_NAMED)), metavar=METAVAR)
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

    Two minutes, on two cores that should have nothing else to do. Prints figures with machine and versions; compares
    with an earlier run by ratios to a yardstick in the same run. The load generator is compiled when there is a C
    compiler. `pipeline` is measured when it is named: it needs Spark, DuckDB and Polars. Exit codes: 0 measured,
    whatever the figures say; 1 not.
    """
    from dataclasses import asdict  # noqa: PLC0415 - see the docstring of broker.cli.group

    from broker.bench import report, result, suite  # noqa: PLC0415

    earlier = result.load(compare) if compare is not None else None
    told = suite.run(names or NAMES, is_full=full, tell=lambda what: click.echo(what, err=True))
    if save is not None:
        result.save(told, save)
    changes = result.compare(told.rows, earlier.rows) if earlier is not None else []
    if output == "json":
        verdicts = [{"row": change.row.key, "verdict": change.verdict} for change in changes]
        show_json({**asdict(told), "changes": verdicts})
        return
    report.show(told)
    if earlier is not None:
        report.show_changes(changes, earlier)
