"""
The commands about many instances' journals at once, answered by Spark: on this machine, or on a cluster.

What all of them have in common is here; `pipeline_jobs` has the commands. Spark is loaded when one of them runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broker.cli.options import NOT_FOUND, examples, fail, output_option, with_exit_code
from broker.cli.output import show_json, show_rows
from broker.errors import NoJournalError, PipelineError

if TYPE_CHECKING:
    from broker.pipeline.jobs import Options, RunRequest


_F = TypeVar("_F", bound=Callable[..., Any])
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST = timedelta(days=36500)
EARLIEST, LATEST = datetime(1971, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Duration(click.ParamType[timedelta]):
    """Seconds, or a number with a unit: 90, 30s, 15m, 1h, 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """As timedelta."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; write 90, 30s, 15m, 1h or 1d", param, ctx)
        seconds = float(found[1]) * _SECONDS[found[2] or "s"]
        if seconds > LONGEST.total_seconds():
            self.fail(f"{value!r} is too long; {LONGEST.days}d is the longest", param, ctx)
        return timedelta(seconds=seconds)


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


_COMMON = (
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


def common(command: _F) -> _F:
    """The options of every job; stands above the job's own."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


def check_installed() -> None:
    """End with a sentence when the extra is not there."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        fail(f"the pipeline needs {' and '.join(missing)}: pip install 'broker[pipeline]'", 1)


def perform(jobs: tuple[str, ...], options: Options, output: str, **asked: Any) -> None:
    """
    Run some jobs as the common options ask, and tell what came of it.

    Raises:
        BrokerError, OSError: as `broker.pipeline.jobs.run`.
    """
    _check_usage(**asked)
    from broker.pipeline import jobs as entry  # noqa: PLC0415

    request = _request(jobs, options, **asked)
    _check_places(request, is_written=not asked["is_explain"])
    try:
        if asked["is_explain"]:
            entry.explain(request)
            return
        told = entry.run(request, _tell)
    except NoJournalError as error:
        fail(str(error), NOT_FOUND)
    _show(told, output)


def perform_report(jobs: tuple[str, ...], options: Options, output: str, **asked: Any) -> None:
    """
    Make the report: of journals, or of results that are there.

    Raises:
        BrokerError, OSError: as `broker.pipeline.report.file.run`.
    """
    _check_usage(**asked)
    from broker.pipeline import jobs as entry  # noqa: PLC0415
    from broker.pipeline.report import file as report_file  # noqa: PLC0415 - pyspark is an extra
    from broker.pipeline.report import file as stored  # noqa: PLC0415

    request = _request(jobs, options, **asked)
    _check_places(request, is_written=True)
    try:
        if request.flows:
            told = report_file.run(request, _tell)
        else:
            stored.check(request.out)
            with entry.started(request) as spark:
                told = {"jobs": {}, "report": str(stored.render(spark, request.out))}
                _tell(f"report: {told['report']}")
    except NoJournalError as error:
        fail(str(error), NOT_FOUND)
    _show(told, output)


def _show(told: Mapping[str, Any], output: str) -> None:
    if "files" in told:
        from broker.pipeline.inventory import told as sentences  # noqa: PLC0415 - pyspark is an extra

        for line in sentences(told["files"]):
            _tell(line)
    if output == "json":
        show_json(told)
    elif told["jobs"]:
        show_rows([{"result": name, **one} for name, one in told["jobs"].items()], output)


def _check_usage(**asked: Any) -> None:
    if asked["out"] is None and not asked["is_explain"]:
        raise click.UsageError("where results go: --out is missing")
    if asked["first"] and asked["behind"] and asked["first"] >= asked["behind"]:
        raise click.UsageError("--from is not before --to: nothing lies between them")


def _check_places(request: RunRequest, *, is_written: bool) -> None:
    """Paths that no run can take are wrong usage, whatever lies there."""
    from broker.pipeline import jobs as entry  # noqa: PLC0415

    try:
        entry.check_local(request)
        if is_written:
            entry.check_apart(request)
    except PipelineError as error:
        raise click.UsageError(str(error)) from None


def _request(jobs: tuple[str, ...], options: Options, **asked: Any) -> RunRequest:
    from broker.pipeline import jobs as entry  # noqa: PLC0415
    from broker.pipeline import jobs as period  # noqa: PLC0415
    from broker.pipeline import session  # noqa: PLC0415

    conf = dict(pair.partition("=")[::2] for pair in asked["conf"])
    started = session.SessionOptions(
        master=asked["master"],
        driver_memory=asked["driver_memory"],
        conf=conf,
        shows_progress=sys.stderr.isatty(),
    )
    bounds = period.PeriodBounds(asked["first"], asked["behind"])
    return entry.RunRequest(jobs, asked["flows"], asked["out"] or Path(), options, started, bounds)


def _tell(line: str) -> None:
    click.echo(line, err=True)


# --- pipeline_jobs ---
# The commands of `broker pipeline`, one for each job.


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
