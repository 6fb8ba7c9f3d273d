"""
`broker pipeline`: ask the journals of many instances at once, by Spark, on this machine or on a cluster.

There is a command for each job. Spark is an extra, and is loaded when one of them runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import Duration, Group, output_option
from broker.cli.output import show_json, show_rows
from broker.errors import NoJournalError, PipelineError

_F = TypeVar("_F", bound=Callable[..., Any])
EARLIEST, LATEST = datetime(1971, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Size(click.ParamType[int]):
    """Bytes, or a number with a unit: 1048576, 64MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """As bytes."""
        found = re.fullmatch(r"(\d+) ?(KiB|MiB|GiB|)", str(value))
        if found is None or not int(found[1]):
            self.fail(f"{value!r} is no size; write bytes, or 64MiB", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


class Instant(click.ParamType[datetime]):
    """2026-03-01, or 2026-03-01T12:30, UTC unless it has a zone."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """As an instant with a zone."""
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time; write 2026-03-01 or 2026-03-01T12:30", param, ctx)
        if not EARLIEST < found.replace(tzinfo=UTC) < LATEST:  # with room for zones and margins
            self.fail(f"{value!r} is no time of a journal; from {EARLIEST.year} to {LATEST.year}", param, ctx)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found


_COMMON_OPTIONS = (
    click.option(
        "--flows",
        "flows",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Directory of a journal; several times for several.",
    ),
    click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Where results go."),
    click.option("--master", default="local[*]", show_default=True, help="Spark's master: this machine, or a cluster."),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
    click.option("--driver-memory", metavar="SIZE", help="Heap, as 4g; else half of the memory, 1 to 8 GiB."),
    click.option("--from", "first", type=Instant(), help="Only what happened from then on."),
    click.option("--to", "behind", type=Instant(), help="Only what happened before."),
    click.option("--explain", "is_explain", is_flag=True, help="Print how Spark would do it, and do not."),
)


def _common(command: _F) -> _F:
    """The options of every job; stands above the job's own."""
    for option in reversed(_COMMON_OPTIONS):
        command = option(command)
    return command


JOBS = ("paths", "dialogs", "routes", "capacity", "reconcile")

_grace_option = click.option(
    "--grace",
    type=Duration(),
    help="What was seen so shortly before the journals end is not lost; 1m for paths, 150s for reconcile.",
)
_window_option = click.option("--window", type=Duration(), default="5m", show_default=True, help="Length of a window.")
_pool_option = click.option("--pool", type=Size(), help="Size of the pool (message_forward_size), for its headroom.")


@click.group(cls=Group)
def pipeline() -> None:
    """
    Ask the journals of many instances, with Spark.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline paths --flows /var/lib/broker/journal --out results
        broker pipeline run --flows journal --out results --from 2026-03-01 --to 2026-03-02
    """


@pipeline.command()
@_common
@_grace_option
@output_option
def paths(output: str, grace: timedelta | None, **asked: Any) -> None:
    """
    Write the way of each transmission: hops, times, its end.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline paths --flows /var/lib/broker/journal --out results
        broker pipeline paths --flows /mnt/journals --out /mnt/results --from 2026-03-01 --master spark://head:7077
    """
    _perform(("paths",), output, grace=grace, **asked)


@pipeline.command()
@_common
@output_option
def dialogs(output: str, **asked: Any) -> None:
    """
    Write what each dialog did: messages, resends, how long they took.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline dialogs --flows /var/lib/broker/journal --out results
        broker pipeline dialogs --flows journal --out results --from 2026-03-01 -o json
    """
    _perform(("dialogs",), output, **asked)


@pipeline.command()
@_common
@_window_option
@output_option
def routes(output: str, window: timedelta, **asked: Any) -> None:
    """
    Write traffic, residence and drops of each route, by window.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline routes --flows /var/lib/broker/journal --out results
        broker pipeline routes --flows journal --out results --window 1h --explain
    """
    _perform(("routes",), output, window=window, **asked)


@pipeline.command()
@_common
@_window_option
@_pool_option
@output_option
def capacity(output: str, window: timedelta, pool: int | None, **asked: Any) -> None:
    """
    Write what each instance held at once, and the pool it needs.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline capacity --flows /var/lib/broker/journal --out results --pool 64MiB
        broker pipeline capacity --flows journal --out results --window 1m --driver-memory 4g
    """
    _perform(("capacity",), output, window=window, pool=pool, **asked)


@pipeline.command()
@_common
@_grace_option
@output_option
def reconcile(output: str, grace: timedelta | None, **asked: Any) -> None:
    """
    Write the ledger: whether all that was sent arrived, once.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline reconcile --flows /var/lib/broker/journal --out results
        broker pipeline reconcile --flows journal-a --flows journal-b --out results --grace 5m
    """
    _perform(("reconcile",), output, grace=grace, **asked)


@pipeline.command()
@_common
@_window_option
@_pool_option
@output_option
def report(output: str, window: timedelta, pool: int | None, **asked: Any) -> None:
    """
    Write report.html: of journals, or of results that are there.

    With --flows the jobs that it needs run first; without, it is made of what --out has. Exit codes: 0 done, 1 a job or
    Spark failed, or a result is missing, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline report --flows /var/lib/broker/journal --out results
        broker pipeline report --out results
    """
    if asked["is_explain"]:
        raise click.UsageError("the report is made of results: run the jobs so, and then the report without --flows")
    _perform(JOBS, output, window=window, pool=pool, is_report=True, **asked)


@pipeline.command()
@click.argument("jobs", nargs=-1, type=click.Choice(JOBS), metavar="[JOB]...")
@_common
@_grace_option
@_window_option
@_pool_option
@output_option
def run(output: str, jobs: tuple[str, ...], **asked: Any) -> None:
    """
    Run several jobs in one session; all of them when none is named.

    Exit codes: 0 done, 1 a job or Spark failed, 2 usage, 3 no file of a journal that can be read.

    Examples:
        broker pipeline run --flows /var/lib/broker/journal --out results
        broker pipeline run paths reconcile --flows journal --out results --from 2026-03-01T12:00 --to 2026-03-01T13:00
    """
    _perform(tuple(dict.fromkeys(jobs)) or JOBS, output, **asked)


def _perform(
    jobs: tuple[str, ...],
    output: str,
    *,
    grace: timedelta | None = None,
    window: timedelta = timedelta(minutes=5),
    pool: int | None = None,
    is_report: bool = False,
    **asked: Any,
) -> None:
    """
    Run jobs as the options ask, or make the report of them or of results that are there; print what came of it.

    Raises:
        BrokerError, OSError: as `broker.pipeline.jobs.run`.
    """
    seconds = int(window.total_seconds())
    if seconds < 1 or seconds != window.total_seconds():
        raise click.UsageError("--window is whole seconds, one at least")
    if not asked["flows"] and not is_report:
        raise click.UsageError("which journals: --flows is missing")
    if asked["out"] is None and not asked["is_explain"]:
        raise click.UsageError("where results go: --out is missing")
    if asked["first"] and asked["behind"] and asked["first"] >= asked["behind"]:
        raise click.UsageError("--from is not before --to: nothing lies between them")
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        fail(f"the pipeline needs {' and '.join(missing)}: pip install 'broker[pipeline]'", ExitCode.ERROR)
    from broker.pipeline import inventory, session  # noqa: PLC0415 - pyspark is an extra
    from broker.pipeline import jobs as runs  # noqa: PLC0415 - pyspark is an extra
    from broker.pipeline.report import file as report_file  # noqa: PLC0415 - pyspark is an extra

    request = runs.RunRequest(
        jobs,
        asked["flows"],
        asked["out"] or Path(),
        runs.Options(
            grace_seconds=None if grace is None else int(grace.total_seconds()),
            window_seconds=seconds,
            pool_bytes=pool,
        ),
        session.SessionOptions(
            master=asked["master"],
            driver_memory=asked["driver_memory"],
            conf=dict(pair.partition("=")[::2] for pair in asked["conf"]),
            shows_progress=sys.stderr.isatty(),
        ),
        runs.PeriodBounds(asked["first"], asked["behind"]),
    )
    try:
        runs.check_local(request)
        if not asked["is_explain"]:
            runs.check_apart(request)
    except PipelineError as error:  # paths that no run can use, whatever lies there
        raise click.UsageError(str(error)) from None
    try:
        if asked["is_explain"]:
            runs.explain(request)
            return
        if not is_report:
            done: Mapping[str, Any] = runs.run(request, _report_progress)
        elif request.flows:
            done = report_file.run(request, _report_progress)
        else:
            report_file.check(request.out)
            with runs.started(request) as spark:
                done = {"jobs": {}, "report": str(report_file.render(spark, request.out))}
                _report_progress(f"report: {done['report']}")
    except NoJournalError as error:
        fail(str(error), ExitCode.NOT_FOUND)
    for line in inventory.sentences(done["files"]) if "files" in done else ():
        _report_progress(line)
    if output == "json":
        show_json(done)
    elif done["jobs"]:
        show_rows([{"result": name, **one} for name, one in done["jobs"].items()], output)


def _report_progress(line: str) -> None:
    click.echo(line, err=True)
