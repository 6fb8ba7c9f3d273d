"""Results of jobs for tests: a row names the columns that matter, the others are null."""

from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from broker.pipeline.report.digest import InputFacts
from broker.pipeline.results import RESULTS
from tests.spark.visiting import START, guid

FACTS = InputFacts(flows="flows", files=2, records=20, instances=3, samples=(1.0,), version="1")


def result(spark: SparkSession, job: str, *rows: dict[str, Any]) -> DataFrame:
    """The result of a job; ids are small numbers that are padded to 16 bytes."""
    schema = RESULTS[job]
    for row in rows:
        assert set(row) <= set(schema.names), set(row) - set(schema.names)
    filled = [{name: _value(name, row.get(name)) for name in schema.names} for row in rows]
    return spark.createDataFrame([tuple(row.values()) for row in filled], schema)


def small(spark: SparkSession) -> dict[str, DataFrame]:
    """Results of all jobs: a message from `shop` through `gate` to `bill`, one dropped, one lost, one that loops."""
    services = {"from_target": False, "from_service": "Shop", "to_service": "<script>"}
    common = {"kind": "message", "bytes": 100, **services}
    instants = {"started_at": START, "ended_at": START + timedelta(minutes=30)}
    hops = ["tcp://gate:4022", "tcp://bill:4022"]
    way = {"path": ["shop", "gate", "bill"], "residence_us": [100, 20, 300], "link_us": [1000, 2000]}
    way["next_hops"] = [*hops, None]
    short = {"path": ["shop", "gate"], "residence_us": [100, None], "link_us": [1000], "next_hops": [hops[0], None]}
    gone = {**short, "next_hops": hops, "end": "lost", "end_instance": "gate", "lost_to": hops[1]}
    loop = {"path": ["shop", "gate", "far", "gate"], "residence_us": [1, 1, 1, 1], "link_us": [1, 1, 1]}
    told: dict[str, Any] = {"missing_hops": 0, "unknown_links": 0, "has_loop": False, **common, **instants}
    windows = [START, START + timedelta(minutes=5)]
    gate = {"instance": "gate", "window_seconds": 300}
    return {
        "paths": result(
            spark,
            "paths",
            {**told, **way, "end": "delivered", "end_instance": "bill", "total_us": 3_420},
            {**told, **short, "end": "dropped", "end_instance": "gate", "reason": "no route"},
            {**told, **gone},
            {**told, **loop, "end": "dropped", "end_instance": "gate", "reason": "hops exhausted", "has_loop": True},
        ),
        "dialogs": result(
            spark,
            "dialogs",
            {"conversation_id": 1, "messages": 4, "resends": 1, **services, "bytes": 500},
        ),
        "routes": result(
            spark,
            "routes",
            *(
                {
                    **gate,
                    "route_table": "msdb",
                    "route": "to-bill",
                    "window_start": window,
                    "frames": 3 * place + 1,
                    "bytes": 100,
                    "residence_p50_us": 10,
                    "residence_p95_us": 20,
                    "residence_p99_us": 30 + place,
                    "drops": place,
                    "drops_by_reason": {"no route": place} if place else {},
                    "failovers": place,
                }
                for place, window in enumerate(windows)
            ),
        ),
        "capacity": result(
            spark,
            "capacity",
            *(
                {
                    **gate,
                    "window_start": window,
                    "peak_frames": 2,
                    "peak_bytes": 200 + place,
                    "p99_frames": 1,
                    "p99_bytes": 100,
                    "recommended_bytes": 1 << 20,
                    "headroom": 0.5 - place / 10,
                }
                for place, window in enumerate(windows)
            ),
        ),
        "reconcile": result(spark, "reconcile", _counts(conversation_id=1), _counts()),
    }


def empty(spark: SparkSession) -> dict[str, DataFrame]:
    """Results of all jobs over nothing."""
    return {job: result(spark, job) for job in RESULTS}


def _counts(conversation_id: int | None = None) -> dict[str, Any]:
    nothing = dict.fromkeys(("acknowledged", "under_way", "doubled", "untold", "invented", "resent", "duplicates"), 0)
    problem = {"sequence_number": 3, "fragment_number": 0, "problem": "missing", "reason": "no route"}
    row = {"sent": 4, "delivered": 3, "missing": 1, "transmissions": 5, "dropped": 2, "lost": 1, "adds_up": False}
    if conversation_id is None:
        return {**nothing, **row}
    return {**nothing, **row, "conversation_id": conversation_id, "from_target": False, "problems": [problem]}


def _value(name: str, value: Any) -> Any:
    return guid(value) if name.endswith("_id") else value
