"""What the jobs read and write."""

from broker.flow import COLUMNS
from broker.pipeline.results import RESULTS, VISIT


def test_the_pipeline_reads_the_columns_of_a_flow_record() -> None:
    """In their order."""
    assert [one.name for one in COLUMNS] == VISIT.names


def test_every_column_of_a_result_may_be_missing() -> None:
    """Spark takes a column that must not be null at its word."""
    assert all(field.nullable for schema in RESULTS.values() for field in schema)
