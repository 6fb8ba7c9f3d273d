"""
`broker pipeline`: evaluates the journals of many instances with Spark, on this machine or on a cluster.

There is a command for each job. Spark is an extra, and is imported when a job runs.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from broker.advice import to_install
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import DURATION, OUTPUT, OUTPUT_DIRECTORY, PATH, Group, Parsed
from broker.cli.output import show_json, show_rows
from broker.config.units import parse_size
from broker.errors import NoJournalError, PipelineError

EARLIEST, LATEST = datetime(1971, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def _size(text: str) -> int:
    """Bytes, or a number with a unit: 1048576, 64MiB."""
    with suppress(ValueError):
        if size := parse_size(text.replace(" ", "")):
            return size
    raise ValueError(f"{text!r} is not a size; write bytes, or 64MiB")


def _instant(text: str) -> datetime:
    """2026-03-01, or 2026-03-01T12:30, UTC unless it has a zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2026-03-01 or 2026-03-01T12:30") from None
    if not EARLIEST < found.replace(tzinfo=UTC) < LATEST:  # with a margin for zones and windows
        raise ValueError(f"{text!r} is too far away; write a time from {EARLIEST.year} to {LATEST.year}")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


INSTANT, SIZE = Parsed("instant", _instant), Parsed("size", _size)


_COMMON = (  # of every job
    click.Option(("--journal",), multiple=True, type=PATH, help="Directory of a journal; several times for several."),
    click.Option(("--flows",), multiple=True, type=PATH, hidden=True, deprecated="Use --journal instead."),
    click.Option(("--out",), type=OUTPUT_DIRECTORY, help="Directory for the results."),
    click.Option(("--master",), default="local[*]", help="Spark's master: this machine, or a cluster."),
    click.Option(("--conf",), multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
    click.Option(
        ("--driver-memory",), metavar="SIZE", help="Heap, like 4g; by default half of the memory, 1 to 8 GiB."
    ),
    click.Option(("--from", "first"), type=INSTANT, help="Only visits from then on."),
    click.Option(("--to", "end"), type=INSTANT, help="Only visits before then."),
    OUTPUT,
    click.Option(("--explain", "is_explain"), is_flag=True, help="Print the Spark plan, and run nothing."),
)
JOBS = ("paths", "dialogs", "routes", "capacity", "reconcile")

_grace_option = click.option(
    "--grace",
    type=DURATION,
    help="Count nothing as lost within this time before the end of the journals; 1m for paths, 150s for reconcile.",
)
_window_option = click.option(
    "--window", type=DURATION, help="Length of a window; chosen by the length of the history if not given."
)
_pool_option = click.option("--pool", type=SIZE, help="Size of the pool (message_forward_size), for its headroom.")


@click.group(cls=Group)
def pipeline() -> None:
    """
    Evaluate the journals of many instances, with Spark.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline paths --journal /var/lib/broker/journal --out results
        broker pipeline run --journal journal --out results --from 2026-03-01 --to 2026-03-02
    """


@pipeline.command(params=[*_COMMON])
@_grace_option
def paths(**options: Any) -> None:
    """
    Write the path of each transmission: hops, times, its end.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline paths --journal /var/lib/broker/journal --out results
        broker pipeline paths --journal /mnt/journals --out /mnt/results --from 2026-03-01 --master spark://head:7077
    """
    _run_jobs(("paths",), **options)


@pipeline.command(params=[*_COMMON])
def dialogs(**options: Any) -> None:
    """
    Write what each dialog did: messages, resends, how long they took.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline dialogs --journal /var/lib/broker/journal --out results
        broker pipeline dialogs --journal journal --out results --from 2026-03-01 -o json
    """
    _run_jobs(("dialogs",), **options)


@pipeline.command(params=[*_COMMON])
@_window_option
def routes(**options: Any) -> None:
    """
    Write traffic, residence and drops of each route, by window.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline routes --journal /var/lib/broker/journal --out results
        broker pipeline routes --journal journal --out results --window 1h --explain
    """
    _run_jobs(("routes",), **options)


@pipeline.command(params=[*_COMMON])
@_window_option
@_pool_option
def capacity(**options: Any) -> None:
    """
    Write what each instance held at once, and the pool it needs.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline capacity --journal /var/lib/broker/journal --out results --pool 64MiB
        broker pipeline capacity --journal journal --out results --window 1m --driver-memory 4g
    """
    _run_jobs(("capacity",), **options)


@pipeline.command(params=[*_COMMON])
@_grace_option
def reconcile(**options: Any) -> None:
    """
    Write the ledger: whether all that was sent arrived, once.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline reconcile --journal /var/lib/broker/journal --out results
        broker pipeline reconcile --journal journal-a --journal journal-b --out results --grace 5m
    """
    _run_jobs(("reconcile",), **options)


@pipeline.command(params=[*_COMMON])
@_grace_option
@_window_option
@_pool_option
def report(**options: Any) -> None:
    """
    Write report.html, from journals or from earlier results.

    With --journal, the jobs that it needs run first; without, it reads the results in --out. Exit codes: 0 done, 1 a
    job or Spark failed, or a result is missing, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline report --journal /var/lib/broker/journal --out results
        broker pipeline report --out results
    """
    if options["is_explain"]:
        raise click.UsageError("a report has no plan of Spark: use --explain with its jobs")
    _run_jobs(JOBS, is_report=True, **options)


@pipeline.command(params=[*_COMMON])
@click.argument("jobs", nargs=-1, type=click.Choice(JOBS), metavar="[JOB]...")
@_grace_option
@_window_option
@_pool_option
def run(jobs: tuple[str, ...], **options: Any) -> None:
    """
    Run several jobs in one session; all of them when none is named.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline run --journal /var/lib/broker/journal --out results
        broker pipeline run paths reconcile --journal a --out results --from 2026-03-01T12:00 --to 2026-03-01T13:00
    """
    _run_jobs(tuple(dict.fromkeys(jobs)) or JOBS, **options)


def _run_jobs(
    jobs: tuple[str, ...],
    *,
    output: str,
    journal: tuple[Path, ...],
    flows: tuple[Path, ...],
    out: Path | None,
    first: datetime | None,
    end: datetime | None,
    is_explain: bool,
    grace: timedelta | None = None,
    window: timedelta | None = None,
    pool: int | None = None,
    is_report: bool = False,
    **spark_options: Any,
) -> None:
    """
    Run jobs, or make the report of them or of earlier results, and print what was written.

    Raises:
        BrokerError, OSError: See `broker.pipeline.jobs.run`.
    """
    seconds = None if window is None else int(window.total_seconds())
    if window is not None and (seconds == 0 or seconds != window.total_seconds()):
        raise click.UsageError("--window is whole seconds, one at least")
    journals = (*journal, *flows)
    if not journals and not is_report:
        raise click.UsageError("--journal is missing: name a journal")
    if out is None and not is_explain:
        raise click.UsageError("--out is missing: name a directory for the results")
    if first and end and first >= end:
        raise click.UsageError("--from is not before --to")
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        fail(f"the pipeline needs {' and '.join(missing)}: {to_install('pipeline')}", ExitCode.ERROR)
    from broker.pipeline import inventory, session  # noqa: PLC0415 - pyspark is an extra
    from broker.pipeline import jobs as runs  # noqa: PLC0415 - pyspark is an extra
    from broker.pipeline.report import file as report_file  # noqa: PLC0415 - pyspark is an extra

    request = runs.RunRequest(
        jobs,
        journals,
        out or Path(),
        runs.Options(
            grace_seconds=None if grace is None else int(grace.total_seconds()),
            window_seconds=seconds,
            pool_bytes=pool,
        ),
        session.SessionOptions(
            master=spark_options["master"],
            driver_memory=spark_options["driver_memory"],
            conf=dict(pair.partition("=")[::2] for pair in spark_options["conf"]),
            shows_progress=sys.stderr.isatty(),
        ),
        runs.PeriodBounds(first, end),
    )
    tell = partial(click.echo, err=True)
    try:
        runs.check_paths(request, is_writing=not is_explain)
    except PipelineError as error:  # unusable paths, whatever their content
        raise click.UsageError(str(error)) from None
    try:
        if is_explain:
            runs.explain(request)
            return
        done = (report_file if is_report else runs).run(request, tell)
    except NoJournalError as error:
        fail(str(error), ExitCode.NOT_FOUND)
    for line in inventory.sentences(done["files"]) if "files" in done else ():
        tell(line)
    if output == "json":
        show_json(done)
    elif done["jobs"]:
        show_rows([{"result": name, **one} for name, one in done["jobs"].items()], output)
