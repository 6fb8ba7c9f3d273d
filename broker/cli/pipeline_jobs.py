"""The commands of `broker pipeline`, one for each job."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from broker.cli.exit_code import with_exit_code
from broker.cli.option import examples, output_option
from broker.cli.pipeline import Duration, Size, check_installed, common, perform, perform_report

if TYPE_CHECKING:  # pyspark is an extra
    from broker.pipeline.jobs import Options

JOBS = ("paths", "dialogs", "routes", "capacity", "reconcile")

grace_option = click.option(
    "--grace",
    type=Duration(),
    help="What was seen so shortly before the journals end is not lost; 1m for paths, 150s for reconcile.",
)
window_option = click.option("--window", type=Duration(), default="5m", show_default=True, help="Length of a window.")
pool_option = click.option("--pool", type=Size(), help="Size of the pool (message_forward_size), for its headroom.")


@examples("""
broker pipeline paths --flows /var/lib/broker/journal --out results
broker pipeline run --flows journal --out results --from 2026-03-01 --to 2026-03-02
""")
@click.group()
def pipeline() -> None:
    """
    Ask the journals of many instances, with Spark.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.
    """


@examples("""
broker pipeline paths --flows /var/lib/broker/journal --out results
broker pipeline paths --flows /mnt/journals --out /mnt/results --from 2026-03-01T12:00 --to 2026-03-01T13:00 --master spark://head:7077
""")
@pipeline.command()
@common
@grace_option
@output_option
@with_exit_code
def paths(output: str, grace: timedelta | None, **asked: Any) -> None:
    """
    Write the way of each transmission: hops, times, its end.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.
    """
    perform(("paths",), _options(grace=grace), output, **_needing_flows(asked))


@examples("""
broker pipeline dialogs --flows /var/lib/broker/journal --out results
broker pipeline dialogs --flows journal --out results --from 2026-03-01 -o json
""")
@pipeline.command()
@common
@output_option
@with_exit_code
def dialogs(output: str, **asked: Any) -> None:
    """
    Write what each dialog did: messages, resends, how long they took.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.
    """
    perform(("dialogs",), _options(), output, **_needing_flows(asked))


@examples("""
broker pipeline routes --flows /var/lib/broker/journal --out results
broker pipeline routes --flows journal --out results --window 1h --explain
""")
@pipeline.command()
@common
@window_option
@output_option
@with_exit_code
def routes(output: str, window: timedelta, **asked: Any) -> None:
    """
    Write traffic, residence and drops of each route, by window.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.
    """
    perform(("routes",), _options(window=window), output, **_needing_flows(asked))


@examples("""
broker pipeline capacity --flows /var/lib/broker/journal --out results --pool 64MiB
broker pipeline capacity --flows journal --out results --window 1m --driver-memory 4g
""")
@pipeline.command()
@common
@window_option
@pool_option
@output_option
@with_exit_code
def capacity(output: str, window: timedelta, pool: int | None, **asked: Any) -> None:
    """
    Write what each instance held at once, and the pool it needs.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.
    """
    perform(("capacity",), _options(window=window, pool=pool), output, **_needing_flows(asked))


@examples("""
broker pipeline reconcile --flows /var/lib/broker/journal --out results
broker pipeline reconcile --flows journal-a --flows journal-b --out results --grace 5m
""")
@pipeline.command()
@common
@grace_option
@output_option
@with_exit_code
def reconcile(output: str, grace: timedelta | None, **asked: Any) -> None:
    """
    Write the ledger: whether all that was sent arrived, once.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.
    """
    perform(("reconcile",), _options(grace=grace), output, **_needing_flows(asked))


@examples("""
broker pipeline report --flows /var/lib/broker/journal --out results
broker pipeline report --out results
""")
@pipeline.command()
@common
@window_option
@pool_option
@output_option
@with_exit_code
def report(output: str, window: timedelta, pool: int | None, **asked: Any) -> None:
    """
    Write report.html: of journals, or of results that are there.

    With --flows the jobs that it needs run first; without, it is made of what --out has. Exit codes: 0 done, 1 a job or
    Spark failed, or a result is missing, 2 usage, 3 no file of a journal that can be read.
    """
    if asked["is_explain"]:
        raise click.UsageError("the report is made of results: run the jobs so, and then the report without --flows")
    perform_report(JOBS, _options(window=window, pool=pool), output, **asked)


@examples("""
broker pipeline run --flows /var/lib/broker/journal --out results
broker pipeline run paths reconcile --flows journal --out results --from 2026-03-01T12:00 --to 2026-03-01T13:00
""")
@pipeline.command()
@click.argument("jobs", nargs=-1, type=click.Choice(JOBS), metavar="[JOB]...")
@common
@grace_option
@window_option
@pool_option
@output_option
@with_exit_code
def run(output: str, jobs: tuple[str, ...], **asked: Any) -> None:
    """
    Run several jobs in one session; all of them when none is named.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.
    """
    own = {name: asked.pop(name) for name in ("grace", "window", "pool")}
    perform(tuple(dict.fromkeys(jobs)) or JOBS, _options(**own), output, **_needing_flows(asked))


def _options(
    *,
    grace: timedelta | None = None,
    window: timedelta = timedelta(minutes=5),
    pool: int | None = None,
) -> Options:
    check_installed()
    from broker.pipeline.jobs import Options  # noqa: PLC0415 - pyspark is an extra

    seconds = int(window.total_seconds())
    if seconds < 1 or seconds != window.total_seconds():
        raise click.UsageError("--window is whole seconds, one at least")
    return Options(
        grace_seconds=None if grace is None else int(grace.total_seconds()),
        window_seconds=seconds,
        pool_bytes=pool,
    )


def _needing_flows(asked: dict[str, Any]) -> dict[str, Any]:
    if not asked["flows"]:
        raise click.UsageError("which journals: --flows is missing")
    return asked
