"""
Results that were written, read back: those of one run over all files, and those of incremental runs, alike.

Incremental runs leave one directory a step, each with the total of its own rows; here they are one frame, with one
total.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.errors import PipelineError
from broker.pipeline import inventory
from broker.pipeline.report import file as report_file
from broker.pipeline.report.digest import Facts
from broker.pipeline.report.page import NEEDED, report
from broker.pipeline.result import REPORT
from broker.pipeline.schema import RECONCILE, RESULTS

_SUMMED = [field.name for field in RECONCILE if field.dataType.typeName() == "long"]


def is_stored(out: Path, name: str) -> bool:
    """Whether there is a result of this name."""
    return any((out / name).glob("*.parquet")) or any((out / name).glob("batch=*"))


def load(spark: SparkSession, out: Path, name: str) -> DataFrame:
    """
    A result, with the schema of its name.

    Raises:
        PipelineError: it is not there.
    """
    if not is_stored(out, name):
        raise PipelineError(f"{out} has no result of {name}", f"run `broker pipeline {name}` with --out {out}")
    schema = RESULTS[name]
    steps = sorted(map(str, (out / name).glob("batch=*")))
    reader = spark.read.schema(schema).option("__globPaths__", "false").option("recursiveFileLookup", "true")
    found = reader.parquet(*(steps or [str(out / name)])).select(*schema.names)
    return found.transform(with_one_total) if name == "reconcile" and steps else found


def with_one_total(reconcile: DataFrame) -> DataFrame:
    """RECONCILE with several totals to RECONCILE with one, which adds up when none fails and one adds up."""
    is_total = F.col("conversation_id").isNull()
    sums = {name: F.sum(name) for name in _SUMMED} | {"adds_up": F.bool_and("adds_up")}
    total = reconcile.where(is_total).groupBy().agg(*(one.alias(name) for name, one in sums.items()))
    one = total.where(F.col(_SUMMED[0]).isNotNull()).select(
        *(
            (F.col(field.name) if field.name in sums else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in RECONCILE
        )
    )
    return reconcile.where(~is_total).unionByName(one)


def render(spark: SparkSession, out: Path) -> Path:
    """
    Write the report of the results below a directory, and say where.

    Raises:
        PipelineError: a result that it is made of is not there.
        OSError: it cannot be written.
    """
    names = [*NEEDED, *(["plan"] if is_stored(out, "plan") else [])]
    results = {name: load(spark, out, name) for name in names}
    report_file.write(out / report_file.FILE, report(results, facts(out / NEEDED[0])))
    return out / report_file.FILE


def facts(directory: Path) -> Facts:
    """
    What was read to make a result: by one run, or by all incremental ones.

    Raises:
        PipelineError: nothing tells it.
    """
    try:
        told = json.loads((directory / REPORT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{directory} has no {REPORT}", "run the jobs again") from None
    files = told.get("files") or {
        **told["last"],
        **told["totals"],
        "shed_records": told["shed"],
        "instances": len(told["shed"]),
    }
    troubles = inventory.told(files)[1:]
    late = told.get("totals", {}).get("late", 0)
    if late:
        troubles.append(f"{late:,} visits came too late for incremental runs, left out")
    return Facts.of(files, flows=", ".join(told["flows"]), troubles=troubles, version=version("broker"))
