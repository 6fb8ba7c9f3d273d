"""The command that measures this installation."""

from __future__ import annotations

from pathlib import Path

import click

from broker.cli.exit_code import fail, with_exit_code
from broker.cli.option import examples, output_option
from broker.cli.output import show_json

NAMES = ("codec", "forwarding", "permissions", "dialogs", "mirrors", "journal")
LASTING = ("overload", "day")  # of which it can be said how long they go on
# The pipeline needs engines that an installation need not have, the others take long.
WHEN_NAMED = ("pipeline", "saturation", "overload", "connections", "open-dialogs", "day")


@examples("""
broker bench forwarding --full --save figures.json --compare figures-of-last-week.json
broker bench overload day --minutes 5 --save load.json
""")
@click.command()
@click.argument("names", nargs=-1, type=click.Choice((*NAMES, *WHEN_NAMED)), metavar="[SUITE]...")
@click.option(
    "--full", is_flag=True, help="Every size, rate and number of destinations and connections; a quarter of an hour."
)
@click.option(
    "--compare", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Figures of an earlier run."
)
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Where to keep the figures, as JSON.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, 1440, min_open=True),
    help="How long overload (10 with --full) and day (60 with --full) go on.",
)
@output_option
@with_exit_code
def bench(
    names: tuple[str, ...], compare: Path | None, save: Path | None, minutes: float | None, output: str, *, full: bool
) -> None:
    """
    Measure this installation, and compare with an earlier run.

    SUITE is codec, forwarding, permissions, dialogs, mirrors or journal; all of them when none is named: two minutes,
    on two cores that should have nothing else to do. Prints figures with machine and versions; compares with an
    earlier run by ratios to a yardstick in the same run. The load generator is compiled when there is a C compiler.

    Others are measured when they are named. `pipeline` needs Spark, DuckDB and Polars. Those of load take a machine to
    themselves: `saturation` finds the knee, the largest offered load of which at least 99 % arrives in time, within
    20 ms of the moment at which it was due through a gateway, within 500 ms from one application to the other.
    `overload` offers three times as much. `connections` has 10,000 idle and 1,000 busy ones, `open-dialogs` 100,000,
    `day` the traffic of a day in an hour; a part of that without --full.

    Exit codes: 0 measured, whatever the figures say; 1 not, or `overload` took more memory than its limit or longer
    than 10 s to recover.
    """
    if minutes is not None and not set(names) & set(LASTING):
        raise click.UsageError(f"--minutes is for {' and '.join(LASTING)}: name one of them")
    from dataclasses import asdict  # noqa: PLC0415 - see the docstring of broker.cli.group

    from broker.bench import report, result, suite  # noqa: PLC0415
    from broker.bench.load import overload  # noqa: PLC0415

    earlier = result.load(compare) if compare is not None else None
    told = suite.run(names or NAMES, is_full=full, minutes=minutes, tell=lambda what: click.echo(what, err=True))
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
    if broken := overload.broken_bounds(told.rows):
        fail("\n".join(broken), 1)
